"""Draws a round from a seed: the daemon's settings, the points where it dies, and the faults.

The same seed and kinds give the same plan; the timing between the processes differs from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.daemon import POINTS

KINDS = (
    "kill at a point",
    "kill at random",
    "pause the daemon",
    "kill the broker",
    "pause the broker",
    "restart the broker",
    "kill one of three brokers",
    "pause one of three brokers",
    "restart one of three brokers",
    "kill PostgreSQL",
    "pause PostgreSQL",
    "restart PostgreSQL",
    "kill both",
    "reset connections",
    "slow links",
    "half-open links",
    "narrow links",
    "full disk",
    "clock jumps",
    "promote the standby",
)

LINKS = ("postgres", "kafka", "both")


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, `at` seconds after the first; it lasts `seconds`. `number` is its size in its own unit."""

    at: float
    kind: str
    seconds: float = 0.0
    number: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round. `deaths` are where the daemon's lives end, in the notation of `tests.faults.daemon`.

    With `early` the faults begin at the daemon's first start, in its first copy; otherwise after its first state.
    `toast` is `source.toast`: with "reread" the table of large values is incomplete at many cuts. With `poisoned` there
    are the tables of `tests.faults.poison`, too.
    """

    seed: int
    kind: str
    early: bool
    streaming: bool
    max_transaction_bytes: int
    max_transaction_ms: int
    deaths: tuple[str, ...] = ()
    steps: tuple[Step, ...] = field(default=())
    toast: str = "cache"
    poisoned: bool = False


def plan(seed: int, kinds: Sequence[str] = KINDS, kind: str | None = None) -> Plan:
    """Draw a round, of one of `kinds` unless `kind` is given."""
    pick = random.Random(seed)
    drawn = pick.choice(kinds)
    kind = kind or drawn
    early = pick.random() < 0.3
    streaming = kind == "full disk" or pick.random() < 0.5
    deaths: list[str] = []
    if kind == "kill at a point":
        deaths = [_death(pick, streaming) for _ in range(pick.randint(2, 4))]
    elif pick.random() < 0.3:
        deaths = [_death(pick, streaming)]
    return Plan(
        seed,
        kind,
        early,
        streaming,
        max_transaction_bytes=pick.choice((65_536, 65_536, 1_048_576)),
        max_transaction_ms=pick.choice((20, 100, 500)),
        deaths=tuple(deaths),
        steps=tuple(_steps(kind, pick)),
    )


def _death(pick: random.Random, streaming: bool) -> str:
    point = pick.choice([point for point in POINTS if streaming or point != "spool"])
    when = pick.choice(("before", "after", *(("during",) * 2 if point == "commit" else ())))
    most = {"spool": 2000, "receive": 200, "produce": 200, "snapshot": 40}.get(point, 25)
    return f"{point}:{when}:{pick.randint(1, most)}"


def _steps(kind: str, pick: random.Random) -> list[Step]:
    if kind == "kill at a point":
        return []
    if kind in ("kill at random", "reset connections"):
        times = sorted(pick.uniform(0.2, 4.5) for _ in range(3))
        return [Step(at, kind, target=pick.choice(LINKS)) for at in times]
    if kind == "clock jumps":
        jumps = [pick.choice((-86_400, -3_600, -1, 1, 60, 3_600, 86_400 * 400)) for _ in range(3)]
        return [Step(1.2 * index + pick.random(), kind, number=jump) for index, jump in enumerate(jumps)]
    number = {"slow links": pick.choice((30, 100, 300)), "narrow links": pick.choice((30, 100, 400))}.get(
        kind, pick.randrange(3)
    )
    seconds = pick.uniform(0.5, 3.0)
    if kind in ("pause the daemon", "pause one of three brokers", "half-open links") and pick.random() < 0.3:
        seconds = pick.uniform(6.0, 10.0)  # longer than the time-outs of the peers
    return [Step(pick.uniform(0.3, 1.5), kind, seconds, number, pick.choice(LINKS))]
