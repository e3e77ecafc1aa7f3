"""Collector of the status page: three threads, one snapshot that all clients share.

One thread samples the daemon's health every five seconds and, while somebody looks, renders the page every second.
Another one reads PostgreSQL and Kafka, only while somebody looks, and rests at least three times as long as it read.
The third one is that of `checks.py`. Memory: one hour of samples, one status, one check, one rendered page.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import structlog

from tailrace.cdc.health.health import Health
from tailrace.cdc.operations.read_lag import WaitingChanges
from tailrace.cdc.operations.read_status import FromInside, read_pipeline
from tailrace.cdc.operations.status import Status
from tailrace.cdc.operations.table_states import TableInfo, table_infos
from tailrace.cdc.page.charts import Chart, chart
from tailrace.cdc.page.checks import Checks
from tailrace.cdc.page.contents import Contents, Known, charts_of, contents, oldest_view
from tailrace.cdc.page.history import EVERY_S, History, measured
from tailrace.cdc.page.watched import Watched
from tailrace.schemas.config.model import Config

log = structlog.get_logger()

_TICK_S: Final = 1.0
_RECENT_S: Final = 15.0
"""Age in seconds up to which the status of the servers counts as recent."""

_KAFKA_S: Final = 1.5
_LEAST_REST_S: Final = 1.0
_MOST_REST_S: Final = 30.0
_REST_SHARE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Rendered:
    """The page's main part; `version` rises when its text changes, `read_at` is the time of its status."""

    version: int = 0
    html: str = ""
    read_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Read:
    at: float = 0.0
    status: Status | None = None
    tables: Sequence[TableInfo] = ()


class Collector:
    """Owner of the page's data. `start` and `close` begin and end its threads; `current` may be read by any thread."""

    def __init__(self, config: Config, health: Health, render: Callable[[Contents], str]) -> None:
        self._config = config
        self._health = health
        self._render = render
        self._version = version("tailrace")
        self._history = History()
        self._charts: Sequence[Chart] = ()
        self._read = _Read()
        self._watched = Watched()
        self._news = threading.Event()
        self._checks = Checks(config, self._watched, self._news.set)
        self.current = Rendered()

    def start(self) -> None:
        """Begin to sample."""
        for name, work in (("page", self._sample_and_render), ("page-status", self._read_servers)):
            threading.Thread(target=work, name=name, daemon=True).start()
        self._checks.start()

    def close(self) -> None:
        """End the threads; a request to a server that is under way is not waited for."""
        self._watched.close()
        self._news.set()

    @property
    def closed(self) -> bool:
        """Whether the daemon ends."""
        return self._watched.closed

    @property
    def is_complete(self) -> bool:
        """Whether the current page has a recent status of the servers."""
        return time.time() - self.current.read_at < _RECENT_S

    def look(self) -> None:
        """Record that somebody looks at the page now."""
        self._watched.look()

    def _sample_and_render(self) -> None:
        sampled_at = float("-inf")
        while not self.closed:
            self._news.wait(_TICK_S)
            self._news.clear()
            try:
                now = time.time()
                if new := time.monotonic() - sampled_at >= EVERY_S:
                    sampled_at = time.monotonic()
                    self._history.add(measured(self._health, oldest_view(self._read.status), now))
                if self._watched.now:
                    self._draw(now, charts=new or not self._charts)
            except Exception:
                log.exception("status page failed; it continues")

    def _draw(self, now: float, *, charts: bool) -> None:
        if charts:
            self._charts = charts_of(self._history, now, chart)
        read = self._read
        known = Known(self._health, self._history, read.status, read.at, read.tables, self._checks.current)
        html = self._render(contents(self._config, known, self._charts, self._version, now))
        before = self.current
        self.current = Rendered(before.version + (html != before.html), html, read.at)

    def _read_servers(self) -> None:
        waiting = WaitingChanges()
        while self._watched.wait():
            began = time.monotonic()
            try:
                answer = {"pid": os.getpid(), **self._health.ready()[1]}
                inside = FromInside(answer, self._health.reads)
                status, reads = read_pipeline(self._config, waiting, inside, _KAFKA_S)
                tables = table_infos(reads.states) if reads is not None else self._read.tables
                self._read = _Read(time.time(), status, tables)
                self._news.set()
            except Exception:
                log.exception("status page could not read the status; it continues")
            took_s = time.monotonic() - began
            self._watched.rest(min(_MOST_REST_S, max(_LEAST_REST_S, _REST_SHARE * took_s)))
