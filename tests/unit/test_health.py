"""What makes the daemon live and ready, and what it says when it is not."""

from __future__ import annotations

import time

from cdc.ops.health import STATES, Health, Stall
from cdc.ops.metrics import Metrics
from schemas.errors import SinkError


def test_live_while_the_loop_turns() -> None:
    health = Health("s")
    health.streaming()
    assert health.live()[0]
    health.turned_at = time.monotonic() - 200
    assert not health.live()[0]
    # whoever does not stream has no loop that could hang
    for state in STATES:
        health.state = state
        assert health.live()[0] is (state != "streaming")


def test_ready_where_changes_flow_or_somebody_else_sees_to_it() -> None:
    health = Health("s")
    found = {}
    for state in STATES:
        health.state = state
        found[state] = health.ready()[0]
    assert found == {"starting": False, "copying": True, "streaming": True, "standby": True, "retrying": False}


def test_what_is_wrong_is_named() -> None:
    health = Health("s")
    assert health.ready()[1]["reason"] == "the slot is not attached yet"
    health.failed(SinkError("TR-301", "no answer from Kafka", hint="Look."))
    ready, body = health.ready()
    assert not ready
    assert body["reason"] == "no answer from Kafka"
    assert body["error"] == {"code": "TR-301", "message": "no answer from Kafka", "hint": "Look."}
    assert b'tailrace_errors_total{code="TR-301"} 1.0' in Metrics(health).text()
    health.streaming()
    assert health.ready() == (True, {"ready": True, "state": "streaming", "slot": "s"})
    health.kafka_error = "no answer"
    assert health.ready()[1]["reason"] == "no answer"
    health.stall = Stall(0.0, "a commit takes long")
    assert health.ready()[1]["reason"] == "a commit takes long"
    assert health.ready()[1]["stalled_since"] == "1970-01-01T00:00:00+00:00"
