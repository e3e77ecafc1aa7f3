"""Injects the faults of a plan. Every fault is over when its call returns: servers run, links work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tests.faults.cluster import Cluster
from tests.faults.machine import Clock, SmallDisk
from tests.faults.plan import Step
from tests.faults.proxy import Toxiproxy
from tests.faults.source import Postgres, come_true
from tests.faults.supervisor import Supervisor


class Nemesis:
    """Injects faults into the given processes, links and machine parts; a round has only some of them."""

    def __init__(
        self,
        daemon: Supervisor,
        kafka: Cluster,
        postgres: Postgres,
        *,
        proxies: Toxiproxy | None = None,
        disk: SmallDisk | None = None,
        clock: Clock | None = None,
        fail_over: Callable[[], None] | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._daemon, self._kafka, self._postgres = daemon, kafka, postgres
        self._proxies, self._disk, self._clock, self._fail_over = proxies, disk, clock, fail_over
        self._faults: Mapping[str, Callable[[Step], None]] = {
            "kill at random": lambda step: daemon.kill(),
            "pause the daemon": lambda step: _between(step, daemon.pause, daemon.resume),
            "kill PostgreSQL": lambda step: _between(step, postgres.kill, postgres.start),
            "pause PostgreSQL": lambda step: _between(step, postgres.pause, postgres.resume),
            "restart PostgreSQL": lambda step: postgres.restart(),
            "kill both": self._kill_both,
            "reset connections": lambda step: self._poison(step, "reset_peer", timeout=0),
            "slow links": lambda step: self._poison(step, "latency", latency=step.number, jitter=step.number // 3),
            "half-open links": lambda step: self._poison(step, "timeout", timeout=0),
            "narrow links": lambda step: self._poison(step, "bandwidth", rate=step.number),
            "full disk": self._full_disk,
            "clock jumps": self._jump,
            "promote the standby": self._promote,
        }

    def work(self, steps: tuple[Step, ...]) -> None:
        """Inject all faults, each at its time or as soon as the one before it is over."""
        began = time.monotonic()
        for step in steps:
            time.sleep(max(0.0, began + step.at - time.monotonic()))
            if step.kind in self._faults:
                self._faults[step.kind](step)
            else:
                self._broker(step)
            self.done[step.kind] += 1

    def _broker(self, step: Step) -> None:
        """Apply "kill the broker", "pause one of three brokers" and so on."""
        node = self._kafka.nodes[step.number % len(self._kafka.nodes)]
        verb = step.kind.partition(" ")[0]
        if verb == "pause":
            _between(step, node.pause, node.resume)
        else:
            _between(step, node.kill if verb == "kill" else node.stop, lambda: self._kafka.start(node))

    def _kill_both(self, step: Step) -> None:
        (node,) = self._kafka.nodes
        node.kill()
        self._postgres.kill()
        time.sleep(step.seconds)
        starting = threading.Thread(target=self._kafka.start, args=(node,))
        starting.start()
        self._postgres.start()
        starting.join()

    def _poison(self, step: Step, kind: str, **attributes: int) -> None:
        assert self._proxies is not None
        for link in ("postgres", "kafka"):
            if step.target in (link, "both"):
                self._proxies.poison(link, kind, **attributes)
        time.sleep(step.seconds)
        self._proxies.reset()

    def _full_disk(self, step: Step) -> None:
        """Fill the disk until the daemon has failed on it, or for as long as the step says."""
        assert self._disk is not None
        before = self._daemon.restarts
        self._disk.fill()
        come_true(lambda: self._daemon.restarts > before, step.seconds + 5)
        self._disk.free()

    def _jump(self, step: Step) -> None:
        self.set_clock(step.number)

    def set_clock(self, seconds: int) -> None:
        """Set the daemon's clock to `seconds` ahead of the true time."""
        assert self._clock is not None
        self._clock.jump(seconds)

    def _promote(self, step: Step) -> None:
        assert self._fail_over is not None
        self._fail_over()


def _between(step: Step, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    try:
        time.sleep(step.seconds)
    finally:
        end()
