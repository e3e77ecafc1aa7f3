"""A short set of rounds that has every kind of fault; `python -m tests.faults` plays as many as asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.plan import KINDS, plan
from tests.faults.rounds import run_round
from tests.faults.world import World, why_not


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("rounds"))
    yield world
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(world: World, kind: str) -> None:
    reason = why_not(kind)
    if reason:
        pytest.skip(reason)
    result = run_round(world, plan(KINDS.index(kind), kind=kind))
    assert not result.violations, f"{result.plan}, see {result.folder}"
    assert result.changes >= 500
    assert sum(result.faults.values()) >= 1 or kind == "kill at a point"
