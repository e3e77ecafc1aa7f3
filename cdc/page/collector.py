"""Collector of the status page: two threads, one snapshot that all clients share.

One thread samples the daemon's health every five seconds and, while somebody looks, renders the page every second. The
other one reads PostgreSQL and Kafka, only while somebody looks, and rests at least three times as long as it read.
Memory: one hour of samples, one status, one rendered page.
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
from tailrace.cdc.page.contents import Contents, Known, charts_of, contents, oldest_view
from tailrace.cdc.page.history import EVERY_S, History, measured
from tailrace.schemas.config.model import Config

log = structlog.get_logger()

_TICK_S: Final = 1.0
_LOOKED_S: Final = 15.0
"""Time after the last request in which the page counts as looked at: a page without JavaScript reloads every 10 s."""

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
        self._looked_at = float("-inf")
        self._wanted = threading.Event()
        self._news = threading.Event()
        self._closed = threading.Event()
        self.current = Rendered()

    def start(self) -> None:
        """Begin to sample."""
        for name, work in (("page", self._sample_and_render), ("page-status", self._read_servers)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def close(self) -> None:
        """End the threads; a request to a server that is under way is not waited for."""
        self._closed.set()
        self._wanted.set()
        self._news.set()

    @property
    def closed(self) -> bool:
        """Whether the daemon ends."""
        return self._closed.is_set()

    @property
    def is_complete(self) -> bool:
        """Whether the current page has a recent status of the servers."""
        return time.time() - self.current.read_at < _LOOKED_S

    def look(self) -> None:
        """Record that somebody looks at the page now."""
        self._looked_at = time.monotonic()
        self._wanted.set()

    @property
    def _watched(self) -> bool:
        return time.monotonic() - self._looked_at < _LOOKED_S

    def _sample_and_render(self) -> None:
        sampled_at = float("-inf")
        while not self._closed.is_set():
            self._news.wait(_TICK_S)
            self._news.clear()
            try:
                now = time.time()
                if new := time.monotonic() - sampled_at >= EVERY_S:
                    sampled_at = time.monotonic()
                    self._history.add(measured(self._health, oldest_view(self._read.status), now))
                if self._watched:
                    self._draw(now, charts=new or not self._charts)
            except Exception:
                log.exception("status page failed; it continues")

    def _draw(self, now: float, *, charts: bool) -> None:
        if charts:
            self._charts = charts_of(self._history, now, chart)
        read = self._read
        known = Known(self._health, self._history, read.status, read.at, read.tables)
        html = self._render(contents(self._config, known, self._charts, self._version, now))
        before = self.current
        self.current = Rendered(before.version + (html != before.html), html, read.at)

    def _read_servers(self) -> None:
        waiting = WaitingChanges()
        while not self._closed.is_set():
            if not self._watched:
                self._wanted.wait()
                self._wanted.clear()
                continue
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
            self._closed.wait(min(_MOST_REST_S, max(_LEAST_REST_S, _REST_SHARE * took_s)))
