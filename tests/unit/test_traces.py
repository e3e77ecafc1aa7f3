"""Traces of OpenTelemetry: their ids, their share, and what is imported for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.check.host import check_host
from tailrace.schemas.config.model import Config, Kafka, Source
from tailrace.schemas.config.model import Traces as Settings
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.sinks.tracing.traces import Traces
from tests.support.otlp import Receiver, receiver

_CUT = Cut(Position(1, 4711, 3), 4720, 1_000_000, "1", 1)


@pytest.fixture
def received() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def _config(received: Receiver | None, prefix: str = "p", share: float = 1.0) -> Config:
    traces = Settings(endpoint=received.url, share=share) if received else Settings()
    return Config(source=Source(dsn="host=none"), kafka=Kafka(prefix=prefix), traces=traces)


def _send(config: Config, cuts: list[Cut], began_ns: int) -> None:
    """Send each transaction by one process, and a batch that ends at it by another."""
    with Traces(config, "daemon", pytest.fail) as daemon, Traces(config, "views", pytest.fail) as job:
        for cut in cuts:
            daemon.committed(cut, 1, began_ns)
            job.applied(cut, {"view": "v"}, began_ns, {})


def test_processes_choose_the_same_share_of_the_traces(received: Receiver) -> None:
    cuts = [replace(_CUT, position=Position(1, 4711 + n, 3)) for n in range(60)]
    _send(_config(received, share=0.5), cuts, time.time_ns())
    chosen = {each.trace for each in received.named("commit to topic")}
    assert 10 < len(chosen) < 50
    assert sorted(each.trace for each in received.named("topic to view")) == sorted(chosen)


def test_pipelines_with_one_position_have_different_traces(received: Receiver) -> None:
    for prefix in ("p", "q"):
        _send(_config(received, prefix), [_CUT], time.time_ns())
    assert len({each.trace for each in received.named("commit to topic")}) == 2


def test_a_transaction_without_records_or_of_a_clock_ahead_has_no_negative_span(received: Receiver) -> None:
    began_ns = time.time_ns()
    ahead = replace(_CUT, commit_ts_us=began_ns // 1000 + 60_000_000)
    with Traces(_config(received), "daemon", pytest.fail) as daemon:
        daemon.committed(_CUT, 0, began_ns)
        daemon.committed(ahead, 1, began_ns)
        daemon.committed(replace(_CUT, commit_ts_us=0), 1, began_ns)
    roots = received.named("commit to topic")
    assert [each.began_ns for each in roots] == [began_ns, began_ns]
    assert all(each.ended_ns >= began_ns for each in roots)


def test_without_the_package_an_endpoint_is_refused(received: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match="TR-110") as refused:
        Traces(_config(received), "daemon", pytest.fail)
    assert "pip install 'tailrace[traces]'" in str(refused.value)
    findings = Findings()
    check_host(_config(received), findings, runs=True)
    assert [(each.id, each.severity) for each in findings.sorted()] == [("TR-110", Severity.STOP)]
    findings = Findings()
    check_host(_config(None), findings, runs=True)
    assert findings.sorted() == []
    with Traces(_config(None), "daemon", pytest.fail) as off:
        off.committed(_CUT, 1, 0)
