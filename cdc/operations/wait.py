"""Read your writes: wait until views have applied all changes committed on the source before an LSN."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.cdc.operations.read_status import read_stored, read_waits
from tailrace.cdc.operations.table_waits import sentence, waited_for
from tailrace.cdc.operations.views import named
from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import DeadlineError, SinkError, TailraceError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTail

_LOOK_S: Final = 0.1
"""Maximum duration of one poll of the topic, and so the maximum delay until a waiter notices a change."""


class AppliedViews(Closes):
    """Applied LSN of each view, for any number of waiting threads; one of them reads for all.

    One consumer, opened by the first wait. Memory: one record for each view.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tail: ViewsTail | None = None
        self._records: dict[str, ViewRecord] = {}
        self._news = threading.Condition()
        self._reading = False
        self._closed = False

    def close(self) -> None:
        """End all waits; their callers get an error."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            while self._reading:
                self._news.wait()
            if self._tail is not None:
                self._tail.close()

    def wait(self, lsn: int, views: Sequence[str], timeout_s: float) -> dict[str, int]:
        """Return the applied LSN of each of `views` (all if none is named) once all are at or after `lsn`.

        A later read of them shows every transaction whose commit ended at or before `lsn`. Raises DeadlineError
        (TR-570) after `timeout_s` seconds, ConfigError for an unknown view.
        """
        names = list(named(self._config, views))
        deadline = time.monotonic() + timeout_s
        while True:
            applied, left = self._applied(names), deadline - time.monotonic()
            if all(found is not None and found >= lsn for found in applied.values()):
                return {name: found for name, found in applied.items() if found is not None}
            if left <= 0 and self._tail is not None:
                raise self._late(lsn, applied, timeout_s)
            self._look(min(max(left, 0.0), _LOOK_S))

    def reached(self, views: Sequence[str]) -> dict[str, int | None]:
        """Return the applied LSN of each of `views` (all if none is named) as of the last look; None if unknown."""
        return self._applied(list(named(self._config, views)))

    def _applied(self, names: Sequence[str]) -> dict[str, int | None]:
        records = {name: self._records.get(name) for name in names}
        return {name: record.cut.flushed_lsn if record and record.cut else None for name, record in records.items()}

    def _look(self, seconds: float) -> None:
        """Wait for new records: read them, or wait for the thread that already reads."""
        with self._news:
            if self._closed:
                raise SinkError("TR-586", "the wait was cancelled: this process stops", hint="Repeat the request.")
            if self._reading:
                self._news.wait(_LOOK_S)
                return
            self._reading = True
        try:
            if self._tail is None:
                self._tail = ViewsTail(self._config.kafka, Topics(self._config.kafka.prefix))
            self._records = self._tail.newest(seconds)
        finally:
            with self._news:
                self._reading = False
                self._news.notify_all()

    def _late(self, lsn: int, applied: dict[str, int | None], timeout_s: float) -> DeadlineError:
        late = {name: found for name, found in applied.items() if found is None or found < lsn}
        stands = (f'"{name}" {"has applied nothing" if at is None else format_lsn(at)}' for name, at in late.items())
        errors = (self._records[name].error for name in late if name in self._records)
        reason = next((error.split("\n", 1)[0] for error in errors if error), None) or self._waits(late)
        return DeadlineError(
            "TR-570",
            f"LSN {format_lsn(lsn)} not reached within {timeout_s:g} s",
            detail=f"Applied: {', '.join(stands)}." + (f" Reason: {reason}" if reason else ""),
            hint="tailrace status  # are `tailrace run` and `tailrace views follow` running?",
        )

    def _waits(self, names: Iterable[str]) -> str | None:
        """Return for which incomplete tables the views wait, None if for none; queries Kafka once more."""
        try:
            tables = read_waits(self._config, read_stored(self._config)[0])
        except TailraceError:
            return None
        waits = ((name, waited_for(self._config, name, self._records.get(name), tables)) for name in names)
        found = [f'"{name}" {sentence(each)}' for name, each in waits if each]
        return f"{'; '.join(found)}." if found else None
