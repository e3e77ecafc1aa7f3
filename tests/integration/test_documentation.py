"""The guides for a source and its tables: each command, statement and setting of a page is run, in the page's order.

Those with views are in `tests/spark/test_documentation.py`, with one demo for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import PositionRecord
from tests.support.daemon import ROOT, wait_for, wait_for_state, wait_until, write_config
from tests.support.documentation import Reader
from tests.support.otlp import receiver
from tests.support.servers import drop_slot
from tests.support.topics import latest, read_topic

_RUN = "tailrace run"


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A table like that of the pages' examples, and another one."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2));"
            "CREATE TABLE customers (id int PRIMARY KEY, name text);"
            "INSERT INTO orders SELECT g, g FROM generate_series(1, 20) g;"
            "INSERT INTO customers SELECT g, 'c' || g FROM generate_series(1, 20) g"
        )
        yield connection


@pytest.fixture
def reader(shop: object, servers: Servers, database: str, prefix: str, tmp_path: Path) -> Reader:
    """A reader with a configuration for the shop."""
    write_config(tmp_path, database, servers.bootstrap, prefix, '[health]\nlisten = "127.0.0.1:0"\n')
    return Reader(tmp_path, database)


def config_of(reader: Reader) -> Config:
    return load(reader.folder / "tailrace.toml")


def wait(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    """Return when the daemon has written all that the shop has; fail if it has ended."""
    wait_for_state(config_of(reader), shop)
    assert reader.services[_RUN].poll() is None


def has_topic(record: PositionRecord, table: str) -> bool:
    return any(name.endswith(f".public.{table}") for name in record.here.offsets)


def topic(reader: Reader, table: str, record: PositionRecord) -> dict[Any, Any]:
    """Return the newest row of each key on the topic of a table, up to a position record."""
    kafka = config_of(reader).kafka
    end = record.here.offsets[f"{kafka.prefix}.{table}"]
    return latest(read_topic(kafka.bootstrap, kafka.prefix, table, end))


def test_check_and_init(
    servers: Servers, shop: psycopg.Connection[Any], database: str, prefix: str, tmp_path: Path
) -> None:
    examples = {
        "host=db.example dbname=app user=me": database,
        "host=db.example dbname=app": database,
        "kafka.example:9092": servers.bootstrap,
    }
    reader = Reader(tmp_path, database, {"TAILRACE__HEALTH__LISTEN": "127.0.0.1:0"}, examples)
    try:
        with reader.page("how-to/check-and-init.md") as page:
            page.run_next()
            config = config_of(reader)
            assert config.source.dsn.get_secret_value() != database
            page.run_next()
            assert "Nothing stops a start" in page.run_next()
            page.run_next()
            wait(reader, shop)
    finally:
        drop_slot(shop, config.source.slot)
        shop.execute("DROP OWNED BY tailrace; DROP ROLE tailrace")


def test_add_and_remove_tables(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    with reader.page("how-to/add-and-remove-tables.md") as page:
        page.run_next()
        config = config_of(reader)
        assert config.source.tables == ["public.*", "!public.audit_*"]
        reader.start(_RUN)
        wait(reader, shop)

        page.run_next()
        assert 'ADD TABLE "public"."refunds"' in page.run_next()
        page.run_next()
        wait_for(config, lambda record: record.is_state and has_topic(record, "refunds"))
        assert page.run_next().count("refunds id=") == 2
        assert "streaming" in next(line for line in page.run_next().splitlines() if line.startswith("public.refunds"))

        page.run_next()
        shop.execute("UPDATE refunds SET amount = 1")
        page.run_next()
        assert reader.stop(_RUN) == 0
        reader.start(_RUN)
        wait(reader, shop)
        assert "refunds" not in reader.shell("tailrace status")

        page.run_next()
        assert reader.stop(_RUN) == 0
        reader.start(_RUN)
        page.run_next()
        wait_until(lambda: "streaming" in reader.shell("tailrace table list | grep ^public.refunds || true"))
        page.run_next()
        wait(reader, shop)
        record = wait_for(config, lambda record: record.is_state and has_topic(record, "returns"))
        assert {row["amount"] for row in topic(reader, "public.refunds", record).values()} == {1}


def test_parked_table(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    reader.start(_RUN)
    wait(reader, shop)
    shop.execute("UPDATE orders SET total = 'NaN' WHERE id = 3")
    config = config_of(reader)
    wait_for(config, lambda record: "public.orders" in record.parked)
    with reader.page("how-to/parked-table.md") as page:
        reader.shell("tailrace status", code=7)
        assert "tailrace table resume public.orders" in page.run_next()
        shop.execute("UPDATE orders SET total = 3 WHERE id = 3; DELETE FROM orders WHERE id = 4")
        page.run_next()
        record = wait_for(config, lambda record: not record.parked and record.is_state)
        assert set(topic(reader, "public.orders", record)) == {(number,) for number in range(1, 21) if number != 4}
        reader.shell("tailrace status")
        page.run_next()
        assert "left out" in reader.shell("tailrace table list")


def test_lost_slot(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    config = config_of(reader)
    reader.start(_RUN)
    wait(reader, shop)
    assert reader.stop(_RUN) == 0
    drop_slot(shop, config.source.slot)
    shop.execute("DELETE FROM orders WHERE id = 4; UPDATE orders SET total = 7 WHERE id = 5")
    with reader.page("how-to/lost-slot.md") as page:
        reader.shell(_RUN, code=6)
        page.run_next()
        page.run_next()
        wait(reader, shop)
        found = topic(reader, "public.orders", wait_for(config, lambda record: record.is_state))
        assert (len(found), found[5,]["total"]) == (19, 7)
        assert config.source.slot in page.run_next()
        assert reader.stop(_RUN) == 0
        page.run_next(typed=f"{config.source.slot}\n")
        row = shop.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (config.source.slot,)).fetchone()
        assert row is None
        reader.shell(_RUN, code=6)


def test_promoted_standby(reader: Reader, shop: psycopg.Connection[Any], database: str) -> None:
    """One server has no standby: the connection string with two hosts and the slot are shown on the primary alone.

    `test_promotion.py` promotes one.
    """
    info = shop.info
    user = f"{info.user}@"
    hosts = f"{user}{info.host}:{info.port},{info.host}:{info.port}/{info.dbname}"
    reader.examples = {"tailrace@a,b/app": hosts}
    with reader.page("how-to/promoted-standby.md") as page:
        page.run_next()
        assert config_of(reader).source.dsn.get_secret_value().endswith("target_session_attrs=read-write")
        reader.start(_RUN)
        wait(reader, shop)
        rows = page.run_next()
        assert f"('{config_of(reader).source.slot}', True, False, None)" in rows


def test_status_page(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    (port,) = free_ports([None])
    reader.examples = {"127.0.0.1:9464": f"127.0.0.1:{port}"}
    with reader.page("how-to/status-page.md") as page:
        page.run_next()
        reader.start(_RUN)
        wait(reader, shop)
        wait_until(lambda: "health server started" in reader.log(_RUN).read_text())
        shown = page.run_next()
        assert "public.orders" in shown
        assert "customers" in shown


def test_traces(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    with receiver() as received:
        reader.examples = {"http://localhost:4318": received.url}
        with reader.page("how-to/traces.md") as page:
            page.run_next()
            assert config_of(reader).traces.share == 0.1
            reader.start(_RUN)
            wait(reader, shop)

            def is_traced() -> bool:
                """Commit further transactions, of which a tenth is traced, and look for one."""
                shop.execute("UPDATE orders SET total = total + 1")
                return bool(received.named("commit to topic"))

            wait_until(is_traced)


def test_alerts(reader: Reader, shop: psycopg.Connection[Any]) -> None:
    (reader.folder / "docker").symlink_to(ROOT / "docker")
    with reader.page("how-to/alerts.md") as page:
        assert "SUCCESS" in page.run_next()
        reader.start(_RUN)
        wait(reader, shop)
        shown = page.run_next()
        assert "public.orders" in shown
        assert "wal_status" in shown or "reserved" in shown
        assert page.run_next().startswith("TR-402")
