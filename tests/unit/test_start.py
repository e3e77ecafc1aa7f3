"""The truth table of `cdc.startup.decide`: each case changes what a healthy pipeline finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.publication import Publication, Publications, check_publishes
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.postgres.timeline import Identity, parse_history
from tailrace.cdc.startup.decide import Found, decide
from tailrace.cdc.tables.position import before_slot, new_origin
from tailrace.schemas.errors import SourceError, StateError, TailraceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut, PositionRecord
from tailrace.sinks.kafka.offsets import Bounds

_ALL = frozenset({"insert", "update", "delete", "truncate"})
_EVENTS = frozenset({"insert", "truncate"})
_INSERTS = frozenset({"insert"})

_STORED = PositionRecord(
    here=Cut(Position(1, 0x5000, 8), 0x5100, 7, "77", 1, {"app.public.t": [4, 6], "app.message": [3]}),
    publication_oid=100,
    nokey_oid=101,
)
_BEFORE_SLOT = before_slot(new_origin(1, 0x2000, "77", 1, (100, 101), ["public.t"]))
_SLOT = Slot("s", "pgoutput", "d", None, 0x5100, 0x4000, "reserved", None, False, failover=True)

_HEALTHY = Found(
    slot_name="s",
    publication_name="p",
    bootstrap="localhost:9092",
    prefix="app",
    owned=True,
    server=Server(180006, "d", "logical", "UTF8", False),
    identity=Identity("77", 1, 0x6000),
    slot=_SLOT,
    stored=_STORED,
    publications=Publications(Publication("p", 100, _ALL), Publication("p_nokey", 101, _EVENTS)),
    tables={"app.public.t": "public.t"},
    topics={
        "app.public.t": [Bounds(0, 4), Bounds(0, 9)],
        "app.message": [Bounds(2, 5)],
        "app.tailrace.schemas": [Bounds(0, 2)],
        "app.tailrace.tables": [Bounds(0, 2)],
    },
    brokers=1,
)

_EMPTY = {topic: [Bounds(0, 0)] * len(bounds) for topic, bounds in _HEALTHY.topics.items()}


def _with(**changes: Any) -> Callable[[Found], Found]:
    return lambda found: replace(found, **changes)


def _part(name: str, **changes: Any) -> Callable[[Found], Found]:
    return lambda found: replace(found, **{name: replace(getattr(found, name), **changes)})


def _topic(topic: str, *bounds: Bounds) -> Callable[[Found], Found]:
    """Replace a topic's offsets; without bounds the topic is missing."""

    def change(found: Found) -> Found:
        others = {name: there for name, there in found.topics.items() if name != topic}
        return replace(found, topics=others | ({topic: bounds} if bounds else {}))

    return change


def _here(**changes: Any) -> Callable[[Found], Found]:
    return _with(stored=replace(_STORED, here=replace(_STORED.here, **changes)))


_REFUSED: dict[str, tuple[str, int, str, list[Callable[[Found], Found]]]] = {
    "version": ("TR-231", 4, "PostgreSQL 13", [_part("server", version=130018)]),
    "wal_level": ("TR-202", 4, '"replica"', [_part("server", wal_level="replica")]),
    "encoding": ("TR-214", 4, "SQL_ASCII", [_part("server", encoding="SQL_ASCII")]),
    "standby, no slot": ("TR-232", 4, "target_session_attrs", [_part("server", in_recovery=True), _with(slot=None)]),
    "standby, too old": (
        "TR-232",
        4,
        "before PostgreSQL 16",
        [_with(slot=None, stored=None, topics={}), _part("server", version=150000, in_recovery=True)],
    ),
    "standby, synced slot": (
        "TR-232",
        4,
        "is synchronized",
        [_part("server", in_recovery=True), _part("slot", synced=True)],
    ),
    "first, publish": (
        "TR-233",
        4,
        "ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate');",
        [
            _with(slot=None, stored=None, topics=_EMPTY),
            _with(publications=Publications(Publication("p", 100, _EVENTS), None)),
        ],
    ),
    "first, more than inserts": (
        "TR-233",
        4,
        "ALTER PUBLICATION \"p_nokey\" SET (publish = 'insert');",
        [
            _with(slot=None, stored=None, topics=_EMPTY, publish="insert"),
            _with(publications=Publications(Publication("p", 100, _INSERTS), Publication("p_nokey", 101, _EVENTS))),
        ],
    ),
    "more than inserts": ("TR-233", 4, "more than inserts: update, delete, truncate", [_with(publish="insert")]),
    "first, topics written to": ("TR-425", 6, 'topic "app.public.t"', [_with(slot=None, stored=None)]),
    "no position, other plugin": (
        "TR-208",
        4,
        "wal2json",
        [_with(stored=None, owned=False), _part("slot", plugin="wal2json")],
    ),
    "no position, lost": ("TR-204", 6, "removed", [_with(stored=None, owned=False), _part("slot", wal_status="lost")]),
    "no position, slot": ("TR-423", 6, "1 of 1 topics", [_with(stored=None)]),
    "no position, slot, no topics": ("TR-423", 6, "0 of 1 topics", [_with(stored=None, topics={})]),
    "cut short, older slot": (
        "TR-423",
        6,
        "0/1FFF",
        [_with(stored=_BEFORE_SLOT), _part("slot", confirmed_flush_lsn=0x1FFF)],
    ),
    "cut short, other server": (
        "TR-423",
        6,
        "",
        [_with(stored=_BEFORE_SLOT), _part("identity", system_identifier="9")],
    ),
    "cut short, other publication": (
        "TR-404",
        6,
        "is missing",
        [_with(stored=_BEFORE_SLOT, publications=None)],
    ),
    "other system": ("TR-403", 6, "is 78, that of the topics 77", [_part("identity", system_identifier="78")]),
    "restored backup": ("TR-422", 6, "1 bytes further", [_part("identity", lsn=0x50FF)]),
    "older timeline": ("TR-421", 6, "former primary", [_here(timeline=2)]),
    "timeline without history": ("TR-421", 6, "timeline 3", [_part("identity", timeline=3, history={})]),
    "timeline of others": (
        "TR-421",
        6,
        "does not descend",
        [_here(timeline=2), _part("identity", timeline=3, history={1: 9})],
    ),
    "promoted, lacks a commit": (
        "TR-421",
        6,
        "lacks their newest transaction",
        [_part("identity", timeline=2, history={1: 0x5000})],
    ),
    "promoted, lacks idle WAL": (
        "TR-421",
        6,
        "1 bytes of WAL further. The server has their newest transaction",
        [_part("identity", timeline=2, history={1: 0x50FF})],
    ),
    "promoted, lacks a split transaction": (
        "TR-421",
        6,
        "0/5801",
        [
            _with(stored=replace(_STORED, open=5, here=replace(_STORED.here, position=Position(1, 0x5800, 4)))),
            _part("identity", timeline=2, history={1: 0x5800}),
        ],
    ),
    "promoted, lacks what was read again": (
        "TR-421",
        6,
        "0/5900",
        [
            _with(stored=replace(_STORED, reread={"public.t": 0x5900})),
            _part("identity", timeline=2, history={1: 0x5800}),
        ],
    ),
    "no slot": ("TR-402", 6, "in these 3840 bytes", [_with(slot=None)]),
    "promoted, no slot, 16": (
        "TR-402",
        6,
        "promoted at 0/5800, from timeline 1 to 2. Before PostgreSQL 17",
        [_with(slot=None), _part("server", version=160011), _part("identity", timeline=2, history={1: 0x5800})],
    ),
    "promoted, no slot, 17": (
        "TR-402",
        6,
        "sync_replication_slots",
        [_with(slot=None), _part("identity", timeline=2, history={1: 0x5800})],
    ),
    "promoted, half synchronized": ("TR-402", 6, "is missing", [_part("slot", synced=True, temporary=True)]),
    "other plugin": ("TR-208", 4, "plugin test_decoding", [_part("slot", plugin="test_decoding")]),
    "other database": ("TR-208", 4, "database e", [_part("slot", database="e")]),
    "physical": ("TR-208", 4, "physical", [_part("slot", slot_type="physical", plugin=None, database=None)]),
    "two-phase": ("TR-208", 4, "two_phase True", [_part("slot", two_phase=True)]),
    "temporary": ("TR-208", 4, "It is temporary", [_part("slot", temporary=True)]),
    "WAL removed": ("TR-204", 6, "max_slot_wal_keep_size", [_part("slot", wal_status="lost")]),
    "idle": ("TR-204", 6, "idle_timeout", [_part("slot", wal_status="lost", invalidation_reason="idle_timeout")]),
    "invalidated": ("TR-204", 6, "conflict", [_part("slot", invalidation_reason="conflict")]),
    "ahead": ("TR-401", 6, "1 bytes of WAL further", [_part("slot", confirmed_flush_lsn=0x5101)]),
    "publication gone": ("TR-404", 6, "creates the publication again", [_with(publications=None)]),
    "publication again": (
        "TR-404",
        6,
        "recreated",
        [_with(publications=Publications(Publication("p", 200, _ALL), Publication("p_nokey", 101, _EVENTS)))],
    ),
    "second publication gone": (
        "TR-404",
        6,
        "CREATE PUBLICATION \"p_nokey\" FOR TABLE ... WITH (publish = 'insert, truncate');",
        [_with(publications=Publications(Publication("p", 100, _ALL), None))],
    ),
    "second publication later": ("TR-404", 6, "created after", [_with(stored=replace(_STORED, nokey_oid=0))]),
    "publish": (
        "TR-426",
        6,
        "does not publish: delete",
        [
            _with(
                publications=Publications(
                    Publication("p", 100, _ALL - {"delete"}), Publication("p_nokey", 101, _EVENTS)
                )
            )
        ],
    ),
    "publish of the second": (
        "TR-426",
        6,
        '"p_nokey" does not publish: truncate',
        [
            _with(
                publications=Publications(
                    Publication("p", 100, _ALL), Publication("p_nokey", 101, frozenset({"insert"}))
                )
            )
        ],
    ),
    "message topic gone": ("TR-424", 6, "app.message", [_topic("app.message")]),
    "schemas gone": ("TR-424", 6, "app.tailrace.schemas", [_topic("app.tailrace.schemas")]),
    "schemas empty": ("TR-424", 6, "app.tailrace.schemas", [_topic("app.tailrace.schemas", Bounds(0, 0))]),
    "tables topic gone": ("TR-424", 6, "app.tailrace.tables", [_topic("app.tailrace.tables")]),
}


@pytest.mark.parametrize(("code", "exit_code", "word", "changes"), _REFUSED.values(), ids=_REFUSED)
def test_a_start_is_refused_with_code_detail_and_hint(
    code: str, exit_code: int, word: str, changes: list[Callable[[Found], Found]]
) -> None:
    found = _HEALTHY
    for change in changes:
        found = change(found)
    with pytest.raises(TailraceError) as refused:
        decide(found)
    error = refused.value
    assert (error.code, error.exit_code) == (code, exit_code)
    assert word in str(error)
    assert error.detail
    assert error.hint


_GOES_ON: dict[str, tuple[int, str, list[Callable[[Found], Found]]]] = {
    "slot at the position": (1, "", []),
    "slot behind": (1, "", [_part("slot", confirmed_flush_lsn=0x3000)]),
    "slot ahead of what can be read yet": (1, "", [_part("slot", confirmed_flush_lsn=0x5101), _with(owned=False)]),
    "promoted": (2, "promoted at 0/5100", [_part("identity", timeline=2, history={1: 0x5100})]),
    "promoted twice": (3, "promoted", [_part("identity", timeline=3, history={1: 0x5200, 2: 0x5900})]),
    "promoted, failover slot": (
        2,
        "promoted at 0/5200",
        [_part("identity", timeline=2, history={1: 0x5200}), _part("slot", synced=True)],
    ),
    "no failover slot": (1, 'ALTER_REPLICATION_SLOT "s"', [_part("slot", failover=False)]),
    "no failover slots yet": (1, "", [_part("slot", failover=False), _part("server", version=160000)]),
    "topic of a table that is not captured any more": (1, "", [_topic("app.public.t"), _with(tables={})]),
    "table added": (1, "", [_with(tables={"app.public.t": "public.t", "app.public.u": "public.u"})]),
    "old messages expired": (1, "", [_topic("app.message", Bounds(4, 4))]),
    "no second publication": (
        1,
        "",
        [
            _with(stored=replace(_STORED, nokey_oid=0), publications=Publications(Publication("p", 100, _ALL), None)),
        ],
    ),
    "own slot on a standby": (1, "", [_part("server", in_recovery=True)]),
}


@pytest.mark.parametrize(("timeline", "note", "changes"), _GOES_ON.values(), ids=_GOES_ON)
def test_a_start_continues_from_the_stored_position(
    timeline: int, note: str, changes: list[Callable[[Found], Found]]
) -> None:
    found = _HEALTHY
    for change in changes:
        found = change(found)
    start = decide(found)
    assert found.stored is not None
    # a record of the old timeline must not be compared with a second promotion
    assert start.origin == replace(found.stored, here=replace(found.stored.here, timeline=timeline))
    assert note in "".join(start.notes)
    assert bool(note) == bool(start.notes)


_LOST: dict[str, tuple[str, Callable[[Found], Found]]] = {
    "gone": ("it had 10 offsets in 2 partitions", _topic("app.public.t")),
    "made again": ("ends at offset 0", _topic("app.public.t", Bounds(0, 0), Bounds(0, 0))),
    "cut": ("Partition 1 ends at offset 5", _topic("app.public.t", Bounds(0, 4), Bounds(0, 5))),
    "beginning gone": ("begins at", _topic("app.public.t", Bounds(0, 4), Bounds(1, 9))),
    "partition added": ("3 partitions", _topic("app.public.t", *[Bounds(0, 9)] * 3)),
}


@pytest.mark.parametrize("several", [True, False], ids=["several", "only"])
@pytest.mark.parametrize(("word", "lose"), _LOST.values(), ids=_LOST)
def test_a_table_whose_topic_has_lost_records_is_only_named(
    word: str, lose: Callable[[Found], Found], several: bool
) -> None:
    found = _HEALTHY
    if several:
        two = {"app.public.t": "public.t", "app.public.u": "public.u"}
        found = replace(found, tables=two, topics={**found.topics, "app.public.u": [Bounds(0, 9), Bounds(0, 9)]})
    assert decide(found).lost == {}
    start = decide(lose(found))
    assert start.origin == decide(found).origin
    assert start.lost.keys() == {"public.t"}
    error = start.lost["public.t"]
    assert (error.code, "tailrace table leave-out public.t" in error.hint) == ("TR-424", True)
    assert word in error.detail


_FIRST = {
    "nothing": _with(slot=None, stored=None, topics={}),
    "no publication": _with(slot=None, stored=None, topics={}, publications=None),
    "empty topics": _with(slot=None, stored=None, topics=_EMPTY),
    "cut short before the slot": _with(slot=None, stored=_BEFORE_SLOT),
    "cut short on another server": _with(slot=None, stored=_BEFORE_SLOT, identity=Identity("9", 3, 0x10)),
    "slot to be owned first": _with(stored=None, owned=False),
    "standby": lambda found: _part("server", in_recovery=True)(_with(slot=None, stored=None, topics={})(found)),
}


@pytest.mark.parametrize("change", _FIRST.values(), ids=_FIRST)
def test_a_first_start_has_no_origin(change: Callable[[Found], Found]) -> None:
    assert decide(change(_HEALTHY)).origin is None


def test_a_slot_without_its_first_record_has_all_tables_read() -> None:
    """Nothing was copied or confirmed: all tables are read, and no cut is a state until then."""
    start = decide(replace(_HEALTHY, stored=_BEFORE_SLOT))
    assert start.origin == new_origin(1, 0x5100, "77", 1, (100, 101), ["public.t"])
    assert not start.origin.is_state
    assert "read in windows" in start.notes[0]


def test_a_timeline_history_file_is_parsed() -> None:
    text = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01\n"
    assert parse_history(text) == {1: 0x3000148, 2: 0x1000000A0}


def test_publications_of_tables_with_a_key_may_omit_changes_while_the_daemon_runs() -> None:
    first, nokey = Publication("p", 100, _ALL - {"delete"}), Publication("p_nokey", 101, _EVENTS)
    check_publishes(Publications(first, nokey), begun=True, hint="", logs_only=True)
    less = Publications(first, replace(nokey, publishes=frozenset({"insert"})))
    with pytest.raises(StateError, match='"p_nokey" does not publish: truncate'):
        check_publishes(less, begun=True, hint="", logs_only=True)
    with pytest.raises(SourceError, match="more than inserts: update, truncate"):
        check_publishes(Publications(first, None), "insert", begun=True, hint="", logs_only=True)
