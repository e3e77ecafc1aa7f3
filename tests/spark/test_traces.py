"""Traces of OpenTelemetry lead from COMMIT over the topic to the views, whichever process sends them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Warehouse
from tailrace.spark_jobs.topics.records import Records
from tests.spark.test_repair import maintained, shared_by_a_job
from tests.support.daemon import events, running, wait_for_state, wait_until, write_config
from tests.support.otlp import Receiver, Span, receiver

Write = Callable[..., Path]


@pytest.fixture
def received() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def test_a_trace_leads_from_commit_to_the_views(
    servers: Servers,
    database: str,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    warehouse: Warehouse,
    received: Receiver,
) -> None:
    rows, sums = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("rows", "sums"))
    sections = f'[traces]\nendpoint = "{received.url}"\n[spark]\ntrigger_interval_ms = 50\n[warehouse]\n'
    sections += f'uri = "{warehouse.uri}"\nlocation = "{warehouse.location}"\nnamespace = "{warehouse.namespace}"\n'
    sections += f'[views.{rows}]\ntable = "public.t"\n'
    sections += f'[views.{sums}]\nquery = "SELECT n, count(*) AS many FROM public.t GROUP BY n"\nkey = ["n"]\n'
    file = write_config(tmp_path, database, servers.bootstrap, prefix, sections)
    config = load(file)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
        with running(file) as daemon:
            wait_for_state(config, connection)
            with shared_by_a_job(config, spark, Records(spark, config.kafka)) as shared, maintained(shared):
                wait_until(lambda: all(received.named("topic to view", view=name) for name in (rows, sums)))
                before = time.time_ns()
                connection.execute("UPDATE t SET n = -471100")

                def batches() -> list[Span]:
                    """Return the batches of the update, one of each view."""
                    return [
                        each
                        for name in (rows, sums)
                        for each in received.named("topic to view", view=name)
                        if each.began_ns > before
                    ]

                wait_until(lambda: len(batches()) == 2)
            wait_until(lambda: any(each.id == batches()[0].parent for each in received.spans))
            assert daemon.stop() == 0
    (root,) = [each for each in received.spans if each.id == batches()[0].parent]
    (end,) = [each for each in received.spans if each.parent == root.id and each.name == "kafka transaction"]
    assert (root.service, root.name, root.parent) == ("tailrace", "commit to topic", "")
    assert root.values["tailrace.records"] == 1
    # the servers are on one machine, so their clocks are one
    assert before < root.began_ns < end.began_ns < root.ended_ns == end.ended_ns < time.time_ns()
    for batch, changed in zip(batches(), (1, 2), strict=True):
        assert (batch.service, batch.trace, batch.parent) == ("tailrace-views", root.trace, root.id)
        assert batch.values["tailrace.rows"] == changed
        # the job may read a transaction before its producer is told that it is committed
        assert end.began_ns < batch.began_ns < batch.ended_ns
        for name in ("tailrace.position", "tailrace.lsn"):
            assert batch.values[name] == root.values[name]
        stages = [each for each in received.spans if each.parent == batch.id]
        assert [each.name for each in stages] == ["read", "apply", "publish"]
        assert all(batch.began_ns <= each.began_ns <= each.ended_ns <= batch.ended_ns for each in stages)
    assert "-471100" not in repr(received.spans)  # times and ids may hold any digits, but none behind a minus


def test_a_receiver_that_does_not_answer_costs_the_traces_only(
    servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    (port,) = free_ports([None])
    more = f'[traces]\nendpoint = "http://127.0.0.1:{port}"\n'
    file = write_config(tmp_path, database, servers.bootstrap, prefix, more)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with running(file) as daemon:
            for number in range(20):
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
                wait_for_state(load(file), connection)
            wait_until(lambda: events(daemon, "traces not sent"))
            began = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - began < 15
    assert len(events(daemon, "traces not sent")) == 1
    assert all(line.startswith("{") for line in daemon.log.read_text().splitlines())
