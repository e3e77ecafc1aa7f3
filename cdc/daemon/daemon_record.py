"""The daemon record: its state and how it ended, written to Kafka for `tailrace status` on any host.

A separate thread writes it and never blocks the daemon: the log and `status` themselves report that Kafka is down.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

import structlog

from tailrace.cdc.health.health import Health
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.daemon import DaemonRecord, DaemonState, daemon_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import Reader
from tailrace.sinks.kafka.one_shot import send_alone

log = structlog.get_logger()

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 2.0
"""Timeout for one request to Kafka: a clean stop has 5 s in total."""

_PAUSE_S: Final = 10.0
"""Pause before a failed write is retried."""

_BUG: Final = "a bug in Tailrace; the daemon's log has the error"


@contextmanager
def recorded(config: Config, health: Health) -> Iterator[None]:
    """Maintain the daemon record while the block runs; at its end, record the reason."""
    recorder = _Recorder(config, health)
    closed = threading.Event()
    thread = threading.Thread(target=_watch, args=(recorder, closed), name="daemon-record", daemon=True)
    thread.start()
    ended: tuple[DaemonState, str | None, str | None] = ("stopped", None, None)
    try:
        yield
    except TailraceError as error:
        ended = ("failed", error.code, error.message)
        raise
    except BaseException:
        ended = ("failed", None, _BUG)
        raise
    finally:
        closed.set()
        thread.join(_ANSWER_S)
        # the record belongs to the active daemon, not to a standby
        if health.state != "standby":
            recorder.write(*ended)


def _watch(recorder: _Recorder, closed: threading.Event) -> None:
    while not closed.wait(_EVERY_S):
        recorder.look()


class _Recorder:
    def __init__(self, config: Config, health: Health) -> None:
        self._kafka = config.kafka
        self._topic = Topics(config.kafka.prefix).tables
        self._slot = config.source.slot
        self._health = health
        self._written: tuple[DaemonState, str | None] | None = None
        self._again_at = 0.0

    def look(self) -> None:
        """Write the record if it has changed, except during the pause after a failed write."""
        if time.monotonic() < self._again_at:
            return
        health, error = self._health, self._health.error
        if health.state == "standby":
            self._written = None
        elif health.state == "retrying" and error is not None:
            self.write("retrying", error.code, error.message)
        elif health.state in ("copying", "streaming") or health.fill is not None:
            self.write("running")

    def write(self, state: DaemonState, code: str | None = None, message: str | None = None) -> None:
        """Write the record if state or code has changed; skip it while Kafka does not answer."""
        if self._written == (state, code) or self._health.kafka_error is not None:
            return
        record = DaemonRecord(
            state,
            time.time_ns() // 1_000_000,
            socket.gethostname(),
            os.getpid(),
            version("tailrace"),
            self._health.address,
            code,
            message,
        )
        try:
            # on an empty topic, a record would make the first start look like a second one
            with Reader(self._kafka, self._topic, _ANSWER_S, once=True) as reader:
                bounds = reader.bounds()
            if bounds is not None and bounds[1] > 0:
                send_alone(self._kafka, {self._topic: {daemon_key(self._slot): record.to_json()}}, _ANSWER_S)
                self._written = (state, code)
        except TailraceError as error:
            self._again_at = time.monotonic() + _PAUSE_S
            log.debug("daemon record not written", code=error.code)
