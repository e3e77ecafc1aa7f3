"""An hour of mixed load with a fault each minute, then all checks of a round and the daemon's memory.

python -m tests.faults.soak --minutes 60 [--seed N]

The daemon is killed in the first third only; the life after that is the longest and shows whether memory grows.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import psutil

from tailrace.schemas.errors import TailraceError
from tests.faults.checker import check
from tests.faults.plan import KINDS, Plan, plan
from tests.faults.stage import Stage
from tests.faults.supervisor import Supervisor
from tests.faults.world import World, why_not
from tests.support.daemon import tailrace

_DEADLY = ("kill at random", "kill at a point", "full disk")
_OTHER_STAGES = tuple(kind for kind in KINDS if "of three brokers" in kind or kind == "promote the standby")
"""Kinds that need other servers than the soak's one broker and one PostgreSQL."""
_KINDS = tuple(kind for kind in KINDS if kind not in _DEADLY + _OTHER_STAGES)
_PACE_S = 0.08
_SAMPLE_S = 5.0
_WARM_S = 300.0


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    pid: int
    mib: float


class MemoryWatch:
    """Samples the daemon's resident memory every few seconds."""

    def __init__(self, daemon: Supervisor) -> None:
        self.samples: list[Sample] = []
        self._daemon = daemon
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="memory-watch")
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            pid = self._daemon.pid
            try:
                rss = psutil.Process(pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.samples.append(Sample(time.monotonic() - self._began, pid, rss / 2**20))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def longest_life(self) -> list[Sample]:
        """Return the samples of the process that lived longest, without its warm-up."""
        lives = Counter(sample.pid for sample in self.samples)
        life = [sample for sample in self.samples if sample.pid == lives.most_common(1)[0][0]]
        warm = min(_WARM_S, (life[-1].at - life[0].at) / 3)
        return [sample for sample in life if sample.at >= life[0].at + warm]


def in_parts(life: list[Sample]) -> Iterator[str]:
    """Describe each quarter's memory: data in flight makes it vary, but a leak would raise the minimum."""
    began, ended = life[0].at, life[-1].at
    yield f"memory of the longest life, {ended - began:.0f} s once warm, in MiB by its quarters:"
    for quarter in range(4):
        start = began + (ended - began) * quarter / 4
        part = sorted(s.mib for s in life if start <= s.at <= start + (ended - began) / 4)
        if part:
            yield f"  least {part[0]:.1f}, median {median(part):.1f}, most {part[-1]:.1f}"


def main() -> int:
    """Run the soak test; return 1 if anything is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="tailrace-soak-"))
    os.chmod(home, 0o755)
    world = World(home)
    try:
        return soak(world, given.seed, given.minutes * 60)
    finally:
        world.close()


def soak(world: World, seed: int, seconds: float) -> int:
    """Run load and the faults of `seed` for `seconds`; print the results; return the exit code."""
    kinds = [kind for kind in (*_KINDS, *_DEADLY) if not why_not(kind)]
    folder = world.folder / f"soak{seed}x{os.getpid()}"
    folder.mkdir()
    with ExitStack() as stack:
        settings = Plan(seed, "soak", False, True, max_transaction_bytes=1_048_576, max_transaction_ms=100)
        stage = Stage(world, settings, kinds, folder, stack, pace=_PACE_S)
        memory = MemoryWatch(stage.daemon)
        stack.callback(memory.stop)
        broken: list[str] = []
        try:
            stage.wait_for_first_state()
            _faults(stage, kinds, random.Random(seed), seconds)
            stage.come_to_rest()
        except (AssertionError, TailraceError) as error:
            broken.append(str(error).splitlines()[0])
        memory.stop()
        played = stage.finish(broken)
        log = tailrace("verify", "--log", "--config", str(_direct(stage)), timeout=600)
    violations = (*played.broken, *check(played.evidence))
    if violations:
        (folder / "evidence").write_bytes(pickle.dumps(played.evidence))
    print(log.stdout)
    print(f"{played.transactions} transactions, {len(played.evidence.journal)} changes checked")
    print(f"faults: {dict(sorted(played.faults.items()))}")
    for line in in_parts(memory.longest_life()):
        print(line)
    (folder / "memory.csv").write_text("".join(f"{s.at:.0f},{s.pid},{s.mib:.1f}\n" for s in memory.samples))
    print(f"all samples: {folder / 'memory.csv'}")
    print(f"violations: {len(violations)}")
    for violation in violations[:20]:
        print(f"  {violation.promise}: {violation.detail[:400]}")
    return 1 if violations or log.returncode else 0


def _faults(stage: Stage, kinds: list[str], pick: random.Random, seconds: float) -> None:
    """Inject one fault a minute, the deadly ones in the first third only."""
    began = time.monotonic()
    minute = 0
    while (now := time.monotonic() - began) < seconds:
        minute += 1
        lively = [kind for kind in kinds if kind not in _DEADLY]
        drawn = plan(pick.randrange(10**6), kind=pick.choice(kinds if now < seconds / 3 else lively))
        print(f"{now:.0f} s: {drawn.kind}", flush=True)
        if drawn.kind == "kill at a point":
            stage.daemon.die_at(drawn.deaths)
        else:
            stage.nemesis.work(tuple(replace(step, at=0.0) for step in drawn.steps[:1]))
        if drawn.kind == "clock jumps":
            time.sleep(5)
            stage.nemesis.set_clock(0)
        time.sleep(max(0.0, min(seconds, minute * 60) - (time.monotonic() - began)))


def _direct(stage: Stage) -> Path:
    """Write the configuration again, with direct access to Kafka."""
    path = stage.path.with_name("direct.toml")
    text = stage.path.read_text()
    path.write_text(text.replace(stage.site.daemon_bootstrap, stage.site.bootstrap))
    return path


if __name__ == "__main__":
    sys.exit(main())
