"""Liveness and readiness of the daemon, and the reasons that it gives."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from structlog.testing import capture_logs

from tailrace.cdc.daemon.metrics import HealthCollector
from tailrace.cdc.health.health import STATES, Health, Stall
from tailrace.cdc.health.lag import LagMeter
from tailrace.cdc.health.source_state import SourceState
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.startup.renew_topics import FillReport
from tailrace.cdc.tables.position import new_origin
from tailrace.schemas.errors import SinkError, SourceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.metrics import DAEMON
from tailrace.schemas.records.layout import Parked
from tailrace.schemas.records.position import Cut, Diverted
from tailrace.sinks.kafka.skip_offsets import Fill
from tailrace.sinks.serving.families import Metrics

_CUT = Cut(Position(1, 400, 0), 401, 1_700_000_000_000_000, "1", 1, {})


def test_a_streaming_daemon_is_live_while_its_loop_turns() -> None:
    health = Health("s")
    health.streaming()
    assert health.live()[0]
    health.turned_at = time.monotonic() - 200
    assert not health.live()[0]
    # a daemon that does not stream has no loop that could hang
    for state in STATES:
        health.state = state
        assert health.live()[0] is (state != "streaming")


def test_a_daemon_is_ready_while_changes_flow_or_it_stands_by() -> None:
    health = Health("s")
    found = {}
    for state in STATES:
        health.state = state
        found[state] = health.ready()[0]
    assert found == {"starting": False, "copying": True, "streaming": True, "standby": True, "retrying": False}


def test_lag_is_the_age_of_undelivered_changes_or_unknown() -> None:
    lag = LagMeter()
    assert lag.seconds(100.0) is None
    # a start: the WAL ends at 900, Kafka has all to 500
    lag.resume(500, 900)
    lag.delivered(600)
    lag.saw_wal(99.0, 900)
    assert lag.seconds(100.0) is None
    lag.pending(90_000_000)
    assert lag.seconds(100.0) == 10
    lag.delivered(900)
    assert lag.seconds(100.0) == 0
    # WAL without captured changes, as the server says later
    lag.saw_wal(100.0, 950)
    assert lag.seconds(101.0) == 0
    lag.delivered(950)
    assert lag.seconds(119.0) == 0
    # the server has not been seen since
    assert lag.seconds(121.0) is None
    # reading has stopped
    lag.saw_wal(200.0, 990)
    lag.saw_wal(205.0, 995)
    assert lag.seconds(203.9) == 0
    assert lag.seconds(210.0) == 10
    lag.delivered(992)
    assert lag.seconds(211.0) == 6


def test_a_lag_outlives_its_session() -> None:
    lag = LagMeter()
    lag.resume(500, 500)
    lag.saw_wal(30.0, 500)
    lag.delivered(500)
    lag.pending(10_000_000)
    lag.pending(10_000_000)
    lag.resume(500, 700)
    # what had been read is read again
    lag.delivered(500)
    assert lag.seconds(30.0) == 20
    lag.pending(10_000_000)
    lag.delivered(600)
    lag.pending(25_000_000)
    assert lag.seconds(30.0) == 5
    lag.delivered(700)
    assert lag.seconds(30.0) == 0


def test_lag_is_in_metrics_and_readiness() -> None:
    health = Health("s")
    health.streaming()
    assert b"\ntailrace_lag_seconds " not in Metrics(HealthCollector(health)).text()
    assert "lag_seconds" not in health.ready()[1]
    health.lag.resume(1, 1)
    health.lag.saw_wal(time.time(), 1)
    health.lag.delivered(1)
    assert b"tailrace_lag_seconds 0.0" in Metrics(HealthCollector(health)).text()
    assert health.ready()[1]["lag_seconds"] == 0
    health.source_error = "password authentication failed"
    assert "lag_seconds" not in health.ready()[1]
    health.source_error = None
    health.failed(SourceError("TR-201", "the role's password is refused"))
    assert "lag_seconds" not in health.ready()[1]
    health.failed(SinkError("TR-301", "no answer from Kafka"))
    assert health.ready()[1]["lag_seconds"] == 0
    health.failed(SourceError("TR-201", "the role's password is refused"))
    health.lag.pending(int((time.time() - 60) * 1e6))
    assert 60 <= health.ready()[1]["lag_seconds"] < 70
    health.state = "standby"
    assert "lag_seconds" not in health.ready()[1]


def test_dead_letters_are_counted_by_table() -> None:
    health = Health("s")
    tables = {"public.t": Diverted(3, 1_700_000_000_500)}
    health.record = replace(new_origin(1, 400, "1", 1, (1, 2), []), diverted=5, diverted_tables=tables)
    found = Metrics(HealthCollector(health)).text()
    assert b"\ntailrace_diverted_changes_total 5.0" in found
    assert b'\ntailrace_table_diverted_changes_total{table="public.t"} 3.0' in found
    assert b'\ntailrace_table_diverted_timestamp_seconds{table="public.t"} 1.7000000005e+09' in found


def test_every_metric_that_is_described_is_collected() -> None:
    """The reference page is made from the descriptions."""
    health = Health("s")
    health.streaming()
    health.record = replace(new_origin(1, 400, "1", 1, (1, 2), []), here=_CUT)
    health.committed_at = health.full_at = time.time()
    health.lag.resume(1, 1)
    health.lag.saw_wal(time.time(), 1)
    health.lag.delivered(1)
    slot = Slot("s", "pgoutput", "d", 1, 400, 300, "reserved", 1000, False)
    health.source = SourceState(time.time(), 500, False, slot, 400, None, None)
    assert {name for name, _ in HealthCollector(health).samples()} == DAEMON.keys() - {"build_info"}


def test_readiness_names_the_reason_and_the_error() -> None:
    health = Health("s")
    assert health.ready()[1]["reason"] == "the slot is not acquired yet"
    health.failed(SinkError("TR-301", "no answer from Kafka", hint="Look."))
    ready, body = health.ready()
    assert not ready
    assert body["reason"] == "no answer from Kafka"
    assert body["error"] == {"code": "TR-301", "message": "no answer from Kafka", "hint": "Look."}
    assert b'tailrace_errors_total{code="TR-301"} 1.0' in Metrics(HealthCollector(health)).text()
    health.streaming()
    assert health.ready() == (True, {"ready": True, "state": "streaming", "slot": "s"})
    health.kafka_error = "no answer"
    assert health.ready()[1]["reason"] == "no answer"
    health.stall = Stall(0.0, "a commit takes long")
    assert health.ready()[1]["reason"] == "a commit takes long"
    assert health.ready()[1]["stalled_since"] == "1970-01-01T00:00:00+00:00"


def test_a_start_that_fills_a_topic_says_how_far_it_is_and_is_live() -> None:
    health = Health("s")
    health.failed(SinkError("TR-301", "no answer from Kafka"))
    health.fills(Fill("app.public.t", 50_000, 120_000))
    assert health.live()[0]
    ready, body = health.ready()
    assert (ready, body["state"]) == (False, "starting")
    assert body["reason"] == 'topic "app.public.t" is created again: 50000 of 120000 offsets are filled'
    health.fills(None)
    health.streaming()
    assert health.ready()[0]


def test_a_long_fill_is_logged_at_its_begin_and_every_ten_seconds() -> None:
    health, stop, now = Health("s"), threading.Event(), 1000.0
    report = FillReport(health, stop, lambda: now)
    with capture_logs() as lines:
        for topic in ("app.public.t", "app.public.u"):
            for done in range(0, 125_000, 1000):
                assert report.may_continue(Fill(topic, done, 125_000))
                assert health.fill == Fill(topic, done, 125_000)
                now += 0.25
    begun = [line for line in lines if line["event"] == "topic is being filled with aborted records"]
    assert [(line["topic"], line["records"]) for line in begun] == [
        ("app.public.t", 125_000),
        ("app.public.u", 125_000),
    ]
    progress = [line for line in lines if line["event"] == "topic fill progress"]
    assert [line["records"] for line in progress] == ["40000/125000", "80000/125000", "120000/125000"] * 2
    assert [line["seconds_left"] for line in progress[:3]] == [21, 11, 1]
    stop.set()
    assert not report.may_continue(Fill("app.public.u", 124_000, 125_000))


def test_readiness_lists_parked_tables_and_stays() -> None:
    """Other tables flow. A standby, and an operator who left the table out, need no reminder."""
    health = Health("s")
    health.streaming()
    health.parked = {
        "public.t": Parked("TR-220", "a value", "", 77, 1_000),
        "public.u": Parked("TR-430", "", "", 77, 2_000, left_out=True),
    }
    ready, body = health.ready()
    assert ready
    assert body["parked_tables"] == [{"table": "public.t", "code": "TR-220", "since": "1970-01-01T00:00:01+00:00"}]
    health.state = "standby"
    assert "parked_tables" not in health.ready()[1]
