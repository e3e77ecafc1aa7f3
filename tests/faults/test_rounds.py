"""One round for every kind of fault; `python -m tests.faults` plays as many as requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest

from tests.faults.checker import check
from tests.faults.daemon import POINTS
from tests.faults.plan import KINDS, plan
from tests.faults.rounds import play, run_round
from tests.faults.source import come_true
from tests.faults.stage import Stage
from tests.faults.world import World, why_not
from tests.support.daemon import tailrace, wait_for
from tests.support.topics import read_topic


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("rounds"))
    yield world
    world.close()


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


def test_a_poisoned_table_is_parked_and_others_lose_nothing(world: World) -> None:
    """Parked while the daemon is killed, then repaired and resumed, its topic equals the table."""
    settings = replace(plan(1, kind="kill at random"), early=False, poisoned=True)
    folder = world.folder / "poisoned"
    folder.mkdir()
    with ExitStack() as stack:
        stage = Stage(world, settings, {settings.kind}, folder, stack)
        stage.wait_for_load(1)
        stage.wait_for_first_state()
        with psycopg.connect(stage.site.dsn, autocommit=True) as source:
            source.execute("UPDATE poison SET price = 'NaN' WHERE id = 3; DELETE FROM poison WHERE id = 4")
            wait_for(stage.config, lambda record: record.parked == {"public.poison": "TR-220"})
            stage.nemesis.work(settings.steps)
            stage.wait_for_load(500)
            source.execute("DELETE FROM poison WHERE id < 3; INSERT INTO poison VALUES (51, 51)")
            source.execute("UPDATE poison SET price = 0 WHERE id = 3")
            resumed = tailrace("table", "resume", "poison", "--config", str(stage.path), "--timeout", "50")
            assert resumed.returncode == 0, resumed.stderr
            stage.come_to_rest()
            rows = {(key,): price for key, price in source.execute("SELECT id, price FROM poison")}
        latest = {}
        for record in read_topic(stage.site.bootstrap, folder.name, "public.poison"):
            latest[record.key] = record.value["after"] if record.value else None
        played = stage.finish()
    assert {key: row["price"] for key, row in latest.items() if row is not None} == rows
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
