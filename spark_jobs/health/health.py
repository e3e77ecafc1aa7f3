"""Health of the running views job: written by its threads, read by HTTP requests.

Every attribute has one writing thread at a time and is replaced as a whole, so no lock is needed. Memory is bounded by
the number of views and of error codes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from prometheus_client import Histogram

from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.metrics import PREFIX, VIEWS
from tailrace.sinks.control.views_topic import Verified
from tailrace.spark_jobs.health.backlog import Backlog, Lag, Reached

State = Literal["starting", "running", "stopping"]

_TURN_S: Final = 120.0
"""Longest normal turn of the loop that begins batches: it may wait twice 30 s for Kafka. Batches have own threads."""

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Held:
    """The error because of which a view does not advance; times are seconds since 1970."""

    code: str
    message: str
    since: float
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Sums over the batches of a view that changed it or its position; `at` is when the newest ended."""

    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    at: float | None = None


class ViewHealth:
    """Health of one view. The thread of its batch writes all attributes but `backlog`, which the watch writes.

    `verify_failures` is written by the thread that compares views, and `verified` by both.

    `limits` has, by error code, the time (ms) without an advance after which the view stops.
    """

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        reached: Reached | None = None,
        limits: Mapping[str, int] | None = None,
        seconds: Histogram | None = None,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self.backlog = Backlog(topics)
        self.reached = reached
        self.limits: Mapping[str, int] = limits or {}
        self.parked: Held | None = None
        self.waiting: Held | None = None
        self.failures: Counter[str] = Counter()
        self.done = Done()
        self.verified: Verified | None = None
        self.verify_failures: Counter[str] = Counter()

    def advanced(self, reached: Reached, limits: Mapping[str, int]) -> None:
        """Record that a batch has ended well, with or without work, and what the view has applied."""
        self.reached, self.limits = reached, limits
        self.parked = self.waiting = None

    def worked(self, rows: int, late_rows: int, milliseconds: Mapping[str, int]) -> None:
        """Record the results of a batch that had work to do; `milliseconds` are its stages."""
        done = self.done
        self.done = Done(done.batches + 1, done.rows + rows, done.late_rows + late_rows, time.time())
        if self._seconds is not None:
            for stage, each in milliseconds.items():
                self._seconds.labels(self._name, stage).observe(each / 1000)

    def park(self, error: TailraceError, pause_s: float) -> None:
        """Record a failed batch, which is tried again after the pause; the view is parked until one ends well."""
        now = time.time()
        since = self.parked.since if self.parked else now
        self.failures[error.code] += 1
        self.parked, self.waiting = Held(error.code, error.message, since, now + pause_s), None

    def wait(self, error: TailraceError) -> None:
        """Record what the view waits for."""
        since = self.waiting.since if self.waiting else time.time()
        self.waiting = Held(error.code, error.message, since)

    def lag(self, now: float) -> Lag | None:
        """Return the changes on the topics that the view lacks; None while unknown."""
        return self.backlog.lag(self.reached, now)

    def stops_at(self) -> dict[str, float]:
        """Return, by error code, when the view stops unless it advances before; nothing while that is unknown.

        The checks of a batch count from the same time, so a batch that begins later fails.
        """
        reached = self.reached
        if reached is None or not reached.level_ms:
            return {}
        return {code: (reached.level_ms + limit) / 1000 for code, limit in self.limits.items()}

    def body(self, now: float) -> dict[str, Any]:
        """Return the view's part of the `/readyz` response."""
        found: dict[str, Any] = {}
        if (lag := self.lag(now)) is not None:
            found["lag_seconds"] = lag.seconds
        if self.reached is not None:
            found["lsn"] = format_lsn(self.reached.cut.flushed_lsn)
        for name, held in (("parked", self.parked), ("waiting", self.waiting)):
            if held is not None:
                found[name] = {"code": held.code, "message": held.message, "since": _utc(held.since)}
                if held.retry_at is not None:
                    found[name]["retry_at"] = _utc(held.retry_at)
        return found


class JobHealth:
    """Health of a views job. Its main thread writes `state`, `turned_at` and `views`, the watch the other attributes.

    `looked_at` is when the topics' position was read last, `kafka_error` why it cannot be read now. `url` is
    that of the HTTP server, None if there is none.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.state: State = "starting"
        self.turned_at = time.monotonic()
        self.views: Mapping[str, ViewHealth] = {}
        self.looked_at: float | None = None
        self.kafka_error: str | None = None
        described = VIEWS["view_batch_seconds"]
        self.seconds = Histogram(
            f"{PREFIX}view_batch_seconds", described.text, described.labels, registry=None, buckets=_BUCKETS
        )

    def begin(self, views: Mapping[str, ViewHealth]) -> None:
        """Record that Spark has started and the batches of these views begin."""
        self.turned_at = time.monotonic()
        self.views, self.state = views, "running"

    def turned(self) -> None:
        """Record a turn of the loop that begins batches."""
        self.turned_at = time.monotonic()

    def stop(self) -> None:
        """Record that the job ends when the running batches have ended."""
        self.state = "stopping"

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the loop runs (if not, a restart helps), and the response body; outages do not count."""
        turned_s = time.monotonic() - self.turned_at
        live = self.state != "running" or turned_s < _TURN_S
        return live, {"live": live, "state": self.state, "loop_turned_s_ago": round(turned_s, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether batches run, and the response body with the reason if not.

        A parked view is in the body and does not matter otherwise, because other views advance; unless all are parked.
        """
        now = time.time()
        reason = self._not_ready()
        body: dict[str, Any] = {"ready": reason is None, "state": self.state}
        if reason is not None:
            body["reason"] = reason
        body["views"] = {name: view.body(now) for name, view in self.views.items()}
        return reason is None, body

    def _not_ready(self) -> str | None:
        if self.state != "running":
            return "Spark is starting" if self.state == "starting" else "the job is stopping"
        if self.kafka_error is not None:
            return self.kafka_error
        if self.views and all(view.parked for view in self.views.values()):
            return "all views are parked"
        return None


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
