"""Conditions under which missing progress is a stall, and the causes that are named."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tailrace.cdc.health.health import Health
from tailrace.cdc.health.source_state import OpenTransaction, SourceState
from tailrace.cdc.health.stall import Recovery, Standstill, cause_of
from tailrace.cdc.postgres.slot import Slot
from tailrace.schemas.errors import SinkError
from tailrace.sinks.kafka.skip_offsets import Fill


def test_no_stall_without_wal_to_read() -> None:
    still = Standstill(60)
    assert all(still.look(now, 1, behind=False) is None for now in range(0, 600, 5))


def test_no_stall_while_the_position_moves() -> None:
    still = Standstill(60)
    assert all(still.look(now, now // 50, behind=True) is None for now in range(0, 600, 5))


def test_a_stall_is_counted_from_the_last_move() -> None:
    still = Standstill(60)
    for now in range(0, 100, 5):
        still.look(now, 1, behind=False)
    assert still.look(100, 2, behind=True) is None
    assert still.look(159, 2, behind=True) is None
    assert still.look(160, 2, behind=True) == 60
    assert still.look(170, 2, behind=True) == 70
    assert still.look(175, 3, behind=True) is None
    assert still.look(230, 3, behind=True) is None


def test_a_start_that_fills_a_topic_moves() -> None:
    still, health = Standstill(60), Health("s")
    for now in range(0, 600, 5):
        health.fills(Fill("app.public.t", now, 1000))
        assert still.look(now, health.moved, behind=True) is None
    assert still.look(650, health.moved, behind=True) is None
    assert still.look(655, health.moved, behind=True) == 60, "Kafka does not answer"
    assert '"app.public.t"' in cause_of(health, source(), source())
    health.fills(None)
    assert still.look(660, health.moved, behind=True) is None


def source(sent_lsn: int | None = 500, wait_event: str | None = None, active_pid: int | None = 7) -> SourceState:
    open_since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return SourceState(
        at=0.0,
        wal_lsn=1000,
        read_only=False,
        slot=Slot("s", "pgoutput", "d", active_pid, 400, 300, "reserved", None, False),
        sent_lsn=sent_lsn,
        wait_event=wait_event,
        oldest=OpenTransaction("77", 12, "idle in transaction", open_since),
    )


def streaming() -> Health:
    health = Health("s")
    health.state = "streaming"
    return health


@pytest.mark.parametrize(
    ("now", "before", "cause"),
    [
        (source(wait_event="WalSenderWriteData"), source(), "waits for this process to read"),
        (source(wait_event="WalSenderWaitForWal"), source(), "all WAL has been sent"),
        (source(wait_event="ReorderBufferRead"), source(), "a large transaction is being decoded"),
        (source(), source(), "a large transaction is being decoded"),
        (source(sent_lsn=600), source(), "reading: WAL arrives"),
        (source(active_pid=None), source(), "no process reads the slot"),
        (None, source(), "PostgreSQL has not been queried"),
    ],
)
def test_the_cause_at_the_source_is_named(now: SourceState | None, before: SourceState, cause: str) -> None:
    assert cause in cause_of(streaming(), now, before)


def test_kafka_is_named_before_the_source() -> None:
    health = streaming()
    health.committing_since = time.time() - 30
    assert "Kafka has not answered the commit begun at 20" in cause_of(health, source(), source())
    health.kafka_error = "no answer from Kafka at here"
    assert cause_of(health, source(), source()) == "no answer from Kafka at here"


def test_a_stream_that_resumes_after_an_outage_has_time_to_commit() -> None:
    health, recovery = streaming(), Recovery()
    assert not recovery.look(0, health, source())
    for outage in ("kafka", "source", "session", "commit"):
        health.kafka_error = "no answer from Kafka at here" if outage == "kafka" else None
        health.state = "retrying" if outage == "session" else "streaming"
        health.committing_since = time.time() - 30 if outage == "commit" else None
        assert not recovery.look(100, health, None if outage == "source" else source()), outage
        health.kafka_error = health.committing_since = None
        health.state = "streaming"
        assert recovery.look(105, health, source()), outage
        assert not recovery.look(130, health, source()), outage
        recovery = Recovery()


def test_a_start_names_the_open_transaction_that_it_waits_for() -> None:
    health = Health("s")
    expected = "the end of transaction 77 of process 12 (idle in transaction), open since 2026-01-02 03:04:05Z"
    being_made = replace(source(), slot=None)
    assert expected in cause_of(health, being_made, None)
    assert cause_of(health, source(), None) == "starting"
    health.failed(SinkError("TR-301", "no answer from Kafka"))
    assert cause_of(health, source(), None) == "restarting after TR-301: no answer from Kafka"
