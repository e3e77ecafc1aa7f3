"""The truth table of `cdc.startup.decide` against real servers; a refusal changes nothing.

Rows of `tests.unit.test_start` are repeated here if it matters how PostgreSQL or Kafka report the facts. Those of a
promotion are in `test_promotion`; more exit codes of the process in `test_bad_input` and `test_publications`.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tailrace.cdc.daemon.session import Session
from tailrace.cdc.daemon.topic_watch import TopicWatch
from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.health.health import Health
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.decide import Found
from tailrace.cdc.startup.observe import look
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics, compacted
from tailrace.sinks.control.positions import read_position
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.sinks.kafka.read_topic import read_to
from tests.integration.test_bad_input import slots
from tests.integration.test_delivery import frozen_broker
from tests.support.daemon import Daemon, events, running, tailrace, wait_for_state, wait_until, write_config
from tests.support.refused import assert_found, assert_refused
from tests.support.servers import drop_slot
from tests.support.topics import latest, read_topic

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 20);
INSERT INTO u VALUES (1);
"""


def start_and_stop(config: Config) -> None:
    """Run the daemon in this process; stop it once it has started the stream."""
    stop_it = threading.Event()
    session = Session(config, stop_it)
    try:
        session.start()
        stop_it.set()
        session.run()
    finally:
        session.close()


def refusal(config: Config) -> TailraceError:
    """Start the daemon, which must refuse; return its error."""
    with pytest.raises(TailraceError) as refused:
        start_and_stop(config)
    assert refused.value.hint
    return refused.value


@dataclass(frozen=True)
class Pipeline:
    """A pipeline's configuration, and connections to its servers."""

    path: Path
    config: Config
    connection: psycopg.Connection[Any]
    admin: AdminClient

    @property
    def name(self) -> str:
        """Name of the slot and prefix of the topics."""
        return self.config.source.slot

    def execute(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return tailrace(*words, "--config", str(self.path))

    def position(self) -> PositionRecord:
        """Return the newest position record, which there must be."""
        record = read_position(self.config.kafka, Topics(self.name), self.name)
        assert record is not None
        return record

    def assert_verified(self) -> None:
        """Assert that every topic equals its table."""
        done = self.command("verify", "--log")
        assert done.returncode == 0, done.stdout + done.stderr

    def refused(self, code: str, exit_code: int, *words: str) -> None:
        """Assert that the start is refused and leaves slot, position and topics as they were."""
        before = self._state()
        assert_found(self.config, code)
        assert self._state() == before
        error = refusal(self.config)
        assert (error.code, error.exit_code) == (code, exit_code), str(error)
        for word in words:
            assert word in str(error)
        assert self._state() == before

    def _state(self) -> object:
        slot = self.connection.execute(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", (self.name,)
        ).fetchone()
        return slot, read_position(self.config.kafka, Topics(self.name), self.name), self.topics()

    def topics(self) -> set[str]:
        return {topic for topic in self.admin.list_topics(timeout=10).topics if topic.startswith(f"{self.name}.")}

    def delete(self, *topics: str) -> None:
        for future in self.admin.delete_topics(list(topics)).values():
            future.result()
        while self.topics() & set(topics):
            time.sleep(0.02)

    def alter(self, topic: str, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()


@pytest.fixture
def fresh(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Iterator[Pipeline]:
    """A pipeline that has never run."""
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES)
        yield Pipeline(path, load(path), connection, AdminClient({"bootstrap.servers": servers.bootstrap}))


@pytest.fixture
def stopped(fresh: Pipeline) -> Pipeline:
    start_and_stop(fresh.config)
    return fresh


def assert_topic_equals(pipeline: Pipeline, table: str) -> Daemon:
    """Run the daemon until it has everything, and compare a topic with its table."""
    with running(pipeline.path) as daemon:
        wait_for_state(pipeline.config, pipeline.connection, tables=[f"public.{table}"])
    records = read_topic(pipeline.config.kafka.bootstrap, pipeline.name, f"public.{table}")
    ids = pipeline.connection.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()
    assert sorted(latest(records)) == ids
    return daemon


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_broker_that_does_not_know_the_topics_yet_is_asked_again(
    stopped: Pipeline, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """It is simulated in the first answers: a real broker cannot be slow for a fixed time."""
    answers = iter([True] if comes_back else repeat(True))

    def behind(*arguments: Any, **options: Any) -> Found:
        found = look(*arguments, **options)
        return replace(found, brokers=3, topics={} if next(answers, False) else found.topics)

    monkeypatch.setattr("tailrace.cdc.startup.settled.look", behind)
    monkeypatch.setattr("tailrace.cdc.startup.settled._SETTLED_S", 2.0)
    if comes_back:
        start_and_stop(stopped.config)
    else:
        stopped.refused("TR-424", 6, "schemas")


# Slots


_SLOTS: dict[str, tuple[str, str]] = {
    "physical": ("SELECT pg_create_physical_replication_slot('{}')", "physical"),
    "temporary": ("SELECT pg_create_logical_replication_slot('{}', 'pgoutput', true)", "temporary"),
    "two_phase": ("SELECT pg_create_logical_replication_slot('{}', 'pgoutput', false, true)", "two_phase True"),
}


@pytest.mark.parametrize(("made", "word"), _SLOTS.values(), ids=_SLOTS)
def test_a_slot_of_another_kind_is_refused(stopped: Pipeline, made: str, word: str) -> None:
    drop_slot(stopped.connection, stopped.name)
    stopped.execute(made.format(stopped.name))
    stopped.refused("TR-208", 4, word)
    stopped.execute(f"SELECT pg_drop_replication_slot('{stopped.name}')")


def test_a_slot_of_another_database_is_refused(stopped: Pipeline, servers: Servers) -> None:
    drop_slot(stopped.connection, stopped.name)
    with psycopg.connect(servers.dsn, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (stopped.name,))
        stopped.refused("TR-208", 4, "database postgres")
        other.execute("SELECT pg_drop_replication_slot(%s)", (stopped.name,))


def _invalidate(pipeline: Pipeline, setting: str, value: str, make: Callable[[], None]) -> None:
    """Make the server invalidate the slot by one of its limits."""
    pipeline.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
    try:
        pipeline.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 20
        lost = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND wal_status = 'lost'"
        while not pipeline.connection.execute(lost, (pipeline.name,)).rowcount:
            assert time.monotonic() < deadline
            make()
            pipeline.execute("CHECKPOINT")
    finally:
        pipeline.execute(f"ALTER SYSTEM RESET {setting}")
        pipeline.execute("SELECT pg_reload_conf()")


def test_a_slot_whose_wal_was_removed_is_refused(stopped: Pipeline) -> None:
    def write() -> None:
        stopped.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        stopped.execute("SELECT pg_switch_wal()")

    _invalidate(stopped, "max_slot_wal_keep_size", "16MB", write)
    stopped.refused("TR-204", 6, "wal_removed", "are not on the topics", "snapshot start --all --reconcile")
    assert_refused(stopped.path, "TR-204", 6, "snapshot start --all --reconcile")


def test_a_slot_invalidated_as_idle_is_refused(stopped: Pipeline) -> None:
    _invalidate(stopped, "idle_replication_slot_timeout", "1s", lambda: time.sleep(0.2))
    stopped.refused("TR-204", 6, "idle_timeout")


# No position


def test_a_slot_without_our_position_is_refused(fresh: Pipeline) -> None:
    """As after a change of kafka.prefix: the old pipeline would lose the changes read from its slot."""
    fresh.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    fresh.execute(f"SELECT pg_create_logical_replication_slot('{fresh.name}', 'pgoutput')")
    fresh.refused("TR-423", 6, "0 of 1 topics", "a pipeline with another kafka.prefix")
    assert_refused(fresh.path, "TR-423", 6)
    assert not fresh.topics()


def test_a_missing_progress_topic_is_refused_until_all_is_deleted(stopped: Pipeline) -> None:
    stopped.delete(f"{stopped.name}.tailrace.progress")
    stopped.refused("TR-423", 6, "2 of 2 topics", f"pg_drop_replication_slot('{stopped.name}')")
    drop_slot(stopped.connection, stopped.name)
    stopped.refused("TR-425", 6, f'topic "{stopped.name}.public.t"', "--delete")
    stopped.delete(*stopped.topics())
    assert_topic_equals(stopped, "t")


def test_a_first_start_killed_before_the_slot_is_repeated(fresh: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "ExportedSnapshot", _killed)
        with pytest.raises(_Killed):
            start_and_stop(fresh.config)
    assert slots(fresh.config.source.dsn.get_secret_value(), fresh.name) == 0
    assert_topic_equals(fresh, "t")


def test_a_first_start_killed_after_the_slot_reads_tables_once(
    fresh: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changes in the tables any more: they must be read all the same, and once."""
    fresh.execute("CREATE TABLE event (n int); INSERT INTO event VALUES (1), (1)")
    _kill_behind_the_slot(fresh, monkeypatch)
    assert slots(fresh.config.source.dsn.get_secret_value(), fresh.name) == 1
    assert_topic_equals(fresh, "t")
    fresh.execute("INSERT INTO u VALUES (3)")
    daemon = assert_topic_equals(fresh, "u")
    scheduled = [event["table"] for event in events(daemon, "table read scheduled")]
    assert sorted(scheduled) == ["public.event", "public.t", "public.u"]
    records = read_topic(fresh.config.kafka.bootstrap, fresh.name, "public.event")
    assert [each.value and each.value["after"] for each in records] == [{"n": 1}, {"n": 1}], "without a key, too"
    assert not events(daemon, "topic refilled: incompatible change")


class _Killed(BaseException):
    pass


def _killed(*_: object) -> None:
    raise _Killed


def _kill_behind_the_slot(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "commit", _killed)
        with pytest.raises(_Killed):
            start_and_stop(pipeline.config)


# Publications


def test_a_publication_that_omits_operations_is_refused(fresh: Pipeline) -> None:
    fresh.execute("CREATE PUBLICATION tailrace FOR TABLE t WITH (publish = 'insert, update')")
    fresh.refused("TR-233", 4, "delete, truncate", "ALTER PUBLICATION")
    fresh.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete, truncate')")
    start_and_stop(fresh.config)
    fresh.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete')")
    fresh.refused("TR-426", 6, "does not publish: truncate", "copied again")


def test_a_missing_publication_is_refused_and_not_recreated(stopped: Pipeline) -> None:
    stopped.execute("DROP PUBLICATION tailrace, tailrace_nokey")
    stopped.refused("TR-404", 6, '"tailrace" is missing')
    assert not stopped.connection.execute("SELECT FROM pg_publication").rowcount


def test_tables_added_or_removed_while_stopped_are_followed(stopped: Pipeline) -> None:
    stopped.execute(
        "ALTER PUBLICATION tailrace DROP TABLE u; CREATE TABLE v (id int PRIMARY KEY); INSERT INTO v VALUES (7);"
        "ALTER PUBLICATION tailrace ADD TABLE v; INSERT INTO u VALUES (2); INSERT INTO t VALUES (100)"
    )
    assert_topic_equals(stopped, "v")
    assert_topic_equals(stopped, "t")
    assert set(latest(read_topic(stopped.config.kafka.bootstrap, stopped.name, "public.u"))) == {(1,)}


# Topics


def _change_topic(pipeline: Pipeline, how: str) -> None:
    topic = f"{pipeline.name}.public.t"
    partitions = [TopicPartition(topic, partition, -1) for partition in range(3)]
    if how in ("deleted", "made again"):
        pipeline.delete(topic)
    if how == "made again":
        new = NewTopic(topic, 3, 1, config={"cleanup.policy": "compact"})
        for future in pipeline.admin.create_topics([new]).values():
            future.result()
    if how == "cut off":
        # another policy for a while is sufficient
        pipeline.alter(topic, cleanup_policy="delete")
        # Kafka answers before its logs have the new policy
        refused = retry_if_exception_type(KafkaException)
        for attempt in Retrying(retry=refused, stop=stop_after_delay(30), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                for each in pipeline.admin.delete_records(partitions).values():
                    each.result()
        pipeline.alter(topic, cleanup_policy="compact")
    if how == "with more partitions":
        for future in pipeline.admin.create_partitions([NewPartitions(topic, 5)]).values():
            future.result()
    if how == "without schemas":
        pipeline.delete(f"{pipeline.name}.tailrace.schemas")


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("deleted", "20 offsets in 3 partitions"),
        ("made again", "ends at offset 0"),
        ("cut off", "begins at offset"),
        ("with more partitions", "5 partitions, the cut 3"),
    ],
)
def test_a_table_whose_topic_has_lost_records_is_parked_alone(stopped: Pipeline, how: str, word: str) -> None:
    _change_topic(stopped, how)
    source = stopped.config.source.model_copy(update={"on_table_error": "stop"})
    replace(stopped, config=stopped.config.model_copy(update={"source": source})).refused("TR-424", 6, word)
    stopped.execute("INSERT INTO t VALUES (100); INSERT INTO u VALUES (100)")
    daemon = assert_topic_equals(stopped, "u")
    (parked,) = events(daemon, "table parked")
    assert (parked["table"], parked["code"]) == ("public.t", "TR-424")
    assert word in parked["detail"]
    if how == "deleted":
        assert f"{stopped.name}.public.t" not in stopped.topics()


@pytest.mark.parametrize("how", ["deleted", "made again", "with more partitions", "left out"])
def test_a_table_whose_topic_has_lost_records_is_resumed_by_the_lines_of_the_list(stopped: Pipeline, how: str) -> None:
    topic, kafka = f"{stopped.name}.public.t", stopped.config.kafka

    last = stopped.position().here.offsets[topic]
    assert stopped.position().state_for(["public.t"]) is not None
    _change_topic(stopped, "deleted" if how == "left out" else how)
    stopped.execute("DELETE FROM t WHERE id <= 3; INSERT INTO t VALUES (100)")
    with running(stopped.path) as daemon:
        wait_for_state(stopped.config, stopped.connection, tables=["public.u"])
        if how == "left out":
            assert stopped.command("table", "leave-out", "t").returncode == 0
        assert stopped.command("table", "resume", "t").returncode == 3, "its topic is not there"
        wait_until(lambda: stopped.position().parked == {"public.t": "TR-424"})
        assert stopped.position().state_for(["public.t"]) is None, "a late reader would find an empty topic"
        listed = stopped.command("table", "list").stdout
        assert ("--delete" in listed) == (how not in ("deleted", "left out"))
        assert daemon.stop() == 0
    if how == "with more partitions":
        start_and_stop(stopped.config)
        assert len(stopped.admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5, "left to a person"
        stopped.delete(topic)
    if how == "made again":  # without the settings that compaction must have
        lags = kafka.min_compaction_lag_ms, kafka.delete_retention_ms, kafka.max_message_bytes
        stopped.alter(topic, **compacted(*lags))
    with running(stopped.path) as daemon:
        wait_for_state(stopped.config, stopped.connection, tables=["public.u"])
        wait_until(lambda: "--delete" not in stopped.command("table", "list").stdout)
        assert stopped.command("table", "resume", "t").returncode == 0
        stopped.execute("UPDATE t SET id = 200 WHERE id = 20")
        wait_for_state(stopped.config, stopped.connection)
        assert stopped.command("status").returncode == 0
        stopped.assert_verified()
        assert daemon.stop() == 0
    ends = stopped.position().here.offsets[topic]
    # a view continues at the offsets that it has applied, and another consumer begins with the topic
    for starts in (last, [0, 0, 0]):
        records = list(chain(*read_to({"bootstrap.servers": kafka.bootstrap}, topic, ends, starts)))
        assert {each.partition for each in records if each.key == TRUNCATE_KEY} == {0, 1, 2}
        assert all(new.key == TRUNCATE_KEY for new in {each.partition: each for each in reversed(records)}.values())
    rows = {row for (row,) in stopped.connection.execute("SELECT id FROM t")}
    assert {key for (key,) in latest(read_topic(kafka.bootstrap, stopped.name, "public.t"))} == rows


def test_a_table_without_a_key_whose_topic_was_deleted_is_resumed_with_each_row_once(fresh: Pipeline) -> None:
    fresh.execute("CREATE TABLE event (n int); INSERT INTO event SELECT generate_series(1, 20)")
    start_and_stop(fresh.config)
    topic, kafka = f"{fresh.name}.public.event", fresh.config.kafka

    last = fresh.position().here.offsets[topic]
    assert len(last) == 1, "without keys, only one partition has an order"
    assert last[0] >= 20
    fresh.delete(topic)
    fresh.execute("DELETE FROM event WHERE n <= 3; INSERT INTO event VALUES (7), (100)")
    with running(fresh.path) as daemon:
        wait_until(lambda: fresh.position().parked == {"public.event": "TR-424"})
        wait_for_state(fresh.config, fresh.connection, tables=["public.t"])
        assert fresh.position().state_for(["public.event"]) is None, "a late reader would find an empty topic"
        assert daemon.stop() == 0
    with running(fresh.path) as daemon:
        wait_for_state(fresh.config, fresh.connection, tables=["public.t"])
        fresh.execute("INSERT INTO event VALUES (101)")  # dropped: the table is parked
        assert fresh.command("table", "resume", "event").returncode == 0
        wait_for_state(fresh.config, fresh.connection)
        fresh.execute("INSERT INTO event VALUES (102)")
        wait_for_state(fresh.config, fresh.connection)
        assert fresh.command("status").returncode == 0
        fresh.assert_verified()
        assert daemon.stop() == 0
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (settings,) = [each.result() for each in fresh.admin.describe_configs([resource]).values()]
    assert settings["cleanup.policy"].value == "delete", "compaction would need keys"
    # a view continues at the offsets that it has applied, and another consumer begins with the topic
    for starts in (last, [0]):
        ends = fresh.position().here.offsets[topic]
        found = list(chain(*read_to({"bootstrap.servers": kafka.bootstrap}, topic, ends, starts)))
        assert [number for number, each in enumerate(found) if each.key == TRUNCATE_KEY] == [0]
    rows = sorted(n for (n,) in fresh.connection.execute("SELECT n FROM event"))
    records = read_topic(kafka.bootstrap, fresh.name, "public.event")
    assert sorted(each.value["after"]["n"] for each in records if each.value and each.value["op"] != "t") == rows


def test_a_pipeline_whose_only_table_has_lost_its_topic_waits_for_the_resume(fresh: Pipeline) -> None:
    topic = f"{fresh.name}.public.t"

    def wait_for_loss(daemon: Daemon) -> None:
        """Wait until the table is parked and the slot advances past changes that nobody sends."""
        wait_until(lambda: events(daemon, "table parked"), 90)
        (parked,) = events(daemon, "table parked")
        assert (parked["table"], parked["code"]) == ("public.t", "TR-424")
        fresh.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
        wait_for_state(fresh.config, fresh.connection, tables=[])
        assert fresh.command("status").returncode == 7
        assert "tailrace table resume public.t  # then" in fresh.command("table", "list").stdout
        assert daemon.stop() == 0

    def wait_for_resume(daemon: Daemon) -> None:
        wait_until(lambda: events(daemon, "stream resumed"))
        assert fresh.command("table", "resume", "t").returncode == 0
        wait_for_state(fresh.config, fresh.connection)
        assert fresh.command("status").returncode == 0
        fresh.assert_verified()
        rows = {row for (row,) in fresh.connection.execute("SELECT id FROM t")}
        assert {key for (key,) in latest(read_topic(fresh.config.kafka.bootstrap, fresh.name, "public.t"))} == rows

    fresh.execute("DROP TABLE u")
    start_and_stop(fresh.config)
    fresh.delete(topic)
    with running(fresh.path) as daemon:
        wait_for_loss(daemon)
    with running(fresh.path) as daemon:
        wait_for_resume(daemon)
        (filled,) = events(daemon, "topic is being filled with aborted records")
        assert filled["topic"] == topic
        assert filled["records"] >= 20
        # the same while the daemon runs
        fresh.delete(topic)
        fresh.execute("DELETE FROM t WHERE id = 5")
        wait_for_loss(daemon)
    with running(fresh.path) as daemon:
        wait_for_resume(daemon)


def test_a_topic_of_all_tables_that_was_deleted_is_refused(stopped: Pipeline) -> None:
    _change_topic(stopped, "without schemas")
    stopped.refused("TR-424", 6, "tailrace.schemas", "copied again")
    asked = tailrace("snapshot", "start", "--all", "--reconcile", "--config", str(stopped.path), "--timeout", "1")
    assert asked.returncode == 0, "nobody knows yet that the daemon cannot start"
    assert_refused(stopped.path, "TR-424", 6)
    asked = tailrace("snapshot", "start", "--all", "--reconcile", "--config", str(stopped.path), "--timeout", "1")
    assert asked.returncode == 3
    assert "TR-130" in asked.stderr
    assert "does not repair TR-424" in asked.stderr
    assert "copied again" in asked.stderr


def test_a_topic_that_is_deleted_under_the_daemon_parks_its_table(stopped: Pipeline) -> None:
    with running(stopped.path) as daemon:
        wait_for_state(stopped.config, stopped.connection)
        stopped.delete(f"{stopped.name}.public.t")
        stopped.execute("INSERT INTO t VALUES (100)")
        wait_until(lambda: events(daemon, "table parked"), 90)
        stopped.execute("INSERT INTO u VALUES (100)")
        wait_for_state(stopped.config, stopped.connection, tables=["public.u"])
        listed = stopped.command("table", "list").stdout
        assert "TR-424" in listed
        assert "tailrace table leave-out public.t" in listed
        assert "tailrace table resume public.t  # then" in listed
        refused = stopped.command("table", "resume", "t")
        assert refused.returncode == 3
        assert "its topic has lost records" in refused.stderr
        assert stopped.command("status").returncode == 7
        assert stopped.command("verify", "--log").returncode == 7
        assert stopped.command("table", "leave-out", "t").returncode == 0
        wait_until(lambda: stopped.command("status").returncode == 0)
        wait_for_state(stopped.config, stopped.connection, tables=["public.u"])
        stopped.assert_verified()
        assert daemon.stop() == 0
    records = read_topic(stopped.config.kafka.bootstrap, stopped.name, "public.u")
    assert sorted(latest(records)) == [(1,), (100,)]


@pytest.mark.parametrize(("how", "lost"), [("cut off", True), ("made again", True), ("deleted", False)])
def test_topics_that_lose_records_are_noticed_while_the_daemon_runs(stopped: Pipeline, how: str, lost: bool) -> None:
    """A deleted topic is no case of it: the next write fails."""
    record = read_position(stopped.config.kafka, Topics(stopped.name), stopped.name)
    assert record is not None

    def found() -> tuple[str, ...]:
        watch = TopicWatch(stopped.config.kafka)
        watch.look(record)
        return watch.lost

    assert found() == ()
    _change_topic(stopped, how)
    if lost:
        # a topic that has just been made has no leader yet: that look finds nothing
        wait_until(lambda: bool(found()), 30)
    assert found() == ((f"{stopped.name}.public.t",) if lost else ())
    health = Health(stopped.name)
    health.streaming()
    health.lost_topics = found()
    assert health.ready()[0] is not lost


def test_a_missing_topic_of_an_uncaptured_table_is_ignored(stopped: Pipeline) -> None:
    stopped.execute("ALTER PUBLICATION tailrace DROP TABLE u")
    stopped.delete(f"{stopped.name}.public.u")
    start_and_stop(stopped.config)
    assert f"{stopped.name}.public.u" not in stopped.topics()


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        ("public.t", "cleanup.policy", "delete"),
        ("public.t", "min.compaction.lag.ms", "1000"),
        ("public.t", "delete.retention.ms", "1000"),
        ("public.t", "message.timestamp.type", "CreateTime"),
        ("tailrace.progress", "min.compaction.lag.ms", "1000"),
    ],
)
def test_topic_settings_that_break_a_promise_are_refused(
    stopped: Pipeline, topic: str, setting: str, value: str
) -> None:
    stopped.alter(f"{stopped.name}.{topic}", **{setting.replace(".", "_"): value})
    stopped.refused("TR-302", 5, f"{setting} = {value}", "kafka-configs.sh")


# Servers


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Server]]]:
    """A server whose data may be replaced; the last one of the list runs."""
    folder = tmp_path_factory.mktemp("own") / "postgres"
    started: list[Server] = []
    postgres.start(folder, None, {"fsync": "off"}, started.append)
    yield folder, started
    for each in started:
        stop(each)


def test_another_server_is_refused(stopped: Pipeline, own_server: tuple[Path, list[Server]]) -> None:
    """With a slot of the same name or without, its LSNs have no meaning here."""
    dsn = postgres.create_database(postgres.dsn(own_server[1][-1]), "other")
    write_config(stopped.path.parent, dsn, stopped.config.kafka.bootstrap, stopped.name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLES)
        connection.execute("CREATE PUBLICATION tailrace FOR TABLE t, u")
        other = Pipeline(stopped.path, load(stopped.path), connection, stopped.admin)
        other.refused("TR-403", 6, "system identifier")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (stopped.name,))
        other.refused("TR-403", 6, "system identifier")
        connection.execute("SELECT pg_drop_replication_slot(%s)", (stopped.name,))


def test_a_server_restored_from_a_backup_is_refused(
    tmp_path: Path, servers: Servers, prefix: str, own_server: tuple[Path, list[Server]]
) -> None:
    """The data directory, with the slot, is a copy from before the topics received more."""
    folder, started = own_server
    dsn = postgres.create_database(postgres.dsn(started[-1]), prefix)
    path = write_config(tmp_path, dsn, servers.bootstrap, prefix)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLES)
    start_and_stop(load(path))
    server = started[-1]
    stop(server)
    _copy(folder / "data", tmp_path / "backup")
    server = postgres.start(folder, server, None, started.append)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO t VALUES (1000)")
        with running(path):
            wait_for_state(load(path), connection)
    stop(server)
    shutil.rmtree(folder / "data")
    _copy(tmp_path / "backup", folder / "data")
    postgres.start(folder, server, None, started.append)
    assert_found(load(path), "TR-422")
    error = refusal(load(path))
    assert (error.code, error.exit_code) == ("TR-422", 6)
    assert "bytes further" in error.detail


def test_servers_that_start_after_the_daemon_are_waited_for(
    tmp_path: Path, prefix: str, servers: Servers, state_dir: Path, own_server: tuple[Path, list[Server]]
) -> None:
    """At a first start, too: first PostgreSQL does not answer, then Kafka."""
    folder, started = own_server
    server = postgres.start(folder, started[-1], None, started.append)
    dsn = postgres.create_database(postgres.dsn(server), "late")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLES)
    stop(server)
    path = write_config(tmp_path, dsn, servers.bootstrap, prefix)
    with running(path) as daemon:
        with frozen_broker(state_dir):
            wait_until(lambda: _failed_with(daemon, "TR-201"))
            postgres.start(folder, server, None, started.append)
            wait_until(lambda: _failed_with(daemon, "TR-330") or _failed_with(daemon, "TR-301"), 60)
        with psycopg.connect(dsn, autocommit=True) as connection:
            wait_for_state(load(path), connection)
        assert set(latest(read_topic(servers.bootstrap, prefix, "public.t"))) == {(n,) for n in range(1, 21)}
        assert daemon.stop() == 0


def _failed_with(daemon: Daemon, code: str) -> bool:
    return any(event["code"] == code for event in events(daemon, "session failed: restarting"))


def _copy(data: Path, to: Path) -> None:
    """Copy files with their owner, who is another user."""
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)
