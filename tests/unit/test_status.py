"""The status model: lag that can be trusted, and servers that are down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdc.cli.status_page import status_lines
from cdc.ops.read_status import read_status
from cdc.ops.status import SourceStatus, Status, assemble
from cdc.slot import Slot
from schemas.config import Config, View
from schemas.errors import SinkError
from schemas.lsn import Position
from schemas.progress import Cut, PositionRecord
from sinks.changes import HistoryFrom
from sinks.views_topic import ViewRecord

NOW = 1_700_000_000.0
CONFIG = Config.model_validate(
    {
        "source": {"dsn": "host=127.0.0.1 port=1 connect_timeout=1"},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "views": {"orders": {"table": "public.orders"}, "found": {"table": "public.orders", "target": "search"}},
    }
)


def cut(lsn: int) -> Cut:
    return Cut(Position(1, lsn - 8, 4), lsn, 0, "7", 1, {})


def slot(**changes: Any) -> Slot:
    values = {
        "name": "tailrace",
        "plugin": "pgoutput",
        "database": "shop",
        "active_pid": 42,
        "confirmed_flush_lsn": 900,
        "restart_lsn": 500,
        "wal_status": "reserved",
        "safe_wal_size": None,
        "two_phase": False,
    }
    return Slot(**{**values, **changes})


def made(config: Config = CONFIG, **changes: Any) -> Status:
    values: dict[str, Any] = {
        "source": SourceStatus(wal_lsn=1000, slot=slot()),
        "stored": (PositionRecord(cut(900), 1), int(NOW * 1000) - 2500),
        "kafka_error": None,
        "records": {"orders": ViewRecord("orders", "warehouse", 2, cut(800), int(NOW * 1000) - 4000)},
        "views_error": None,
    }
    return assemble(config, **{**values, **changes}, now=NOW)


def text(status: Status) -> str:
    return "\n".join(status_lines(status))


def test_where_a_history_begins() -> None:
    begins = HistoryFrom(0x2AB, 0)
    record = ViewRecord("orders", "warehouse", 2, cut(800), int(NOW * 1000), history_from=begins)
    status = made(records={"orders": ViewRecord.from_value(record.value())})
    assert "from 0/2AB" in text(status)
    assert status.to_dict()["views"][0]["history_from_lsn"] == "0/2AB"


def test_lag_in_bytes_and_seconds() -> None:
    status = made()
    assert (status.topics.lag_bytes, status.topics.lag_seconds) == (100, 2.5)
    assert (status.views[0].lag_bytes, status.views[0].lag_seconds) == (200, 4.0)
    assert status.source.retained_bytes == 500


def test_no_lag_when_all_is_there() -> None:
    status = made(source=SourceStatus(wal_lsn=900, slot=slot()))
    assert (status.topics.lag_bytes, status.topics.lag_seconds) == (0, 0.0)


def test_dead_letters_are_counted() -> None:
    status = made(stored=(PositionRecord.from_json(PositionRecord(cut(900), 1, diverted=3).to_json()), 1))
    assert status.to_dict()["topics"]["diverted"] == 3
    assert "3 changes could not be stored exactly" in text(status)
    assert "could not" not in text(made())


def test_a_view_level_with_the_topics_has_their_lag() -> None:
    record = ViewRecord("orders", "warehouse", 2, cut(900), 1)
    assert made(records={"orders": record}).views[0].lag_seconds == 2.5


def test_a_view_without_a_batch() -> None:
    status = made()
    assert (status.views[1].flushed_lsn, status.views[1].lag_bytes) == (None, None)
    assert "nothing applied yet" in text(status)


def test_json_prints_lsns_as_postgresql_does() -> None:
    value = made().to_dict()
    assert value["source"]["wal_lsn"] == "0/3E8"
    assert value["source"]["slot"]["confirmed_flush_lsn"] == "0/384"
    assert value["views"][0]["flushed_lsn"] == "0/320"
    assert value["topics"]["lag_bytes"] == 100


def test_before_the_first_start() -> None:
    status = made(source=SourceStatus(wal_lsn=1000), stored=(None, 0), records={})
    assert "does not exist yet" in text(status)
    assert "nothing stored yet" in text(status)


def test_what_a_slot_still_has_room_for() -> None:
    assert "no limit" in text(made())
    limited = made(source=SourceStatus(wal_lsn=1000, slot=slot(safe_wal_size=2_000_000, active_pid=None)))
    assert "2.0 MB more until it is lost" in text(limited)
    assert "not read by anybody" in text(limited)


def test_how_long_a_slot_lasts() -> None:
    room = slot(safe_wal_size=3_600_000)
    mean = made(source=SourceStatus(wal_lsn=1000, slot=room, wal_bytes_per_s=100.0))
    assert mean.seconds_to_full == 36_000
    assert "that is 10.0 hours of WAL" in text(mean)
    # nothing has come for 1000 s, in which 100 bytes were written
    since = (PositionRecord(cut(900), 1), int(NOW * 1000) - 1_000_000)
    stuck = made(source=SourceStatus(wal_lsn=1000, slot=room, wal_bytes_per_s=100.0), stored=since)
    assert stuck.to_dict()["source"]["seconds_to_full"] == 36_000_000
    assert made(source=SourceStatus(wal_lsn=1000, slot=slot(), wal_bytes_per_s=100.0)).seconds_to_full is None


def test_a_view_that_stands_still_says_why() -> None:
    record = ViewRecord("orders", "warehouse", 2, cut(800), 1, error="TR-522")
    assert "stopped: TR-522" in text(made(records={"orders": record}))


def test_a_view_waits_for_the_tables_that_it_reads_and_no_others() -> None:
    there = replace(cut(800), offsets={"tailrace.public.orders": [1], "tailrace.public.big": [2]})
    config = CONFIG.model_copy(update={"views": {**CONFIG.views, "joined": View(query="SELECT 1", key=["id"])}})
    records = {
        "orders": ViewRecord("orders", "warehouse", 1, replace(there, offsets={"tailrace.public.orders": [1]}), 1),
        "joined": ViewRecord("joined", "warehouse", 1, there, 1, error="ERROR  TR-584  waits\nDETAIL x"),
    }
    record = PositionRecord(cut(900), 1, incomplete_tables=("public.big", "public.docs"), reread={"public.docs": 1000})
    status = made(config=config, records=records, stored=(record, 1), shares={"public.big": 0.404})
    shown = text(status).splitlines()
    assert "         incomplete: public.big: being read, 40%" in shown
    assert "         incomplete: public.docs: values were fetched from the source, complete at 0/3E8" in shown
    (joined,) = (line for line in shown if line.startswith("joined"))
    assert joined.endswith("waits for table public.big: being read, 40%")
    assert not any("waits" in line for line in shown if line.startswith(("orders", "found")))
    waits = {view["name"]: view["waits_for"] for view in status.to_dict()["views"]}
    assert waits["joined"] == ({"table": "public.big", "share": 0.404, "complete_lsn": None, "parked": False},)
    assert waits["orders"] == waits["found"] == ()


def test_a_view_without_a_batch_waits_for_its_table() -> None:
    record = PositionRecord(cut(900), 1, incomplete_tables=("public.orders",))
    shown = text(made(records={}, stored=(record, 1)))
    assert shown.count("nothing applied yet, waits for table public.orders: being read") == 2
    # of a query only the job knows which tables it reads
    config = CONFIG.model_copy(update={"views": {"joined": View(query="SELECT 1", key=["id"])}})
    error = 'TR-584 view "joined" waits for table public.orders, which is being read'
    waiting = ViewRecord("joined", "warehouse", 0, None, 0, error=f"ERROR  {error}\nDETAIL more")
    shown = text(made(config, records={"joined": waiting}, stored=(record, 1)))
    assert shown.endswith(f"nothing applied yet, {error}")


def test_an_error_is_one_line_of_the_table() -> None:
    error = str(SinkError("TR-530", "OpenSearch does not answer", detail="Connection refused.", hint="curl it"))
    applied = ViewRecord("orders", "warehouse", 2, cut(800), 1, error=error)
    for record in (applied, replace(applied, cut=None)):
        shown = text(made(records={"orders": record}))
        assert "TR-530 OpenSearch does not answer\n" in shown + "\n"
        assert "DETAIL" not in shown


def test_servers_that_are_down_are_shown_and_nothing_is_raised() -> None:
    status = read_status(CONFIG)
    assert status.source.error is not None
    assert status.topics.error is not None
    shown = text(status)
    assert "source   down: cannot connect to PostgreSQL at 127.0.0.1:1" in shown
    assert "topics   down:" in shown
    assert "orders" in shown
