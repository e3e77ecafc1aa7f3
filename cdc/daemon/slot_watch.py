"""Slot monitor: retained WAL, forecast, stalls and heartbeats.

It has its own thread and connection, so that it can report when the stream is blocked.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import psycopg
import structlog

from tailrace.cdc.changes.logical_messages import OWN
from tailrace.cdc.daemon.membership_watch import MembershipWatch
from tailrace.cdc.daemon.topic_watch import TopicWatch
from tailrace.cdc.health.forecast import Alarm, Growth, Level, level_of, seconds_to_full
from tailrace.cdc.health.health import Health, Stall
from tailrace.cdc.health.source_state import SourceState, source_state
from tailrace.cdc.health.stall import Recovery, Standstill, cause_of
from tailrace.cdc.postgres.connect import connect
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import format_lsn, parse_lsn

log = structlog.get_logger()

_EVERY_S: Final = 5.0
_ANSWER_S: Final = 5.0
_PING_S: Final = 3.0
_STALL_AGAIN_S: Final = 600.0
_RESUMES: Final = "the outage is over, and the stream resumes"

_HEARTBEAT_BYTES: Final = 65_536
"""Minimum unconfirmed WAL for a heartbeat, which writes WAL itself: an idle server stays idle."""


class SlotWatch:
    """Monitor that updates the second part of `Health` while its block runs."""

    def __init__(self, config: Config, health: Health) -> None:
        self._dsn = config.source.dsn.get_secret_value()
        self._slot = config.source.slot
        self._health = health
        self._connection: psycopg.Connection | None = None
        self._growth = Growth()
        self._alarm = Alarm()
        self._standstill = Standstill(config.health.stall_s)
        self._recovery = Recovery()
        self._stall_said: tuple[str, float] | None = None
        self._quiet = Standstill(config.source.heartbeat_s) if config.source.heartbeat_s else None
        self._beat_lsn = 0
        self._membership = MembershipWatch(config.source)
        self._topics = TopicWatch(config.kafka)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="slot-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(0.5)

    def _work(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                log.exception("slot watch failed; it continues")
            if self._closed.wait(_EVERY_S):
                return

    def _look(self) -> None:
        health = self._health
        before = health.source
        source = self._ask()
        health.kafka_error = self._ping()
        if source is not None:
            health.source = source
            self._reckon(source)
        # the rest is the task of the active daemon, not of a standby
        if health.state == "standby":
            health.stall = None
            self._standstill.look(time.monotonic(), None, behind=False)
            return
        if source is not None:
            self._warn(source)
            self._beat(source)
            self._compare_membership()
        if health.kafka_error is None and health.record is not None:
            self._topics.look(health.record)
            health.lost_topics = self._topics.lost
        self._see_stall(source, before)

    def _ask(self) -> SourceState | None:
        try:
            if self._connection is None:
                self._connection = connect(self._dsn, application_name="tailrace watch")
                # a heartbeat need not wait for the disk or for a synchronous standby
                self._connection.execute("SET synchronous_commit = off")
            with _deadline(self._connection, _ANSWER_S):
                source = source_state(self._connection, self._slot)
            self._health.source_error = None
            return source
        except TailraceError as error:
            self._health.source_error = error.message
        except psycopg.Error as error:
            self._health.source_error = f"PostgreSQL does not answer: {' '.join(str(error).split())}"
            self._drop_connection()
        return None

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ping(self) -> str | None:
        sink = self._health.sink
        if sink is None:
            return None
        try:
            sink.ping(_PING_S)
        except TailraceError as error:
            return f"{error.message}: {error.detail}"
        return None

    def _reckon(self, source: SourceState) -> None:
        """Compute the forecast and pass the end of the WAL to the lag meter."""
        health = self._health
        if source.slot is not None and source.retained_bytes is not None:
            self._growth.add(source.at, source.retained_bytes)
            left_s = seconds_to_full(source.slot.safe_wal_size, self._growth.rate())
            health.full_at = None if left_s is None else source.at + left_s
        health.lag.saw_wal(source.at, source.wal_lsn)

    def _warn(self, source: SourceState) -> None:
        found, retained = source.slot, source.retained_bytes
        if found is None or retained is None:
            return
        full_at = self._health.full_at
        left_s = None if full_at is None else full_at - source.at
        level = level_of(found, retained, left_s)
        if not self._alarm.speaks(time.monotonic(), level):
            return
        say = log.info if level is Level.SAFE else log.error if level is Level.DANGER else log.warning
        say(
            "slot no longer close to its WAL limit" if level is Level.SAFE else "slot close to its WAL limit",
            slot=found.name,
            retained_bytes=retained,
            safe_wal_bytes=found.safe_wal_size,
            wal_status=found.wal_status,
            hours_to_full=None if left_s is None else round(left_s / 3600, 1),
            oldest=str(source.oldest) if source.oldest else None,
        )

    def _compare_membership(self) -> None:
        if self._connection is None:
            return
        try:
            with _deadline(self._connection, _ANSWER_S):
                self._membership.look(self._connection)
        except psycopg.Error:
            self._drop_connection()  # the next query reports the error
        self._health.missing = self._membership.missing

    def _see_stall(self, source: SourceState | None, before: SourceState | None) -> None:
        health = self._health
        record = health.record
        # no answer: there may be WAL; no record: the start takes long
        behind = source is None or record is None or source.wal_lsn > record.here.flushed_lsn
        stood_s = self._standstill.look(time.monotonic(), health.moved, behind=behind)
        recovers = self._recovery.look(time.monotonic(), health, source)
        if stood_s is None:
            if health.stall is not None:
                log.info("stall ended", lasted_s=round(time.time() - health.stall.since))
            health.stall = self._stall_said = None
            return
        if recovers:
            # a cause is only logged if the position does not follow
            if health.stall is not None:
                health.stall = Stall(health.stall.since, _RESUMES)
            return
        cause = cause_of(health, source, before)
        health.stall = Stall(health.stall.since if health.stall else time.time() - stood_s, cause)
        said = self._stall_said
        if said is None or said[0] != cause or time.monotonic() - said[1] > _STALL_AGAIN_S:
            self._stall_said = cause, time.monotonic()
            log.error(
                "position stalled although there is WAL",
                cause=cause,
                for_s=round(stood_s),
                flushed_lsn=format_lsn(record.here.flushed_lsn) if record else None,
                wal_lsn=format_lsn(source.wal_lsn) if source else None,
            )

    def _beat(self, source: SourceState) -> None:
        """Write a logical message if nothing else moves the slot.

        Usually keepalives do, but a walsender that never catches up with unrelated WAL sends none.
        """
        health, record = self._health, self._health.record
        if self._quiet is None or record is None or health.state != "streaming" or source.read_only:
            return
        flushed_lsn = record.here.flushed_lsn
        stood_s = self._quiet.look(
            time.monotonic(), flushed_lsn, behind=source.wal_lsn - flushed_lsn >= _HEARTBEAT_BYTES
        )
        if stood_s is None or flushed_lsn < self._beat_lsn:
            return
        assert self._connection is not None
        try:
            with _deadline(self._connection, _ANSWER_S):
                row = self._connection.execute(
                    "SELECT pg_logical_emit_message(true, %s, '')::text", (f"{OWN}{self._slot}:heartbeat",)
                ).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            log.warning("heartbeats disabled: permission denied", slot=self._slot, error=" ".join(str(error).split()))
            self._quiet = None
            return
        except psycopg.Error:
            self._drop_connection()  # the next query reports the error
            return
        assert row is not None
        self._beat_lsn = parse_lsn(row[0])
        health.heartbeats += 1


@contextmanager
def _deadline(connection: psycopg.Connection, seconds: float) -> Iterator[None]:
    """Break the connection if the block takes longer: psycopg itself waits forever for a frozen server."""
    timer = threading.Timer(seconds, _break, [connection.pgconn.socket])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _break(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as broken:
        broken.shutdown(socket.SHUT_RDWR)
