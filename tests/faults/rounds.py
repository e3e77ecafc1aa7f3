"""One round: its own database and topics, load, faults, rest, and the checker's findings."""

from __future__ import annotations

import pickle
import shutil
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tailrace.schemas.errors import TailraceError
from tests.faults.checker import Violation, check
from tests.faults.plan import Plan
from tests.faults.stage import Played, Stage
from tests.faults.world import World

_LOAD_S = 4.0
"""The load continues for at least this time after the first fault."""

_CHANGES = 500
"""The load writes at least this many changes; on a busy machine that takes longer."""


@dataclass(frozen=True, slots=True)
class Round:
    """Result of a plan; `changes` is the number of journalled changes that were checked."""

    plan: Plan
    faults: Counter[str]
    transactions: int
    changes: int
    seconds: float
    violations: tuple[Violation, ...]
    folder: Path | None


def run_round(world: World, plan: Plan) -> Round:
    """Play a round and judge it. Keep its folder, with logs and evidence, only if a promise was broken."""
    began = time.monotonic()
    folder = world.folder / f"r{plan.seed % 1_000_000}x{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    played = play(world, plan, folder)
    violations = (*played.broken, *check(played.evidence))
    if violations:
        (folder / "evidence").write_bytes(pickle.dumps(played.evidence))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Round(
        plan,
        played.faults,
        played.transactions,
        len(played.evidence.journal),
        time.monotonic() - began,
        violations,
        folder if violations else None,
    )


def play(world: World, plan: Plan, folder: Path) -> Played:
    """Play a plan with a database and topics that have the folder's name; then read the evidence."""
    with ExitStack() as stack:
        stage = Stage(world, plan, {plan.kind}, folder, stack)
        broken: list[str] = []
        try:
            stage.wait_for_load(1)
            if not plan.early:
                stage.wait_for_first_state()
            first = time.monotonic()
            stage.nemesis.work(plan.steps)
            stage.wait_for_load(_CHANGES)
            time.sleep(max(0.0, first + _LOAD_S - time.monotonic()))
            stage.come_to_rest()
        except (AssertionError, TailraceError) as error:
            broken.append(str(error).splitlines()[0])
        return stage.finish(broken)
