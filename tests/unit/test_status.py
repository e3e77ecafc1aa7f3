"""The status model: lag that can be trusted, and servers that are down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.cli.status_page import status_lines, view_lines
from tailrace.cdc.operations.read_status import read_status
from tailrace.cdc.operations.status import DaemonStatus, SourceStatus, Status, assemble, daemon_status
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.tables.position import before_slot
from tailrace.schemas.config.model import Config, View
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.schemas.records.position import Cut, Diverted, PositionRecord
from tailrace.sinks.control.views_topic import Verified, ViewRecord
from tailrace.sinks.target.follower import Follower
from tailrace.sinks.target.protocol import HistoryFrom

NOW = 1_700_000_000.0
CONFIG = Config.model_validate(
    {
        "source": {"dsn": "host=127.0.0.1 port=1 connect_timeout=1"},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "views": {"orders": {"table": "public.orders"}, "found": {"table": "public.orders", "target": "search"}},
    }
)


_VERIFIED = Verified(int(NOW * 1000) - 720_000, 1, 800, 0)
_DIFFERS = replace(_VERIFIED, keys=3)


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


def stored(record: PositionRecord, seconds: float) -> list[tuple[PositionRecord, int]]:
    """Return the content of the progress topic: one record, which Kafka stored `seconds` ago."""
    return [(record, int((NOW - seconds) * 1000))]


def committed(seconds: float, lsn: int, end: int) -> tuple[PositionRecord, int]:
    """Return a record whose newest commit was `seconds` ago, and when Kafka stored it (ms since 1970)."""
    here = replace(cut(lsn), commit_ts_us=int((NOW - seconds) * 1e6), offsets={"tailrace.public.orders": [end]})
    return PositionRecord(here, 1), int((NOW - seconds) * 1000) + 100


def made(config: Config = CONFIG, **changes: Any) -> Status:
    values: dict[str, Any] = {
        "source": SourceStatus(wal_lsn=1000, slot=slot()),
        "positions": stored(PositionRecord(cut(900), 1), 2.5),
        "kafka_error": None,
        "records": {"orders": ViewRecord("orders", "warehouse", 2, cut(800), int(NOW * 1000) - 4000)},
        "views_error": None,
        "lag_s": 2.5,
    }
    return assemble(config, **{**values, **changes}, now=NOW)


def text(status: Status) -> str:
    return "\n".join(status_lines(status, 200))


def test_the_beginning_of_a_history_is_shown() -> None:
    begins = HistoryFrom(0x2AB, 0)
    record = ViewRecord("orders", "warehouse", 2, cut(800), int(NOW * 1000), history_from=begins)
    status = made(records={"orders": ViewRecord.from_value(record.value())})
    assert "from 0/2AB" in text(status)
    assert status.to_dict()["views"][0]["history_from_lsn"] == "0/2AB"


def test_lag_is_shown_in_bytes_and_seconds() -> None:
    status = made()
    assert (status.topics.lag_bytes, status.topics.lag_seconds) == (100, 2.5)
    assert status.source.retained_bytes == 500
    assert "lag 2.5 s, 100 B" in text(status)


def test_wal_without_a_change_is_no_lag() -> None:
    status = made(lag_s=0.0)
    assert (status.topics.lag_bytes, status.topics.unread_bytes, status.topics.lag_seconds) == (0, 100, 0.0)
    assert "lag 0 s\n" in text(status)


def test_an_unknown_lag_is_not_shown_as_zero() -> None:
    status = made(lag_s=None)
    assert (status.topics.lag_bytes, status.topics.lag_seconds) == (None, None)
    assert "lag unknown (100 B of WAL not read yet)" in text(status)


def test_the_lag_of_a_view_counts_from_the_first_change_that_it_lacks() -> None:
    applied, later = committed(60, 700, 5), [committed(7, 750, 5), committed(5, 800, 6), committed(3, 900, 8)]

    def lag(at: Cut, current_s: float = 9) -> float | None:
        record = ViewRecord("orders", "warehouse", 2, at, int((NOW - current_s) * 1000))
        return made(records={"orders": record}, positions=[applied, *later], lag_s=0.0).views[0].lag_seconds

    assert lag(applied[0].here) == 5
    # a cut that only changes of other tables have moved
    assert lag(later[0][0].here) == 5
    assert lag(later[1][0].here) == 3
    assert lag(later[2][0].here) == 0
    # older than the position records that were read
    assert lag(replace(applied[0].here, offsets={"tailrace.public.orders": [3]}), 90) == 90
    # without a cut of this topic nothing has been applied
    assert lag(replace(applied[0].here, offsets={}), 90) == 90


def test_rows_of_a_snapshot_count_from_when_kafka_stored_them() -> None:
    applied = committed(60, 700, 5)
    record = PositionRecord(replace(applied[0].here, offsets={"tailrace.public.orders": [9]}), 1)
    view = ViewRecord("orders", "warehouse", 2, applied[0].here, 1)
    status = made(records={"orders": view}, positions=[applied, (record, int((NOW - 4) * 1000))], lag_s=0.0)
    assert status.views[0].lag_seconds == 4


def test_dead_letters_are_counted() -> None:
    status = made(positions=stored(PositionRecord.from_json(PositionRecord(cut(900), 1, diverted=3).to_json()), 1))
    assert status.to_dict()["topics"]["diverted"] == 3
    assert "3 changes could not be stored exactly" in text(status)
    assert "could not" not in text(made())


def test_dead_letters_are_counted_by_table_and_those_before_are_named() -> None:
    last = int(NOW * 1000)
    tables = {f"public.t{n}": Diverted(1, last - n * 1000) for n in range(12)} | {"public.a": Diverted(7, last + 1000)}
    record = PositionRecord(cut(900), 1, diverted=21, diverted_tables=tables)
    status = made(positions=stored(PositionRecord.from_json(record.to_json()), 1))
    topics = status.to_dict()["topics"]
    assert list(topics["diverted_tables"])[:2] == ["public.a", "public.t0"]
    assert topics["diverted_tables"]["public.a"] == {"changes": 7, "last_at": "2023-11-14T22:13:21+00:00"}
    assert topics["diverted_uncounted"] == 2
    said = text(status)
    assert "public.a: 7, the last one at 2023-11-14 22:13:21 UTC" in said
    assert "public.t8" in said
    assert "public.t9" not in said
    assert "and 3 more tables: tailrace status --json" in said
    assert "2 earlier ones are not counted by table" in said


def test_a_view_without_a_batch_has_nothing_applied() -> None:
    status = made()
    assert (status.views[1].flushed_lsn, status.views[1].lag_bytes) == (None, None)
    assert "nothing applied yet" in text(status)


def test_json_prints_lsns_as_postgresql_does() -> None:
    value = made().to_dict()
    assert value["source"]["wal_lsn"] == "0/3E8"
    assert value["source"]["slot"]["confirmed_flush_lsn"] == "0/384"
    assert value["views"][0]["flushed_lsn"] == "0/320"
    assert value["topics"]["lag_bytes"] == 100


_IDLE = SourceStatus(wal_lsn=1000, slot=slot(active_pid=None))
_WAITING = PositionRecord(cut(900), 1, incomplete_tables=("public.orders",))


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        (0, {}),
        (0, {"source": _IDLE, "daemon": DaemonStatus(False, "stopped")}),
        (0, {"daemon": DaemonStatus(True, "retrying", code="TR-301")}),
        (0, {"positions": stored(_WAITING, 1)}),
        (0, {"positions": stored(replace(_WAITING, parked={"public.orders": ""}), 1)}),
        (4, {"source": SourceStatus(error="no answer"), "kafka_error": "no answer"}),
        (4, {"source": SourceStatus(error="no answer"), "daemon": DaemonStatus(None, "failed")}),
        (5, {"positions": [], "records": {}, "kafka_error": "no answer", "views_error": "no answer"}),
        (7, {"source": _IDLE, "daemon": DaemonStatus(False, "failed", code="TR-424")}),
        (7, {"source": _IDLE, "daemon": DaemonStatus(False, "killed")}),
        (7, {"source": SourceStatus(wal_lsn=1000, slot=slot(wal_status="lost"))}),
        (7, {"source": SourceStatus(wal_lsn=1000)}),
        (7, {"source": replace(_IDLE, captures_any=False)}),
        (7, {"positions": stored(replace(_WAITING, parked={"public.orders": "TR-220"}), 1)}),
        (7, {"records": {"orders": ViewRecord("orders", "warehouse", 1, None, 1, error="ERROR  TR-522  it")}}),
        (0, {"records": {"orders": ViewRecord("orders", "warehouse", 1, None, 1, error="ERROR  TR-584  it")}}),
        (0, {"records": {"orders": ViewRecord("orders", "warehouse", 1, None, 1, error="ERROR  TR-582  it")}}),
        (0, {"followers": {"orders": Follower("running", "", "db1", 42)}}),
        (0, {"followers": {"orders": Follower("stopped", "", "db1", 42)}}),
        (7, {"followers": {"orders": Follower("killed", "", "db1", 42)}}),
        (7, {"followers": {"orders": Follower("failed", "", "db1", 42, "TR-513", "no catalog")}}),
        (0, {"records": {"orders": ViewRecord("orders", "warehouse", 1, cut(800), 1, verified=_VERIFIED)}}),
        (7, {"records": {"orders": ViewRecord("orders", "warehouse", 1, cut(800), 1, verified=_DIFFERS)}}),
        # of a generation that is not live any more
        (0, {"records": {"orders": ViewRecord("orders", "warehouse", 2, cut(800), 1, verified=_DIFFERS)}}),
    ],
)
def test_the_exit_code_says_whether_a_server_is_down_or_a_person_is_needed(code: int, changes: dict[str, Any]) -> None:
    assert made(**changes).exit_code == code


def test_the_newest_comparison_of_a_view_is_shown() -> None:
    def shown(verified: Verified) -> tuple[str, Any]:
        record = ViewRecord("orders", "warehouse", 1, cut(800), 1, verified=verified)
        status = made(records={"orders": ViewRecord.from_value(record.value())})
        return text(status), status.to_dict()["views"][0]["verified"]

    line, found = shown(_VERIFIED)
    assert "verified 12.0 minutes ago" in line
    assert (found["seconds"], found["verified_lsn"], found["keys"]) == (720.0, "0/320", 0)
    line, found = shown(_DIFFERS)
    assert "3 keys DIFFER (verified 12.0 minutes ago)" in line
    assert found["keys"] == 3
    assert made().to_dict()["views"][0]["verified"] is None


def test_a_view_that_nobody_follows_says_so() -> None:
    dead = Follower("failed", "2026-11-24T19:00:00+00:00", "db1", 42, "TR-513", "no catalog")
    status = made(followers={"orders": dead})
    words = "`tailrace views follow` (process 42 on db1) failed at 2026-11-24 19:00:00 UTC: TR-513 no catalog"
    assert f"orders: NOT FOLLOWED: {words}" in text(status)
    assert status.to_dict()["views"][0]["follower"]["state"] == "failed"
    assert status.views_exit_code(["orders"]) == 7
    assert status.views_exit_code(["another"]) == 0
    assert "FOLLOWED" not in text(made(followers={"orders": replace(dead, state="running")}))


def test_a_slot_that_is_missing_is_not_shown_as_one_to_come() -> None:
    shown = text(made(source=SourceStatus(wal_lsn=1000), daemon=DaemonStatus(False)))
    assert '"tailrace" is MISSING' in shown
    assert "yet" not in shown.replace("nothing applied yet", "")
    # a first start has stored its position, and the slot waits for an open transaction
    begins = made(source=SourceStatus(wal_lsn=1000), positions=stored(before_slot(PositionRecord(cut(900), 1)), 1))
    assert begins.exit_code == 0
    assert "does not exist yet" in text(begins)


def test_a_slot_that_may_be_missing_is_not_shown_as_one_to_come() -> None:
    """Kafka, which knows of earlier starts, does not answer; or the last start has found the slot missing."""
    unknown: dict[str, Any]
    for unknown in (
        {"positions": [], "kafka_error": "no answer"},
        {"positions": [], "daemon": DaemonStatus(False, "failed", code="TR-402")},
    ):
        shown = text(made(source=SourceStatus(wal_lsn=1000), **unknown))
        assert "does not exist; if it did" in shown


def test_before_the_first_start_nothing_exists_yet() -> None:
    status = made(source=SourceStatus(wal_lsn=1000), positions=[], records={}, lag_s=None)
    assert status.exit_code == 0
    assert "does not exist yet" in text(status)
    assert "nothing stored yet" in text(status)


def test_missing_tables_are_counted() -> None:
    for missing, said in ((("a.b",), "1 table matches source.tables and is in"), (("a.b", "a.c"), "2 tables match")):
        assert said in text(made(source=SourceStatus(wal_lsn=1000, slot=slot(), missing_tables=missing)))


def test_the_room_left_to_a_slot_is_shown() -> None:
    assert "no limit" in text(made())
    limited = made(source=SourceStatus(wal_lsn=1000, slot=slot(safe_wal_size=2_000_000, active_pid=None)))
    assert "lost after another 2.0 MB of WAL" in text(limited)
    assert "not read by any process" in text(limited)


def test_the_time_until_a_slot_is_full_is_shown() -> None:
    room = slot(safe_wal_size=3_600_000)
    mean = made(source=SourceStatus(wal_lsn=1000, slot=room, wal_bytes_per_s=100.0))
    assert mean.seconds_to_full == 36_000
    assert "in about 10.0 hours" in text(mean)
    # nothing has come for 1000 s, in which 100 bytes were written
    since = stored(PositionRecord(cut(900), 1), 1000)
    stuck = made(source=SourceStatus(wal_lsn=1000, slot=room, wal_bytes_per_s=100.0), positions=since)
    assert stuck.to_dict()["source"]["seconds_to_full"] == 36_000_000
    assert made(source=SourceStatus(wal_lsn=1000, slot=slot(), wal_bytes_per_s=100.0)).seconds_to_full is None


def test_a_stopped_view_shows_its_error_below_the_table() -> None:
    error = "ERROR  TR-522  view cannot go on\nDETAIL It has 3 columns.\nHINT   tailrace views rebuild orders"
    found = ViewRecord("found", "search", 1, cut(900), 1, error=error)
    status = made(records={"orders": ViewRecord("orders", "warehouse", 2, cut(800), 1, error=error), "found": found})
    *table, blank, first, second = list(view_lines(status.views))
    assert [line.split()[0] for line in table] == ["VIEW", "orders", "found"]
    assert all("TR-522" not in line for line in table)
    assert "stopped, see below" in table[1]
    assert (blank, first) == ("", "orders, found: TR-522 view cannot go on")
    assert second == "         full error: tailrace views status orders"


@pytest.mark.parametrize("width", [80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    long = "PostgreSQL said a lot about " + "this and that " * 30
    record = ViewRecord("orders", "warehouse", 2, cut(800), 1, error=f"ERROR  TR-1  {long}\nHINT   {long}")
    daemon = DaemonStatus(False, "failed", "2026-11-24T19:00:00+00:00", "db1", 42, "TR-402", long)
    limited = SourceStatus(wal_lsn=1000, slot=slot(safe_wal_size=2_000_000, active_pid=None), wal_bytes_per_s=1.0)
    incomplete = PositionRecord(cut(900), 1, incomplete_tables=tuple(f"public.table_{n}" for n in range(50)))
    shown = made(records={"orders": record}, daemon=daemon, source=limited, positions=stored(incomplete, 1))
    lines = list(status_lines(shown, width))
    assert max(map(len, lines)) <= width
    # the words are all there, whatever the width
    assert " ".join(" ".join(lines).split()).count("this and that") == 60
    assert all(line.strip() or line == "" for line in lines)


def test_the_daemons_record_is_shown_in_words() -> None:
    def shown(active: bool, **record: Any) -> str:
        values: dict[str, Any] = {"state": "running", "since_ms": 1_795_548_000_000, "host": "db1", "pid": 42}
        values |= {"version": "1"} | record
        source = SourceStatus(wal_lsn=1000, slot=slot(active_pid=7 if active else None))
        daemon = daemon_status(source, DaemonRecord.from_json(DaemonRecord(**values).to_json()), None)
        return "\n".join(line for line in status_lines(made(source=source, daemon=daemon), 200) if line[:1] in "d ")

    assert "daemon   runs on db1 (process 42) since 2026-11-24 19:20:00 UTC" in shown(True)
    again = shown(True, state="retrying", code="TR-301", message="no answer from Kafka")
    assert "retrying since 2026-11-24 19:20:00 UTC: TR-301 no answer from Kafka" in again
    stopped = shown(False, state="stopped")
    assert "daemon   does not run: it was stopped at 2026-11-24 19:20:00 UTC on db1 (process 42)" in stopped
    failed = shown(False, state="failed", code="TR-402", message="slot is gone")
    assert "daemon   does not run: it failed at 2026-11-24 19:20:00 UTC on db1" in failed
    assert "TR-402 slot is gone" in failed
    assert "ended without reporting why" in shown(False)
    # another daemon has started since
    assert "does not run" not in shown(True, state="stopped")


def test_a_daemon_without_a_record_is_shown_by_its_slot() -> None:
    idle = SourceStatus(wal_lsn=1000, slot=slot(active_pid=None))
    assert "daemon   does not run" in text(made(source=idle, daemon=daemon_status(idle, None, None)))
    none = SourceStatus(wal_lsn=1000)
    never = made(source=none, positions=[], daemon=daemon_status(none, None, None))
    assert "daemon   has not run yet" in text(never)
    lost = DaemonRecord(state="failed", since_ms=0, host="db1", pid=4, version="1", code="TR-402", message="it is gone")
    assert "TR-402 it is gone" in text(made(source=none, daemon=daemon_status(none, lost, None)))
    assert daemon_status(None, None, None).running is None


def test_a_view_waits_for_the_tables_that_it_reads_and_no_others() -> None:
    there = replace(cut(800), offsets={"tailrace.public.orders": [1], "tailrace.public.big": [2]})
    config = CONFIG.model_copy(update={"views": {**CONFIG.views, "joined": View(query="SELECT 1", key=["id"])}})
    records = {
        "orders": ViewRecord("orders", "warehouse", 1, replace(there, offsets={"tailrace.public.orders": [1]}), 1),
        "joined": ViewRecord("joined", "warehouse", 1, there, 1, error="ERROR  TR-584  waits\nDETAIL x"),
    }
    record = PositionRecord(cut(900), 1, incomplete_tables=("public.big", "public.docs"), reread={"public.docs": 1000})
    status = made(config=config, records=records, positions=stored(record, 1), shares={"public.big": 0.404})
    shown = text(status).splitlines()
    assert "         incomplete: public.big: being read, 40%" in shown
    assert "         incomplete: public.docs: values were fetched from the source, complete at 0/3E8" in shown
    (joined,) = (line for line in shown if line.startswith("joined"))
    assert joined.endswith("waits for table public.big: being read, 40%")
    assert not any("waits" in line for line in shown if line.startswith(("orders", "found")))
    waits = {view["name"]: view["waits_for"] for view in status.to_dict()["views"]}
    expected = {"table": "public.big", "share": 0.404, "complete_lsn": None, "parked": False, "unpublished": False}
    assert waits["joined"] == (expected,)
    assert waits["orders"] == waits["found"] == ()


def test_a_view_without_a_batch_waits_for_its_table() -> None:
    record = PositionRecord(cut(900), 1, incomplete_tables=("public.orders",))
    shown = text(made(records={}, positions=stored(record, 1)))
    assert shown.count("nothing applied yet, waits for table public.orders: being read") == 2
    # only the job knows which tables a query reads
    config = CONFIG.model_copy(update={"views": {"joined": View(query="SELECT 1", key=["id"])}})
    error = 'TR-584 view "joined" waits for table public.orders, which is being read'
    waiting = ViewRecord("joined", "warehouse", 0, None, 0, error=f"ERROR  {error}\nDETAIL more")
    shown = text(made(config, records={"joined": waiting}, positions=stored(record, 1)))
    assert "nothing applied yet" in shown
    assert f"joined: {error}" in shown


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
    assert status.exit_code == 4
    assert "source   down: cannot connect to PostgreSQL at 127.0.0.1:1" in shown
    assert "topics   down:" in shown
    assert "orders" in shown


def test_a_kafka_that_is_down_is_reported_once() -> None:
    error = "Kafka cannot be read: no answer"
    shown = text(made(positions=[], records={}, kafka_error=error, views_error=error, lag_s=7.0))
    assert shown.count(error) == 1
    assert "topics   down: Kafka cannot be read: no answer\n         lag 7.0 s" in shown
    assert shown.count("unknown") == len(CONFIG.views)
