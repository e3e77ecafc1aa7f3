"""`tailrace verify --log` on the topics of a daemon, and on copies with one planted fault."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.verify_log import verify_log
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.records.position import Cut, PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.matches import Publisher
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tests.integration.test_matches import END, pages
from tests.support.bank import TABLES, Writer, create_tables
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.servers import fresh_database
from tests.support.topics import read_all

_TOPICS = ("message", *(f"public.{table}" for table in TABLES))


@dataclass
class Pipeline:
    """Topics of a daemon that has ended: messages by partition, and position records."""

    config: Config
    path: Path
    lines: dict[tuple[str, int], list[Any]]
    positions: list[PositionRecord]


@pytest.fixture(scope="module")
def pipeline(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    prefix = f"t{uuid.uuid4().hex[:10]}"
    with fresh_database(servers.dsn) as dsn:
        more = "[delivery]\nmax_transaction_ms = 20\n"
        path = write_config(tmp_path_factory.mktemp("log"), dsn, servers.bootstrap, prefix, more)
        config = load(path)
        with psycopg.connect(dsn, autocommit=True) as connection:
            create_tables(connection, 200)
            with running(path) as daemon:
                with Writer(dsn, 7, 200).writing() as writer:
                    wait_for(config, lambda record: record.is_state and writer.transactions > 200)
                connection.execute("TRUNCATE document")
                wait_for_state(config, connection)
                assert daemon.stop() == 0
        progress = f"{prefix}.tailrace.progress"
        messages = read_all(servers.bootstrap, [progress, *(f"{prefix}.{topic}" for topic in _TOPICS)])
        positions = [PositionRecord.from_json(message.value()) for message in messages.pop(progress)]
        lines: dict[tuple[str, int], list[Any]] = {}
        for topic, records in messages.items():
            for record in records:
                lines.setdefault((topic, record.partition()), []).append(record)
        yield Pipeline(config, path, lines, positions)


def test_the_log_of_the_daemon_has_no_findings(pipeline: Pipeline) -> None:
    proof = verify_log(pipeline.config)
    assert proof.tally.findings == []
    assert proof.tally.records == sum(map(len, pipeline.lines.values()))
    assert proof.tally.position_records == len(pipeline.positions)
    assert proof.tally.compacted == proof.tally.uncounted == 0


def test_the_log_read_in_small_blocks_has_no_findings(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cdc.operations.verify_log._BLOCK_RECORDS", 7)
    assert verify_log(pipeline.config).tally.findings == []


@dataclass
class Running:
    """A running daemon. Its log is verified as a whole, so one proof covers all steps before it."""

    path: Path
    daemon: Daemon

    def snapshot(self, *arguments: str) -> None:
        done = tailrace("snapshot", *arguments, "--config", str(self.path))
        assert done.returncode == 0, done.stderr

    def wait_copied(self, run: int, table: str = "public.t") -> None:
        def copied() -> bool:
            copies = events(self.daemon, "table copied")
            return any((each["table"], each.get("run")) == (table, run) for each in copies)

        wait_until(copied)

    def assert_whole(self, after: str) -> None:
        done = tailrace("verify", "--log", "--config", str(self.path))
        assert (done.returncode, "whole" in done.stdout) == (0, True), (after, done.stdout, done.stderr)


def test_the_log_is_whole_with_records_of_every_other_kind(
    servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    """Snapshots of each kind, dead letters, matches, messages, and other topics with the same prefix."""
    more = '[snapshot]\nmode = "interleaved"\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 20\n'
    path = write_config(tmp_path, database, servers.bootstrap, prefix, more, 'on_error = "divert"\n')
    config = load(path)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2));"
            "INSERT INTO t SELECT g, g FROM generate_series(1, 2000) g;"
            "CREATE TABLE r (id int PRIMARY KEY, n int); INSERT INTO r VALUES (1, 1);"
            "CREATE TABLE keyless (n int); INSERT INTO keyless SELECT generate_series(1, 100)"
        )
        with running(path) as daemon:
            log = Running(path, daemon)
            wait_for_state(config, connection)
            snapshots_of_each_kind(log, config)
            connection.execute("INSERT INTO t VALUES (-1, 'NaN'), (-2, 2); INSERT INTO keyless VALUES (1), (1)")
            connection.execute("SELECT pg_logical_emit_message(true, 'a', 'message')")
            assert wait_for(config, lambda record: record.diverted)
            wait_for_state(config, connection)
            connection.execute("ALTER TABLE r ALTER n TYPE text; INSERT INTO r VALUES (2, 'two')")
            log.wait_copied(3, "public.r")
            log.assert_whole("a dead letter, changes of a table without a key, a refill after an incompatible change")
            Publisher(config.kafka, "alerts").forward(pages(30), END)
            ensure_topics(config.kafka, [TopicSpec(f"{prefix}.others", 1, {})])
            producer = Producer({"bootstrap.servers": servers.bootstrap})
            producer.produce(f"{prefix}.others", b"not of a pipeline")
            assert producer.flush(30) == 0
            log.assert_whole("matches, and another topic with the prefix")
            assert daemon.stop() == 0
    topics = Topics(prefix)
    found = Consumer({"bootstrap.servers": servers.bootstrap, "group.id": "x"}).list_topics(timeout=10).topics
    assert {topics.requests, topics.published, topics.matches("alerts"), topics.dead, topics.message} <= found.keys()


def snapshots_of_each_kind(log: Running, config: Config) -> None:
    kinds: tuple[list[str], ...] = ([], ["--where", "id < 100"], ["--reconcile"], ["--columns", "n"])
    for run, options in enumerate(kinds, start=3):  # the interleaved first copy is run 2
        log.snapshot("start", "t", *options)
        log.wait_copied(run)
    log.assert_whole("an interleaved first copy and a snapshot of each kind")
    log.snapshot("start", "t", "--rate", "200")
    wait_for(config, lambda record: record.counts.get(f"{config.kafka.prefix}.public.t"))
    log.snapshot("pause", "t")
    log.assert_whole("a pause")
    log.snapshot("resume", "t")
    log.snapshot("cancel", "t")
    log.assert_whole("a snapshot that was resumed, then cancelled")


Lines = dict[tuple[str, int], list[Any]]


def _drop(lines: Lines, at: tuple[str, int], middle: int) -> None:
    del lines[at][middle]


def _double(lines: Lines, at: tuple[str, int], middle: int) -> None:
    lines[at].insert(middle, lines[at][middle])


def _swap(lines: Lines, at: tuple[str, int], middle: int) -> None:
    """Exchange two messages; offsets stay, because the cuts are translated by them."""
    line = lines[at]
    line[middle], line[middle + 1] = line[middle + 1], line[middle]


def _add(lines: Lines, at: tuple[str, int], middle: int) -> None:
    lines[at].append(lines[at][-1])


def _nothing(lines: Lines, at: tuple[str, int], middle: int) -> None:
    pass


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (_nothing, set()),
        (_drop, {"missing"}),
        (_double, {"unaccounted", "order"}),
        (_swap, {"order"}),
        (_add, {"unaccounted"}),
    ],
)
def test_each_planted_fault_is_found(
    pipeline: Pipeline, plant: Callable[[Lines, tuple[str, int], int], None], kinds: set[str]
) -> None:
    proof = verify_log(_copy(pipeline, plant))
    assert kinds <= {finding.kind for finding in proof.tally.findings}
    assert proof.holds == (not kinds)


def test_a_missing_position_record_is_found(pipeline: Pipeline) -> None:
    """No other position record counts its records."""
    middle = next(i for i in range(len(pipeline.positions) // 2, 10**6) if pipeline.positions[i].counts)
    left = replace(pipeline, positions=[r for i, r in enumerate(pipeline.positions) if i != middle])
    assert "unaccounted" in {finding.kind for finding in verify_log(_copy(left, _nothing)).tally.findings}


def test_a_torn_transaction_is_found(pipeline: Pipeline) -> None:
    """The cut of a Kafka transaction ends one record too early in one partition."""
    positions = list(pipeline.positions)
    index, topic, partition = next(
        (i, topic, partition)
        for i in range(1, len(positions))
        if positions[i].is_state
        for topic in positions[i].counts
        for partition, end in enumerate(positions[i].here.offsets[topic])
        if end > positions[i - 1].here.offsets[topic][partition]
    )
    record = positions[index]
    ends = list(record.here.offsets[topic])
    ends[partition] -= 1
    positions[index] = replace(record, here=replace(record.here, offsets=record.here.offsets | {topic: ends}))
    findings = verify_log(_copy(replace(pipeline, positions=positions), _nothing)).tally.findings
    assert {"missing", "unaccounted", "torn"} <= {finding.kind for finding in findings}


def test_past_the_compaction_lag_missing_records_are_no_finding(pipeline: Pipeline) -> None:
    """Records that compaction may have removed are reported, but no finding; extra records still are."""
    for plant, compacted in ((_drop, 1), (_double, 0)):
        config = _copy(pipeline, plant)
        old = config.model_copy(update={"kafka": config.kafka.model_copy(update={"min_compaction_lag_ms": 0})})
        proof = verify_log(old)
        assert proof.tally.compacted == compacted
        assert proof.holds == (plant is _drop)


def test_at_least_once_is_refused(pipeline: Pipeline) -> None:
    delivery = pipeline.config.delivery.model_copy(update={"guarantee": "at-least-once"})
    with pytest.raises(ConfigError, match="exactly-once"):
        verify_log(pipeline.config.model_copy(update={"delivery": delivery}))


def test_the_command_reports_findings_by_its_exit_code(pipeline: Pipeline, tmp_path: Path) -> None:
    done = tailrace("verify", "--log", "--json", "--config", str(pipeline.path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holds"] is True
    config = _copy(pipeline, _drop)
    path = write_config(tmp_path, "", config.kafka.bootstrap, config.kafka.prefix)
    path.write_text(path.read_text().replace(f'slot = "{config.kafka.prefix}"', f'slot = "{config.source.slot}"'))
    done = tailrace("verify", "--log", "--config", str(path))
    assert done.returncode == 7
    assert "missing" in done.stdout
    assert "TR-701" in done.stderr
    # a topic of the pipeline that was deleted
    largest = max(pipeline.lines, key=lambda at: len(pipeline.lines[at]))[0]
    deleted = largest.replace(pipeline.config.kafka.prefix, config.kafka.prefix, 1)
    admin = AdminClient({"bootstrap.servers": config.kafka.bootstrap})
    admin.delete_topics([deleted])[deleted].result()
    wait_until(lambda: deleted not in admin.list_topics(timeout=10).topics)
    done = tailrace("verify", "--log", "--config", str(path))
    assert done.returncode == 7
    assert f"deleted: {deleted}: the topic does not exist" in done.stdout
    assert "TR-424" in done.stderr
    assert tailrace("verify", "orders", "--log", "--config", str(path)).returncode == 2


def _copy(pipeline: Pipeline, plant: Callable[[Lines, tuple[str, int], int], None]) -> Config:
    """Write the topics again under another prefix with one fault; return the configuration for it.

    Offsets are dense there, so each cut is translated to the number of records before it.
    """
    kafka = pipeline.config.kafka
    old, new = kafka.prefix, f"t{uuid.uuid4().hex[:10]}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    specs = [TopicSpec(f"{new}.{topic}", 3, settings) for topic in _TOPICS]
    ensure_topics(kafka, [*specs, TopicSpec(f"{new}.tailrace.progress", 1, settings)])
    lines = {at: list(line) for at, line in pipeline.lines.items()}
    at = max(lines, key=lambda at: len(lines[at]))
    plant(lines, at, len(lines[at]) * 3 // 4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for (topic, partition), line in lines.items():
        for message in line:
            name = topic.replace(old, new, 1)
            producer.produce(name, message.value(), message.key(), partition, headers=message.headers())
        producer.flush()
    known = {at: [message.offset() for message in line] for at, line in pipeline.lines.items()}
    gone = {at: {message.offset() for message in line} for at, line in lines.items()}

    def translated(cut: Cut) -> Cut:
        return replace(
            cut,
            offsets={
                topic.replace(old, new, 1): [
                    sum(offset < end and offset in gone[topic, p] for offset in known.get((topic, p), []))
                    + (plant is _double and (topic, p) == at and end > known[at][len(known[at]) * 3 // 4])
                    for p, end in enumerate(ends)
                ]
                for topic, ends in cut.offsets.items()
            },
        )

    for record in pipeline.positions:
        made = replace(
            record,
            here=translated(record.here),
            newest_state=translated(record.newest_state) if record.newest_state else None,
            counts={topic.replace(old, new, 1): count for topic, count in record.counts.items()},
        )
        key = json.dumps([pipeline.config.source.slot, "position"], separators=(",", ":"))
        producer.produce(f"{new}.tailrace.progress", made.to_json(), key.encode(), 0)
    producer.flush()
    return pipeline.config.model_copy(update={"kafka": kafka.model_copy(update={"prefix": new})})
