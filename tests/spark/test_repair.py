"""`tailrace verify --all` names, and a repair mends, one spoiled row of every kind of thing, in one pipeline."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import fastavro
import orjson
import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tailrace.cdc.cli import main as cli
from tailrace.cdc.cli import repair as cli_repair
from tailrace.cdc.cli import verify as cli_verify
from tailrace.cdc.cli.display import Display
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.launch.spark_job import Job, job
from tailrace.cdc.operations.read_status import read_status, wal_lsn
from tailrace.cdc.operations.repair import plan_of
from tailrace.cdc.operations.verify_result import Result
from tailrace.schemas.config.file import load, read
from tailrace.schemas.config.model import Config, Warehouse
from tailrace.schemas.envelope import FRAMING_SIZE, POSITION_HEADER, schema_id_of
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.named_tables import with_found_tables
from tailrace.sinks.control.views_topic import ViewsTopic
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.command import parser
from tailrace.spark_jobs.jobs.follow import follow
from tailrace.spark_jobs.jobs.repair import repair
from tailrace.spark_jobs.jobs.verify import verify_all
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.topics.cuts import Cuts
from tailrace.spark_jobs.topics.records import Records
from tests.spark.conftest import INTERPRETED, spark_conf
from tests.support.daemon import running, wait_for_state, wait_until, write_config
from tests.support.terminal import alive_in
from tests.support.topics import read_raw, read_topic, schemas

TABLES: Final = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, n int, note text, at timestamptz);
CREATE TABLE saved (id int PRIMARY KEY, query jsonb);
INSERT INTO saved VALUES (1, '{"match": {"note": "more"}}'), (2, '{"range": {"n": {"lt": 0}}}');
INSERT INTO customers SELECT g, 'customer ' || g FROM generate_series(1, 9) g;
INSERT INTO orders SELECT g, 1 + g % 6, g, 'order ' || g, timestamptz '2026-01-01 00:00Z' + g * interval '20 minutes'
    FROM generate_series(1, 12) g;
"""
"""Customers from 7 on have no orders; the load changes only orders from 100 on, of customer 1 on another day."""

VIEWS: Final = {
    "people": """table = "public.customers\"""",
    "rows": """table = "public.orders\"""",
    "joined": """key = ["id"]
query = "SELECT o.id, o.n, c.name FROM public.orders o JOIN public.customers c ON c.id = o.customer\"""",
    "hours": """key = ["hour"]
query = '''SELECT window.start AS hour, count(*) AS orders, sum(n) AS total
FROM public.orders GROUP BY window(at, '1 hour')'''""",
    "documents": """key = ["id"]
target = "search"
query = '''SELECT customer AS id, max(n) AS most, sort_array(collect_list(struct(id, note))) AS orders
FROM public.orders GROUP BY customer'''""",
    "history": """table = "public.orders"
shape = "history\"""",
    "alerts": """table = "public.orders"
shape = "percolate"
queries = "public.saved.query\"""",
    "log": """table = "public.orders"
shape = "log\"""",
}

Differing = dict[tuple[str, str | None, str], int]
"""Differing keys by view (without its suffix), table, and what was compared."""


@dataclass
class World:
    """A source under load, its daemon, and all kinds of views, maintained by `follow` in this Spark session."""

    file: Path
    config: Config
    suffix: str
    connection: psycopg.Connection[Any]
    spark: SparkSession
    shared: Shared
    capsys: pytest.CaptureFixture[str]

    def called(self, name: str) -> str:
        return f"{name}_{self.suffix}"

    def view(self, name: str) -> KeptView:
        return self.shared.views[self.called(name)]

    def table(self, name: str) -> str:
        target = self.view(name).batch.target
        assert isinstance(target, IcebergTarget)
        return target.table()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(read_view(self.config, self.called(name)).rows)

    def wait_for_views(self) -> None:
        """Return when every view has everything that the source has now."""
        target = wal_lsn(self.connection)

        def are_there() -> bool:
            found = read_status(self.config).views
            return all(view.flushed_lsn is not None and view.flushed_lsn >= target for view in found)

        wait_until(are_there, 300)

    def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a command of `tailrace` and return its exit code and its JSON lines."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["tailrace", *arguments, "--json", "--config", str(self.file)])
            # the session of these tests is warm, a new JVM takes ten seconds of a core to become so
            for module in (cli_verify, cli_repair):
                patch.setattr(module, "run_on", self._run_here)
            self.capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main()
        out, err = self.capsys.readouterr()
        lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
        assert ended.value.code in (None, 0, 7), err
        return int(ended.value.code or 0), lines

    def repair(self, lines: list[dict[str, Any]]) -> tuple[dict[tuple[str | None, str | None], int], set[str]]:
        """Repair what the JSON lines of `verify` name, as `--repair` does.

        Return the repaired keys by view and table, and the views that are equal afterwards by the job's comparison.
        """
        plan = plan_of(list(map(Result.from_dict, lines)))
        assert plan is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli_repair, "run_on", self._run_here)
            self.capsys.readouterr()
            found = cli_repair.carry_out(plan, read(self.file), 120, 20, lambda *_: None, json=True)
        out, _ = self.capsys.readouterr()
        done = [each["repaired"] for each in map(json.loads, out.splitlines())]
        wrong = {result.view for result in found if not result.equal}
        return (
            {(each["view"], each["table"]): each["keys"] for each in done},
            {result.view for result in found} - wrong,
        )

    def _run_here(self, display: Display, started: Job, result: Callable[[str], None], **_: Any) -> int:
        """Run a job as `run_on` does, but in this process."""
        name = started.command[started.command.index("-m") + 1].rpartition(".")[2]
        options = parser(name)
        options.add_argument("--limit", type=int)
        options.add_argument("views", nargs="+")
        given = options.parse_args(started.command[started.command.index("-m") + 2 :])
        works: dict[str, Callable[..., None]] = {"verify": verify_all, "repair": repair}
        try:
            works[name](
                self.shared, given.views, given.limit, lambda each: result(orjson.dumps(each, default=str).decode())
            )
        except TailraceError as error:
            display.note(str(error))
            return error.exit_code
        return 0

    def differing(self, lines: list[dict[str, Any]]) -> Differing:
        """Return what differs according to the JSON lines of `verify`."""
        found: Differing = {}
        for line in (line for line in lines if "comparisons" in line):
            for each in (each for each in line["comparisons"] if each["differing"]):
                name = line["view"].removesuffix(f"_{self.suffix}")
                found[name, line["table"], each["compared"]] = each["differing"]
        return found

    def spoil(self, name: str, statement: str) -> None:
        """Change a table of the warehouse as another writer would; `{}` is the table."""
        with self.view(name).lease.held(60) as mine:
            assert mine
            self.spark.sql(statement.format(self.table(name)))

    def spoil_base_table(self, topic: str, statement: str) -> None:
        base = self.view("joined").batch.inputs.base(topic)  # type: ignore[attr-defined]
        with base.lease.held(60) as mine:
            assert mine
            self.spark.sql(statement.format(base.batch.target.table()))

    def spoil_document(self, key: str, change: Callable[[dict[str, Any]], None]) -> None:
        assert self.config.search is not None
        index = f"{self.config.search.index_prefix}{self.called('documents')}"
        with connect(self.config.search) as client:
            document = client.get(index=index, id=key)["_source"]
            change(document)
            client.update(index=index, id=key, body={"doc": document}, params={"refresh": "true"})

    def spoil_topic(self, table: str, key: int, column: str, value: Any) -> None:
        """Write a changed copy of a row's newest record to the topic, as another writer would."""
        kafka = self.config.kafka
        topic = f"{kafka.prefix}.{table}"
        found = read_topic(kafka.bootstrap, kafka.prefix, table)
        place = max((each.partition, each.offset) for each in found if each.key == (key,) and each.value is not None)
        (newest,) = (m for m in read_raw(kafka.bootstrap, topic) if (m.partition(), m.offset()) == place)
        raw = newest.value()
        schema = schemas(kafka.bootstrap, kafka.prefix)[schema_id_of(raw)]
        record: Any = fastavro.schemaless_reader(io.BytesIO(raw[FRAMING_SIZE:]), schema, None)
        record["after"][column] = value
        wrong = io.BytesIO()
        fastavro.schemaless_writer(wrong, schema, record)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        (position,) = (Position.from_bytes(value) for name, value in newest.headers() if name == POSITION_HEADER)
        header = replace(position, ordinal=position.ordinal + 1).to_bytes()
        framed = raw[:FRAMING_SIZE] + wrong.getvalue()
        producer.produce(topic, framed, newest.key(), newest.partition(), headers=[(POSITION_HEADER, header)])
        assert producer.flush(10) == 0


@pytest.fixture
def world(
    servers: Servers,
    search_url: str,
    database: str,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    warehouse: Warehouse,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[World]:
    suffix = uuid.uuid4().hex[:8]
    sections = f'[warehouse]\nuri = "{warehouse.uri}"\nlocation = "{warehouse.location}"\n'
    sections += f'namespace = "{warehouse.namespace}"\n[search]\nhosts = ["{search_url}"]\nindex_prefix = "{prefix}-"\n'
    sections += "".join(f"[views.{name}_{suffix}]\n{text}\n" for name, text in VIEWS.items())
    sections += "[spark]\ntrigger_interval_ms = 40000\n"  # batches take most of the time of this test
    sections += f'[spark.conf]\n"spark.driver.extraJavaOptions" = "{SMALL_SPARK}"\n{spark_conf(INTERPRETED)}'
    file = write_config(tmp_path, database, servers.bootstrap, prefix, sections)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        with running(file) as daemon:
            config = with_found_tables(load(file))
            records = Records(spark, config.kafka)
            wait_for_state(config, connection)
            connection.execute("UPDATE orders SET n = n + 100")
            with shared_by_a_job(config, spark, records) as shared, shared_by_a_job(config, spark, records) as other:
                views = [open_view(shared, name) for name in config.views]
                assert len(views) == len(VIEWS)
                with maintained(other), under_load(database):
                    yield World(file, config, suffix, connection, spark, shared, capsys)
            assert daemon.stop() == 0


@contextmanager
def shared_by_a_job(config: Config, spark: SparkSession, records: Records) -> Iterator[Shared]:
    """Yield what the views of a job share; `records` are those of all jobs, as they number names in one session."""
    with closing(Cuts(config)) as cuts:
        topic = ViewsTopic(config.kafka, Topics(config.kafka.prefix))
        shared = Shared(config, spark, records, cuts, topic, Groups(config.kafka))
        try:
            yield shared
        finally:
            shared.known.close()
            shared.groups.close()


@contextmanager
def maintained(shared: Shared) -> Iterator[None]:
    """Maintain all views for the block, as another job."""
    stop, views = threading.Event(), [open_view(shared, name) for name in shared.config.views]
    with ThreadPoolExecutor(1) as pool:
        maintaining = pool.submit(follow, shared, views, stop, None)
        try:
            yield
        finally:
            stop.set()
            maintaining.result()
    assert [view.error for view in views] == [None] * len(views)


@contextmanager
def under_load(dsn: str) -> Iterator[None]:
    """Change rows that no test spoils, every two seconds for the block."""
    stop = threading.Event()

    def load() -> None:
        number = 0
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(2):
                number += 1
                order = (
                    "INSERT INTO orders VALUES (%s, 1, %s, 'more', '2026-02-02Z') ON CONFLICT (id) DO UPDATE SET n = %s"
                )
                connection.execute(order, (100 + number % 10, number, number))
                connection.execute(
                    "INSERT INTO customers VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                    (20 + number % 10, f"customer at {number}"),
                )
                if number % 7 == 0:
                    connection.execute("DELETE FROM orders WHERE id = %s", (100 + number % 10,))

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        try:
            yield
        finally:
            stop.set()
            loading.result()


def test_a_spoiled_row_of_every_kind_is_named_and_repaired_under_load(world: World) -> None:
    world.wait_for_views()
    world.spoil_topic("public.customers", 8, "name", "-")
    world.spoil("rows", "UPDATE {} SET n = -1 WHERE id = 3")
    world.spoil_base_table(f"{world.config.kafka.prefix}.public.customers", "UPDATE {} SET name = '-' WHERE id = 9")
    world.spoil("joined", "UPDATE {} SET name = '-' WHERE id = 4")
    world.spoil("hours", "UPDATE {} SET total = -1 WHERE hour = timestamp '2026-01-01 00:00:00'")
    world.spoil("history", "UPDATE {} SET n = -1 WHERE id = 5 AND valid_to IS NOT NULL")
    world.spoil("log", "UPDATE {} SET n = -1 WHERE id = 6 AND op = 'u'")
    world.spoil_document("[2]", lambda document: document.update(most=-1))
    world.spoil_document("[3]", lambda document: document["orders"][0].update(note="-"))
    # once the daemon has written behind it, the views have applied what another writer wrote, and the load has matches
    wait_until(lambda: any(row["id"] == 8 and row["name"] == "-" for row in world.rows("people")), 300)
    wait_until(lambda: world.rows("alerts"), 300)
    lsn = min(row["commit_lsn"] for row in world.rows("alerts"))
    world.spoil("alerts", f"DELETE FROM {{}} WHERE commit_lsn = {lsn}")

    code, lines = world.run("verify", "--all")
    recomputed = ("joined", "hours", "history", "log", "alerts")
    spoiled: Differing = {(name, None, "content and view at C"): 1 for name in recomputed}
    spoiled["documents", None, "content and view at C"] = 2
    spoiled["joined", "public.customers", "topic and base table at C"] = 1
    spoiled["rows", "public.orders", "topic and view at C"] = 1
    spoiled["people", "public.customers", "source and topic at X"] = 1
    assert (code, world.differing(lines)) == (7, spoiled)

    # a repair that is killed between its commits has repaired the base table, and not yet the view
    killed_repair(world, world.called("joined"))
    done, equal = world.repair(lines)
    expected: dict[tuple[str | None, str | None], int] = {
        (world.called(name), None): 1 for name in ("rows", *recomputed)
    }
    expected[world.called("documents"), None] = 2
    expected[None, "public.customers"] = 1
    assert done == expected
    assert equal == {world.called(name) for name in ("documents", *recomputed)}
    code, lines = world.run("verify", *map(world.called, ("people", "rows", "history")))
    assert (code, world.differing(lines)) == (0, {})


_KILLED: Final = """
import os, signal, sys
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.spark_jobs.jobs.repair import main

real = IcebergTarget.mend

def mend(*arguments):
    real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

IcebergTarget.mend = mend
main(sys.argv[1:])
"""


def killed_repair(world: World, view: str) -> None:
    """Run the job that repairs a view in its own process; it is killed after its first commit."""
    started = job(world.config, "repair", [])
    command = [sys.executable, "-P", "-c", _KILLED, "--config", str(world.file), view]
    log = world.file.parent / "repair.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=started.environment, stdout=out, stderr=out, cwd=log.parent, start_new_session=True
        )
    try:
        assert process.wait(400) == -signal.SIGKILL, log.read_text()
    finally:
        for each in alive_in(process.pid):
            each.kill()
    assert '"event": "progress"' in log.read_text()
    assert "rows repaired" not in log.read_text()
