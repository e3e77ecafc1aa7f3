"""One round for every kind of fault; `python -m tests.faults` plays as many as requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.faults.checker import check
from tests.faults.daemon import POINTS
from tests.faults.plan import KINDS, plan
from tests.faults.poison import POISONS
from tests.faults.rounds import play, run_round
from tests.faults.source import come_true
from tests.faults.stage import Stage
from tests.faults.world import World, why_not
from tests.support.daemon import tailrace, wait_for
from tests.support.topics import latest, read_topic


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("rounds"))
    yield world
    world.close()


# the first that needs toxiproxy also compiles it, which takes minutes on a busy machine
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_breaks_no_promise(world: World, kind: str) -> None:
    reason = why_not(kind)
    if reason:
        pytest.skip(reason)
    result = run_round(world, plan(KINDS.index(kind), kind=kind))
    assert not result.violations, f"{result.plan}, see {result.folder}"
    assert result.changes >= 500
    assert sum(result.faults.values()) >= 1 or kind == "kill at a point"


def test_other_tables_have_states_while_large_values_are_reread(world: World) -> None:
    """The table of large values has few states, the others one at each unsplit cut; with kills in between."""
    folder = world.folder / "reread"
    folder.mkdir()
    played = play(world, replace(plan(2, kind="kill at a point"), early=False, toast="reread"), folder)
    assert played.broken == ()
    assert check(played.evidence) == []
    others, ahead = ("public.account", "public.entry"), 0
    for _, position in played.evidence.positions:
        there, state = position.state_for(others), position.state
        ahead += there is not None and (state is None or state.order < there.order)
    assert ahead > 5


def test_poisoned_tables_are_parked_and_others_lose_nothing(world: World) -> None:
    """One for each reason; parked while the daemon is killed, repaired and resumed, their topics equal the tables."""
    settings = replace(plan(1, kind="kill at random"), early=False, poisoned=True)
    folder = world.folder / "poisoned"
    folder.mkdir()
    with ExitStack() as stack:
        stage = Stage(world, settings, {settings.kind}, folder, stack)
        stage.wait_for_load(1)
        stage.wait_for_first_state()
        with psycopg.connect(stage.site.dsn, autocommit=True) as source:
            for each in POISONS:
                source.execute(f"{each.strike}; DELETE FROM {each.table} WHERE id = 4".encode())
            parked = {f"public.{each.table}": each.code for each in POISONS}
            wait_for(stage.config, lambda record: record.parked == parked)
            stage.nemesis.work(settings.steps)
            stage.wait_for_load(500)
            for each in POISONS:
                more = f"DELETE FROM {each.table} WHERE id < 3; INSERT INTO {each.table} VALUES (51, 51)"
                source.execute(f"{each.mend}; {more}".encode())
            resumed = tailrace("table", "resume", *parked, "--config", str(stage.path), "--timeout", "50")
            assert resumed.returncode == 0, resumed.stderr
            stage.come_to_rest()
            tables: dict[str, dict[int, Any]] = {
                each.table: dict(source.execute(f"SELECT id, v FROM {each.table}".encode()).fetchall())
                for each in POISONS
            }
        for table, rows in tables.items():
            found = latest(read_topic(stage.site.bootstrap, folder.name, f"public.{table}"))
            assert {key: row["v"] for (key,), row in found.items()} == rows, table
        played = stage.finish()
    assert played.broken == ()
    assert check(played.evidence) == []


_DEATHS = [f"{point}:{when}" for point in POINTS if point != "snapshot" for when in ("before", "after")]


@pytest.mark.timeout(600)  # sixteen starts of the daemon
@pytest.mark.parametrize(
    "deaths",
    [
        # the exported snapshot dies with its first reader, so it allows one death
        ["snapshot:before", *_DEATHS, "commit:during"],
        ["snapshot:after"],
    ],
    ids=["all", "snapshot:after"],
)
def test_a_daemon_killed_at_each_point_breaks_no_promise(world: World, deaths: list[str]) -> None:
    settings = replace(
        plan(0, kind="kill at a point"), early=True, streaming=True, deaths=tuple(f"{death}:1" for death in deaths)
    )
    folder = world.folder / f"points{len(deaths)}"
    folder.mkdir()
    with ExitStack() as stack:
        stage = Stage(world, settings, (), folder, stack)
        reached = come_true(lambda: stage.daemon.died.total() == len(deaths), 450)
        assert reached, f"only at {sorted(stage.daemon.died)}"
        stage.come_to_rest()
        played = stage.finish()
    assert not played.broken
    assert check(played.evidence) == []
