"""Metrics of the views job: its health as values of `schemas.metrics.VIEWS`, collected on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tailrace.schemas.metrics import VIEWS
from tailrace.sinks.serving.families import Metrics, Samples, StateCollector, single
from tailrace.spark_jobs.health.health import Held, JobHealth, ViewHealth

Named = list[tuple[str, ViewHealth]]


class JobCollector(StateCollector):
    """Collector of `JobHealth`; labels are bounded by the views and the registered error codes."""

    def __init__(self, health: JobHealth) -> None:
        super().__init__(VIEWS)
        self._health = health

    def samples(self) -> Iterator[tuple[str, Samples]]:
        health = self._health
        yield "views_ready", single(health.ready()[0])
        if health.looked_at is not None:
            yield "views_looked_timestamp_seconds", single(health.looked_at)
        views = list(health.views.items())
        yield from _positions(views)
        yield from _errors(views)
        yield from _comparisons(views)
        done = [(name, view.done) for name, view in views]
        yield "view_batches", {(name,): each.batches for name, each in done}
        yield "view_rows", {(name,): each.rows for name, each in done}
        yield "view_late_rows", {(name,): each.late_rows for name, each in done}
        yield "view_batch_timestamp_seconds", {(name,): each.at for name, each in done if each.at is not None}


def _positions(views: Named) -> Iterator[tuple[str, Samples]]:
    now = time.time()
    lags = [(name, lag) for name, view in views if (lag := view.lag(now)) is not None]
    yield "view_lag_seconds", {(name,): lag.seconds for name, lag in lags}
    yield "view_lag_bytes", {(name,): lag.wal_bytes for name, lag in lags}
    yield "view_lag_records", {(name,): lag.records for name, lag in lags}
    reached = [(name, view.reached) for name, view in views if view.reached is not None]
    yield "view_applied_lsn_bytes", {(name,): each.cut.flushed_lsn for name, each in reached}
    yield "view_level_timestamp_seconds", {(name,): each.level_ms / 1000 for name, each in reached if each.level_ms}
    stops = ((name, code, at) for name, view in views for code, at in view.stops_at().items())
    yield "view_stop_timestamp_seconds", {(name, code): at for name, code, at in stops}
    limits = ((name, code, limit) for name, view in views for code, limit in view.limits.items())
    yield "view_stop_limit_seconds", {(name, code): limit / 1000 for name, code, limit in limits}


def _errors(views: Named) -> Iterator[tuple[str, Samples]]:
    yield "view_parked", _held((name, view.parked) for name, view in views)
    yield "view_waiting", _held((name, view.waiting) for name, view in views)
    failures = ((name, code, n) for name, view in views for code, n in dict(view.failures).items())
    yield "view_failures", {(name, code): n for name, code, n in failures}


def _comparisons(views: Named) -> Iterator[tuple[str, Samples]]:
    found = [(name, view.verified) for name, view in views if view.verified is not None]
    yield "verified_timestamp_seconds", {(name,): each.at_ms / 1000 for name, each in found}
    yield "verify_differences", {(name,): each.keys for name, each in found}
    failures = ((name, code, n) for name, view in views for code, n in dict(view.verify_failures).items())
    yield "verify_failures", {(name, code): n for name, code, n in failures}


def _held(views: Iterable[tuple[str, Held | None]]) -> Samples:
    return {(name, held.code): 1 for name, held in views if held is not None}


def metrics_of(health: JobHealth) -> Metrics:
    """Return all metrics of a views job and of its Python process; memory of the JVM is not among them."""
    return Metrics(JobCollector(health), health.seconds)
