"""When standing still is a stall, and what it is put down to."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from cdc.ops.health import Health
from cdc.ops.look import Look, OpenTransaction
from cdc.ops.stall import Standstill, cause_of
from cdc.slot import Slot
from schemas.errors import SinkError


def test_no_stall_without_wal_to_read() -> None:
    still = Standstill(60)
    assert all(still.look(now, 1, behind=False) is None for now in range(0, 600, 5))


def test_no_stall_while_it_moves() -> None:
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


def look(sent_lsn: int | None = 500, wait_event: str | None = None, active_pid: int | None = 7) -> Look:
    open_since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return Look(
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
        (look(wait_event="WalSenderWriteData"), look(), "waits for this process to read"),
        (look(wait_event="WalSenderWaitForWal"), look(), "all WAL has been sent"),
        (look(wait_event="ReorderBufferRead"), look(), "a large transaction is being decoded"),
        (look(), look(), "a large transaction is being decoded"),
        (look(sent_lsn=600), look(), "reading: WAL up to 0/258"),
        (look(active_pid=None), look(), "nobody reads the slot"),
        (None, look(), "PostgreSQL has not been asked"),
    ],
)
def test_causes_at_the_source(now: Look | None, before: Look, cause: str) -> None:
    assert cause in cause_of(streaming(), now, before)


def test_kafka_is_named_before_the_source() -> None:
    health = streaming()
    health.committing_since = time.monotonic() - 30
    assert "a commit to Kafka has taken 30 s" in cause_of(health, look(), look())
    health.kafka_error = "no answer from Kafka at here"
    assert cause_of(health, look(), look()) == "no answer from Kafka at here"


def test_a_start_waits_for_open_transactions() -> None:
    health = Health("s")
    expected = "the end of transaction 77 of process 12 (idle in transaction), open since 2026-01-02 03:04:05Z"
    assert expected in cause_of(health, look(), None)
    health.failed(SinkError("TR-301", "no answer from Kafka"))
    assert cause_of(health, look(), None) == "starting again after TR-301: no answer from Kafka"
