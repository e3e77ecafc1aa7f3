"""`tailrace snapshot` start, pause, resume, cancel and status: tables are reread and repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.rows import dict_row

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.progress import no_display
from tailrace.cdc.operations.repair import plan_of, read_again
from tailrace.cdc.operations.snapshots import TableSnapshot, read_snapshots
from tailrace.cdc.operations.verify_log import verify_log
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import POSITION_HEADER
from tailrace.schemas.lsn import Position
from tests.support.bank import TABLES, Writer, assert_equal, create_tables
from tests.support.daemon import (
    Daemon,
    do_as_the_hint_says,
    events,
    lose_slot,
    running,
    tailrace,
    wait_for,
    wait_for_state,
    write_config,
)
from tests.support.postgres_own import own_postgres
from tests.support.servers import drop_slot
from tests.support.topics import TopicRecord, assert_once_in_order, latest, read_raw, read_topic
from tests.support.verified import compared, differing_keys

ROWS = 3000


class Pipeline:
    """One table and its topic, with the daemon's `snapshot` command."""

    def __init__(self, servers: Servers, path: Path, connection: psycopg.Connection[Any]) -> None:
        self.bootstrap = servers.bootstrap
        self.path = path
        self.config: Config = load(path)
        self.connection = connection

    def snapshot(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run `tailrace snapshot`; return its JSON output."""
        done = tailrace("snapshot", *arguments, "--json", "--config", str(self.path))
        assert done.returncode == code, (done.stdout, done.stderr)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def outcomes(self, *arguments: str, code: int = 0) -> dict[str, str]:
        answer = self.snapshot(*arguments, code=code)
        assert answer["taken"]
        return {each["table"]: each["outcome"] for each in answer["tables"]}

    def status(self, table: str) -> TableSnapshot:
        (found,) = [each for each in read_snapshots(self.config).tables if each.table == f"public.{table}"]
        return found

    def records(self, table: str) -> list[TopicRecord]:
        return read_topic(self.bootstrap, self.config.kafka.prefix, f"public.{table}")

    def wait_until_copied(self, daemon: Daemon, table: str, run: int) -> None:
        wait_for(
            self.config,
            lambda _: (
                {"table": f"public.{table}", "run": run}.items()
                <= next((e for e in reversed(events(daemon, "table copied")) if e.get("run") == run), {}).items()
            ),
        )

    def equal(self, table: str) -> None:
        cut = wait_for_state(self.config, self.connection)
        topic = f"{self.config.kafka.prefix}.public.{table}"
        records = read_topic(self.bootstrap, self.config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        assert_once_in_order([record for record in records if record.position.epoch])  # without those of `spoil`
        cursor = self.connection.cursor(row_factory=dict_row)
        cursor.execute(f"SELECT * FROM {table}".encode())
        rows = {(row["id"],): row for row in cursor}
        # columns that an older record lacks read as null
        empty = dict.fromkeys(next(iter(rows.values())))
        assert {key: empty | row for key, row in latest(records).items()} == rows

    def spoil(self, table: str, keys: range, into: range) -> None:
        """Write records with keys that the source lacks to the topic: copies of others under other keys."""
        topic = f"{self.config.kafka.prefix}.public.{table}"
        by_key = {message.key(): message for message in read_raw(self.bootstrap, topic) if message.value()}
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        zigzag = {key: _framed(sample, key) for key in into for sample in [next(iter(by_key))]}
        for key, raw in zigzag.items():
            message = by_key[_framed(raw, keys[key % len(keys)])]
            producer.produce(topic, message.value(), raw, headers=[(POSITION_HEADER, Position(0, 1, key).to_bytes())])
        assert producer.flush(10) == 0

    def overwrite(self, table: str, keys: list[int]) -> None:
        """Write the row of another key as a newer one of each of these keys to the topic."""
        topic = f"{self.config.kafka.prefix}.public.{table}"
        by_key = {message.key(): message for message in read_raw(self.bootstrap, topic) if message.value()}
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        other = by_key[_framed(next(iter(by_key)), 10)]
        for key in keys:
            raw = _framed(next(iter(by_key)), key)
            (header,) = (value for name, value in by_key[raw].headers() if name == POSITION_HEADER)
            newer = replace(Position.from_bytes(header), ordinal=1 << 20)
            producer.produce(topic, other.value(), raw, headers=[(POSITION_HEADER, newer.to_bytes())])
        assert producer.flush(10) == 0


def _framed(sample: bytes, key: int) -> bytes:
    """Return the framed Avro of an int key."""
    number, out = key << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return sample[:5] + bytes([*out, number])


@pytest.fixture
def pipeline(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Iterator[Pipeline]:
    more = "[snapshot]\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 50\n"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int, label text)")
        connection.execute("INSERT INTO t SELECT g, g, 'row ' || g FROM generate_series(1, %s) g", (ROWS,))
        yield Pipeline(servers, write_config(tmp_path, database, servers.bootstrap, prefix, more), connection)


def test_cuts_stay_states_while_a_table_is_read_again(pipeline: Pipeline) -> None:
    with running(pipeline.path) as daemon:
        wait_for(pipeline.config, lambda record: record.is_state)
        assert pipeline.outcomes("start", "t", "--rate", "400") == {"public.t": "started"}
        assert pipeline.outcomes("start", "t") == {"public.t": "being read already"}
        assert pipeline.status("t").state == "reading"
        assert wait_for(pipeline.config, lambda record: record.counts.get(f"{pipeline.config.kafka.prefix}.public.t"))
        pipeline.equal("t")
        pipeline.wait_until_copied(daemon, "t", 2)
        pipeline.equal("t")
        found = pipeline.status("t")
        assert (found.run, found.state, found.incomplete) == (2, "done", False)
        reread = {record.key for record in pipeline.records("t") if record.snapshot == 2}
        assert len(reread) == ROWS
        assert {run for _, run, _ in stored_reads(pipeline.config).chunks} == {2}, "the topic grows by each run"
        assert daemon.stop() == 0


def test_windows_are_not_read_faster_than_the_limit(pipeline: Pipeline) -> None:
    """The limit allows half a second's worth more, and the last window."""
    allowed, copied = 20_000, sum(len(f"{g}\t{g}\trow {g}\n") for g in range(1, ROWS + 1))
    text = pipeline.path.read_text()
    pipeline.path.write_text(
        text.replace("[snapshot]\n", f'[snapshot]\nmode = "interleaved"\nmax_bytes_per_s = {allowed}\n')
    )
    with running(pipeline.path) as daemon:
        wait_for(pipeline.config, lambda record: record.is_state)
        pipeline.equal("t")
        (begin,), (end,) = (events(daemon, name) for name in ("table read started", "table copied"))
        took = datetime.fromisoformat(end["timestamp"]) - datetime.fromisoformat(begin["timestamp"])
        last = copied / begin["chunks"] * 1.5
        assert took.total_seconds() > (copied - last) / allowed - 0.5
        assert daemon.stop() == 0


def test_a_snapshot_with_a_condition_reads_only_its_rows(pipeline: Pipeline) -> None:
    with running(pipeline.path) as daemon:
        wait_for(pipeline.config, lambda record: record.is_state)
        refused = tailrace("snapshot", "start", "t", "--where", "n = = 1", "--config", str(pipeline.path))
        assert refused.returncode == 3, refused.stderr
        assert "TR-130" in refused.stderr
        assert "syntax error" in refused.stderr
        # valid for the planner, an error at the first row
        assert pipeline.outcomes("start", "t", "--where", "1 / (n - n) = 1") == {"public.t": "started"}
        wait_for(pipeline.config, lambda _: events(daemon, "table read failed: cannot select rows"))
        wait_for(pipeline.config, lambda _: pipeline.status("t").state == "failed")
        assert pipeline.status("t").where == "1 / (n - n) = 1"
        assert pipeline.outcomes("start", "t", "--where", "n % 10 = 0 -- a comment") == {"public.t": "started"}
        pipeline.wait_until_copied(daemon, "t", 4)
        pipeline.connection.execute("ALTER TABLE t ADD extra text")
        pipeline.connection.execute("UPDATE t SET extra = 'x' WHERE n <= 7")
        assert pipeline.outcomes("start", "t", "--columns", "extra") == {"public.t": "started"}
        pipeline.wait_until_copied(daemon, "t", 5)
        pipeline.equal("t")
        records = pipeline.records("t")
        assert sorted(r.key[0] for r in records if r.snapshot == 4) == list(range(10, ROWS + 1, 10))
        assert sorted(r.key[0] for r in records if r.snapshot == 5) == list(range(1, 8))
        assert daemon.stop() == 0


def test_a_snapshot_is_paused_resumed_after_a_kill_and_cancelled(pipeline: Pipeline) -> None:
    with running(pipeline.path) as daemon:
        wait_for(pipeline.config, lambda record: record.is_state)
        assert pipeline.outcomes("cancel") == {}
        pipeline.outcomes("start", "t", "--rate", "400")
        wait_for(pipeline.config, lambda _: pipeline.status("t").chunks_done)
        assert pipeline.outcomes("pause") == {"public.t": "paused"}
        assert pipeline.outcomes("pause") == {"public.t": "paused already"}
        wait_for_state(pipeline.config, pipeline.connection)
        paused = pipeline.status("t")
        daemon.kill()
    assert paused.state == "paused"
    assert 0 < (paused.chunks_done or 0) < (paused.chunks or 0)
    assert 0 < (paused.rows or 0) < ROWS
    # the rate is 400, but the first chunk has the planned size
    assert 0 < (paused.rows_per_s or 0) < 2000
    assert paused.lsn is not None
    assert paused.seconds_left is None
    not_taken = pipeline.snapshot("resume", "--timeout", "0")
    assert not not_taken["taken"]
    done = tailrace("snapshot", "resume", "--timeout", "0", "--config", str(pipeline.path))
    assert (done.returncode, "the request stays on Kafka until `tailrace run`" in done.stderr) == (0, True), done.stderr
    shown = pipeline.snapshot("status")
    assert shown["tables"][0]["state"] == "paused"
    assert shown["waiting"][0]["action"] == "resume"
    with running(pipeline.path) as daemon:
        pipeline.wait_until_copied(daemon, "t", 2)
        again = [record.key for record in pipeline.records("t") if record.snapshot == 2]
        assert len(again) == len(set(again)) == ROWS
        pipeline.outcomes("start", "t", "--rate", "400")
        wait_for(pipeline.config, lambda _: pipeline.status("t").chunks_done)
        now = pipeline.status("t")
        assert (now.seconds_left or 0) > 0
        # at most the rate of 400, not that of a single chunk
        assert 0 < (now.rows_per_s or 0) <= 400
        assert pipeline.outcomes("cancel", "t") == {"public.t": "cancelled"}
        assert pipeline.outcomes("cancel", "t") == {"public.t": "not being read"}
        pipeline.connection.execute("UPDATE t SET n = -n")
        pipeline.equal("t")
        found = pipeline.status("t")
        assert (found.run, found.state, found.rate) == (3, "cancelled", 400)
        assert 0 < (found.chunks_done or 0) < (found.chunks or 0)
        assert daemon.stop() == 0


def test_reconcile_deletes_the_keys_that_the_table_lacks(pipeline: Pipeline) -> None:
    ghosts = range(ROWS + 1, ROWS + 5001)
    with running(pipeline.path) as daemon:
        wait_for(pipeline.config, lambda record: record.is_state)
        wait_for_state(pipeline.config, pipeline.connection)
        pipeline.spoil("t", range(1, ROWS + 1), ghosts)
        # the daemon knows the end of its own records, so one of them must come after the spoiled ones
        pipeline.connection.execute("UPDATE t SET n = n + 1")
        wait_for_state(pipeline.config, pipeline.connection)
        pipeline.connection.execute("INSERT INTO t VALUES (%s, 0, 'not gone')", (ghosts[0],))
        pipeline.outcomes("start", "t", "--reconcile")
        pipeline.connection.execute("INSERT INTO t VALUES (%s, 0, 'not gone')", (ghosts[1],))
        pipeline.wait_until_copied(daemon, "t", 2)
        pipeline.connection.execute("INSERT INTO t VALUES (%s, 0, 'back again')", (ghosts[2],))
        pipeline.equal("t")
        assert (pipeline.status("t").state, pipeline.status("t").reconcile) == ("done", True)
        deletes = [r for r in pipeline.records("t") if r.value is not None and r.value["op"] == "d"]
        assert {r.key[0] for r in deletes} == set(ghosts[2:])
        for record in deletes:
            assert record.value is not None
            assert record.value["before"] == {"id": record.key[0], "n": None, "label": None}
            assert (record.snapshot, record.value["after"]) == (2, None)
        repairs_what_verify_has_found(pipeline)
        assert daemon.stop() == 0


def repairs_what_verify_has_found(pipeline: Pipeline) -> None:
    """Rows that differ are read again by their keys; keys that the source lacks need the whole table."""
    config = pipeline.config
    pipeline.overwrite("t", [3, 5])
    pipeline.connection.execute("UPDATE t SET n = n + 1 WHERE id > 10")
    plan = plan_of([compared(config, "t")])
    assert plan is not None
    assert [(read.table, read.keys) for read in plan.tables] == [("public.t", 2)]
    read_again(config, plan.tables[0], 20, no_display)
    again = [record.key[0] for record in pipeline.records("t") if record.snapshot == 3]
    assert sorted(again) == [3, 5]
    assert plan_of([compared(config, "t")]) is None

    pipeline.spoil("t", range(1, ROWS + 1), range(ROWS + 9001, ROWS + 9003))
    pipeline.connection.execute("UPDATE t SET n = n + 1 WHERE id > 10")
    plan = plan_of([compared(config, "t")])
    assert plan is not None
    assert [(read.keys, read.where) for read in plan.tables] == [(2, None)]
    read_again(config, plan.tables[0], 20, no_display)
    assert plan_of([compared(config, "t")]) is None


@pytest.mark.parametrize("how", ["lost", "dropped"])
def test_a_gap_is_repaired_by_the_commands_of_the_hint(how: str, servers: Servers, tmp_path: Path, prefix: str) -> None:
    with own_postgres({"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB"}) as server:
        dsn = postgres.dsn(server)
        path = write_config(tmp_path, dsn, servers.bootstrap, prefix, "[snapshot]\nchunk_bytes = 65536\n")
        config = load(path)
        with psycopg.connect(dsn, autocommit=True) as connection:
            create_tables(connection)
            connection.execute("CREATE TABLE event (at timestamptz DEFAULT now(), what text)")
            with Writer(dsn, 7).writing() as writer:
                with running(path) as daemon:
                    wait_for(config, lambda record: record.is_state and writer.transactions > 50)
                    assert daemon.stop() == 0
                before = wait_for(config, lambda record: True)
                _gap(connection, config.source.slot, how)
                do_as_the_hint_says(path)
                with running(path) as daemon:
                    first = wait_for(config, lambda record: record.generation == 2)
                    assert {f"public.{table}" for table in TABLES} <= set(first.incomplete_tables)
                    wait_for(config, lambda record: record.is_state and record.generation == 2)
                    # the value in the cache from before the gap is not the row's any more
                    connection.execute("UPDATE document SET title = 'after' WHERE id % 3 = 0")
                    writer.stop()
                    assert_equal(servers.bootstrap, config, connection)
                    assert [differing_keys(config, table) for table in TABLES] == [0, 0, 0]
                    after = wait_for(config, lambda record: record.is_state)
                    assert after.here.position.epoch == before.here.position.epoch
                    events_now = read_topic(servers.bootstrap, prefix, "public.event")
                    behind = max(n for n, record in enumerate(events_now) if record.key == ())
                    assert [r.value["op"] for r in events_now[behind + 1 :] if r.value] == ["r"] * 10
                    assert verify_log(config).tally.findings == []
                    assert daemon.stop() == 0


def _gap(connection: psycopg.Connection[Any], slot: str, how: str) -> None:
    """Make changes, then make sure that the slot never delivers them."""
    connection.execute("INSERT INTO event (what) SELECT 'in the gap' FROM generate_series(1, 10)")
    connection.execute("DELETE FROM account WHERE id % 5 = 0")
    connection.execute("UPDATE document SET body = 'changed in the gap' WHERE id % 3 = 0")
    connection.execute("INSERT INTO document (id, title) VALUES (-1, 'new in the gap')")
    if how == "dropped":
        drop_slot(connection, slot)
        return
    lose_slot(connection, slot)
