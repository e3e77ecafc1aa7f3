"""The whole path with real processes: daemon, `views follow` and a load; every view equals the source.

The views are read by pyiceberg and OpenSearch's own client, the source by psycopg, and compared as Python values: the
comparison uses nothing of `tailrace verify`, which is itself tested on views that someone else has changed.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from opensearchpy.helpers import scan
from psycopg.rows import dict_row
from pyiceberg.catalog import load_catalog

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.shop import TABLES, create_shop
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.operations.read_status import read_status, wal_lsn
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, Search
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.opensearch.bulk import connect
from tests.support.daemon import (
    ROOT,
    do_as_the_hint_says,
    lose_slot,
    running,
    tailrace,
    wait_for,
    wait_for_state,
    wait_until,
    write_config,
)
from tests.support.postgres_own import own_postgres

_SEARCHED = ("products", "orders")
_KEYS = {"countries": ("code",), "order_items": ("order_id", "line")}
_HIDING = """[source]
exclude = ["public.customers.preferences"]
mask = { "public.customers.name" = 3 }
hash = ["public.customers.email"]
hash_salt = "pepper"
"""
_SPARK = f'[spark.conf]\n"spark.driver.extraJavaOptions" = "{SMALL_SPARK}"\n'


@dataclass
class Shop:
    """A pipeline over the demo shop, with all of its processes running."""

    file: Path
    dsn: str
    folder: Path
    search: str

    @property
    def config(self) -> Config:
        return load(self.file)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return tailrace(*arguments, "--config", str(self.file), timeout=600)

    def wait_for_views(self, seconds: float = 600) -> None:
        """Return when every view has everything that the source has now."""
        with psycopg.connect(self.dsn) as connection:
            target = wal_lsn(connection)
        deadline = time.monotonic() + seconds
        while True:
            views = read_status(self.config).views
            if all(view.flushed_lsn is not None and view.flushed_lsn >= target for view in views):
                return
            assert time.monotonic() < deadline, f"{views}\n{(self.folder / 'follow.log').read_text()[-3000:]}"
            time.sleep(1.0)


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our Python modules; kill it after the block in any case."""
    with log.open("ab") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def end(started: subprocess.Popen[bytes]) -> int:
    started.send_signal(signal.SIGTERM)
    return started.wait(60)


def sections(folder: Path) -> str:
    """Return the configuration sections that every job needs."""
    return f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n{_SPARK}'


def write_views(
    folder: Path, dsn: str, bootstrap: str, prefix: str, search: str, more: str = "", tables: Sequence[str] = TABLES
) -> Path:
    views = "".join(f'[views.{table}]\ntable = "public.{table}"\n' for table in tables)
    searched = [table for table in tables if search and table in _SEARCHED]
    views += "".join(f'[views.{table}_search]\ntable = "public.{table}"\ntarget = "search"\n' for table in searched)
    index = f'[search]\nhosts = ["{search}"]\nindex_prefix = "{prefix}-"\n' if search else ""
    file = write_config(folder, dsn, bootstrap, prefix, more + sections(folder) + index + views)
    file.write_text(file.read_text().replace("[source]\n", _HIDING))
    return file


def small_shop(dsn: str) -> None:
    """Create the demo shop with one order in seven: all kinds of values, and fewer rows to compare."""
    create_shop(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM order_items WHERE order_id % 7 > 0")
        connection.execute("DELETE FROM orders WHERE id % 7 > 0")


def as_hidden(customer: dict[str, Any]) -> dict[str, Any]:
    """Return a customer as the column options leave it."""
    name = customer["name"]
    email = hmac.new(b"pepper", customer["email"].encode(), "sha256").hexdigest()
    shown = {column: value for column, value in customer.items() if column != "preferences"}
    return shown | {"name": "*" * (len(name) - 3) + name[-3:], "email": email}


def source_rows(dsn: str, table: str) -> list[dict[str, Any]]:
    """Return the rows as psycopg reads them, with text and hidden columns in the form of the topics."""
    with psycopg.connect(dsn, options="-c timezone=UTC", row_factory=dict_row) as connection:
        types = connection.execute(
            "SELECT attname, atttypid::regtype::text AS type FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (table,),
        ).fetchall()
        texts = ("jsonb", "order_status")
        columns = [f"{t['attname']}::text" if t["type"] in texts else t["attname"] for t in types]
        rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}".encode()).fetchall()
        return [as_hidden(row) for row in rows] if table == "customers" else rows


def warehouse_rows(shop: Shop, table: str) -> list[dict[str, Any]]:
    catalog = load_catalog("tailrace", type="sql", uri=f"sqlite:///{shop.folder}/catalog.db")
    rows: list[dict[str, Any]] = catalog.load_table(f"views.{table}").scan().to_arrow().to_pylist()
    return rows


def search_rows(shop: Shop, alias: str) -> list[dict[str, Any]]:
    with connect(Search(hosts=[shop.search])) as client:
        return [hit["_source"] for hit in scan(client, index=f"{shop.config.kafka.prefix}-{alias}")]


def as_document(value: Any) -> Any:
    """Convert a value of the source to its form in a document."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%dT%H:%M:%S.%f").rstrip("0").rstrip(".")
        return text + "Z"
    return value.isoformat() if isinstance(value, date) else value


def by_key(rows: list[dict[str, Any]], table: str) -> dict[Any, dict[str, Any]]:
    key = _KEYS.get(table, ("id",))
    found = {tuple(row[part] for part in key): row for row in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


def assert_equal(left: dict[Any, dict[str, Any]], right: dict[Any, dict[str, Any]]) -> None:
    """Compare rows and report the first few differences; pytest's own report would take minutes."""
    differing = [(key, left.get(key), right.get(key)) for key in left.keys() | right.keys()]
    differing = [each for each in differing if each[1] != each[2]]
    assert differing[:3] == [], f"{len(differing)} rows differ"


def assert_views_equal_source(shop: Shop) -> None:
    for table in TABLES:
        rows = source_rows(shop.dsn, table)
        assert rows
        assert_equal(by_key(rows, table), by_key(warehouse_rows(shop, table), table))
        if table in _SEARCHED and shop.search:
            documents = [{name: as_document(value) for name, value in row.items()} for row in rows]
            assert_equal(by_key(documents, table), by_key(search_rows(shop, f"{table}_search"), table))


def assert_verified(shop: Shop, *views: str) -> None:
    done = shop.run("verify", "--json", *views)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(views or shop.config.views)
    for result in results:
        assert result["equal"]
        assert [compared["differing"] for compared in result["comparisons"]] == [0, 0]
        assert all(compared["left_rows"] > 0 for compared in result["comparisons"])


def test_views_equal_the_source(
    servers: Servers,
    search_url: str,
    database: str,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_shop(database)
    # under load, batches of seven views would otherwise follow one another all the time, beside what is tested here
    more = "[spark]\ntrigger_interval_ms = 10000\n"
    file = write_views(tmp_path, database, servers.bootstrap, prefix, search_url, more)
    shop = Shop(file, database, tmp_path, search_url)
    work = ("tailrace.cdc.dev.demo", "load", "--dsn", database, "--rate", "10")
    with (
        running(file) as daemon,
        process(tmp_path / "load.log", *work) as load_process,
        process(tmp_path / "follow.log", "tailrace.cdc.cli.main", "views", "follow", "--config", str(file)) as follow,
    ):
        shop.wait_for_views()
        assert_verified(shop)

        done = shop.run("views", "rebuild", "orders", "products_search")
        assert done.returncode == 0, done.stderr
        generations = {view.name: view.generation for view in read_status(shop.config).views}
        assert (generations["orders"], generations["products_search"], generations["products"]) == (2, 2, 1)
        assert_verified(shop, "orders", "products_search")
        done = shop.run("verify", "--log")
        assert done.returncode == 0, done.stdout + done.stderr

        assert end(load_process) == 0
        shop.wait_for_views()
        assert_views_equal_source(shop)
        monkeypatch.setenv("TAILRACE_CONFIG", str(file))
        assert_examples_are_right(shop)

        order = source_rows(database, "orders")[0]["id"]
        someone_else_changes(shop, order)
        done = shop.run("verify", "--json", "orders", "orders_search", "products_search")
        assert done.returncode == 7, done.stdout + done.stderr
        found = [json.loads(line)["comparisons"] for line in done.stdout.splitlines()]
        assert [[compared["differing"] for compared in result] for result in found] == [[0, 0], [0, 1], [0, 1]]
        assert [result[1]["differences"][0]["key"] for result in found[1:]] == [[str(order)], ["7"]]
        with process(tmp_path / "load.log", *work) as load_process:
            assert_repaired(shop)
            assert end(load_process) == 0
        shop.wait_for_views()
        assert_views_equal_source(shop)

        assert end(follow) == 0
        assert daemon.stop() == 0


def assert_repaired(shop: Shop) -> None:
    """Repair two documents under load; a second repair has nothing to do."""
    refused = shop.run("verify", "orders", "--repair")
    assert (refused.returncode, "TR-702" in refused.stderr) == (3, True), refused.stderr
    views = ("orders_search", "products_search")
    done = shop.run("verify", "--json", "--repair", "--yes", *views)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (plan,) = (line["plan"] for line in lines if "plan" in line)
    assert (plan["tables"], plan["views"], plan["bases"]) == ([], dict.fromkeys(views, 1), {})
    assert {line["repaired"]["view"]: line["repaired"]["keys"] for line in lines if "repaired" in line} == plan["views"]
    assert [line["equal"] for line in lines if "equal" in line] == [False] * 2 + [True] * 2
    again = shop.run("verify", "--repair", "--yes", *views)
    assert (again.returncode, "nothing to repair" in again.stderr) == (0, True), again.stderr


def assert_examples_are_right(shop: Shop) -> None:
    """Run the code blocks of `docs/how-to/read-views.md`, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "read-views.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {
        "dsn": shop.dsn,
        "search_url": shop.search,
        "index_prefix": f"{shop.config.kafka.prefix}-",
    }
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3
    with psycopg.connect(shop.dsn) as connection:
        prices = connection.execute("SELECT price FROM products ORDER BY price DESC LIMIT 3").fetchall()
        labels = connection.execute(
            "SELECT label, count(*) FROM products, unnest(labels) AS label WHERE price >= 10 GROUP BY label"
        ).fetchall()
    assert [price for _, price in names["dearest"]] == [price for (price,) in prices]
    assert parse_lsn(names["state"].lsn) <= parse_lsn(names["before"])
    assert names["changed"] == 10
    assert names["facets"].items() <= dict(labels).items()
    assert sorted(names["facets"].values()) == sorted(count for _, count in labels)[-5:]
    with pytest.raises(TailraceError, match="TR-562"):
        names["tailrace"].table("products", "FFFFFFFF/0")
    with pytest.raises(TailraceError, match="TR-561"):
        names["tailrace"].table("products", 1)


def someone_else_changes(shop: Shop, order: int) -> None:
    """Delete a document and change another without the views' knowledge."""
    prefix = shop.config.kafka.prefix
    with connect(Search(hosts=[shop.search])) as client:
        client.delete(index=f"{prefix}-products_search", id="[7]", params={"refresh": "true"})
        client.update(
            index=f"{prefix}-orders_search",
            id=f"[{order}]",
            body={"doc": {"note": "changed by hand"}},
            params={"refresh": "true"},
        )


def test_the_hint_repairs_topics_and_views_after_a_lost_slot(
    servers: Servers, search_url: str, prefix: str, tmp_path: Path
) -> None:
    """The hint's commands, word for word, make topics and views right, though the gap is lost for ever."""
    with own_postgres({"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB"}) as server:
        dsn = postgres.dsn(server)
        small_shop(dsn)
        file = write_views(tmp_path, dsn, servers.bootstrap, prefix, search_url, tables=["products"])
        shop = Shop(file, dsn, tmp_path, search_url)
        follow_it = ("tailrace.cdc.cli.main", "views", "follow", "--config", str(file))
        with process(tmp_path / "follow.log", *follow_it) as follow:
            with running(file) as daemon:
                shop.wait_for_views()
                assert daemon.stop() == 0
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DELETE FROM order_items WHERE product_id % 7 = 0")
                connection.execute("DELETE FROM products WHERE id % 7 = 0")
                connection.execute("UPDATE products SET price = price + 1 WHERE id % 3 = 0")
                lose_slot(connection, shop.config.source.slot)
            do_as_the_hint_says(file)
            with running(file) as daemon:
                wait_for(shop.config, lambda record: record.is_state and record.generation == 2)
                shop.wait_for_views()
                assert_verified(shop)
                assert_groups_name_cuts(shop)
                assert daemon.stop() == 0
            assert end(follow) == 0


def assert_groups_name_cuts(shop: Shop) -> None:
    """The offsets in Kafka's own tools are those that each view has applied."""
    kafka = shop.config.kafka

    # Not by AdminClient: librdkafka aborts the process if a broker answers that it is not the coordinator (its #5040).
    def committed(view: str) -> dict[str, list[int]]:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{kafka.prefix}.{view}"})
        try:
            topics = consumer.list_topics(timeout=10).topics
            wanted = [
                TopicPartition(name, partition)
                for name in topics
                if name.startswith(f"{kafka.prefix}.")
                for partition in sorted(topics[name].partitions)
            ]
            offsets: dict[str, list[int]] = {}
            for each in consumer.committed(wanted, 10):
                if each.offset >= 0:
                    offsets.setdefault(each.topic, []).append(each.offset)
            return offsets
        finally:
            consumer.close()

    def all_level() -> bool:
        applied = read_views(kafka, Topics(kafka.prefix))
        return all(record.cut is not None and committed(view) == record.cut.offsets for view, record in applied.items())

    assert len(read_views(kafka, Topics(kafka.prefix))) == len(shop.config.views)
    wait_until(all_level)


def test_a_rebuild_from_compacted_topics_equals_the_source(
    servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    """The log cleaner has removed most versions before the rebuild."""
    small_shop(database)
    short = "min_compaction_lag_ms = 1\ndelete_retention_ms = 1\n"
    file = write_views(tmp_path, database, servers.bootstrap, prefix, "", short)
    shop = Shop(file, database, tmp_path, "")
    with running(file), psycopg.connect(database, autocommit=True) as connection:
        wait_for_state(shop.config, connection)
        topic = f"{prefix}.public.customers"
        compact_soon(servers.bootstrap, topic)
        connection.execute("DELETE FROM order_items; DELETE FROM orders")
        for n in range(10):
            connection.execute("UPDATE customers SET credit = %s", (n,))
            connection.execute("DELETE FROM customers WHERE id %% 50 = %s", (n,))
        connection.execute("INSERT INTO orders (customer_id) SELECT id FROM customers")
        connection.execute("INSERT INTO order_items SELECT id, 1, 1, 1, 1 FROM orders")
        wait_for_state(shop.config, connection)
        written = 10_000 + 10 * 9_000
        left = compacted_to(servers.bootstrap, topic, 20_000, connection)
        assert left < written / 4

        done = shop.run("views", "rebuild", *TABLES)
        assert done.returncode == 0, done.stderr
        assert_views_equal_source(shop)


def compact_soon(bootstrap: str, topic: str) -> None:
    """Give a topic short segments, so that the cleaner finds inactive ones."""
    settings = {"segment.ms": "200", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.0001"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def compacted_to(bootstrap: str, topic: str, wanted: int, connection: psycopg.Connection[Any]) -> int:
    """Wait until a topic has at most `wanted` records, return the count; small changes roll its segments."""
    deadline = time.monotonic() + 90
    while (left := records_on(bootstrap, topic)) > wanted:
        assert time.monotonic() < deadline, f"{left} records are left"
        connection.execute("UPDATE customers SET credit = credit + 1 WHERE id > 9900")
        time.sleep(1)
    return left


def records_on(bootstrap: str, topic: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "count",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = [TopicPartition(topic, n, 0) for n in range(3)]
        consumer.assign(partitions)
        count = ended = 0
        while ended < len(partitions):
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    count += 1
                else:
                    ended += 1
        return count
    finally:
        consumer.close()
