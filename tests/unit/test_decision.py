"""The decision table of `cdc.tables.decision`: a case for each row, and the precedence of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.cdc.tables.decision import Action, TopicPast, on_events, on_key, on_look, on_record
from tailrace.schemas.evolution import Break
from tailrace.schemas.records.layout import Attribute, Layout, TableState, TableStatus, TypeForm
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column

RELATION = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, (Column("id", 23, -1, True), Column("n", 23)))
ID, N = Attribute(1, "id", 23, -1, False, 5), Attribute(2, "n", 23, -1, False, 5)
LAYOUT = Layout(7, ((7, 70, False),), (1,), (ID, N))
STATE = TableState(3, 7, LAYOUT, 1000, ("id", "n"), status=TableStatus.STREAMING)
PAST = TopicPast(frozenset({"id", "n"}), ("id",), used=True)
COLUMNS = ("id", "n")
BROKEN = (Break("n", "int", "string"),)
MEMBER = replace(STATE, member=90, layout=replace(LAYOUT, member=90))


def with_type(attribute: Attribute, label: str) -> Layout:
    """Return LAYOUT with an enum in the type of one column."""
    attributes = [replace(each, inside=(50,)) if each == attribute else each for each in (ID, N)]
    return replace(LAYOUT, attributes=tuple(attributes), types=(TypeForm(50, True, ((70, label),)),))


AT_REST = [
    # layout before, layout now, action
    (LAYOUT, LAYOUT, Action.NONE),
    (LAYOUT, replace(LAYOUT, attributes=(ID, N, Attribute(3, "m", 25, -1, False, 6))), Action.NOTE),
    (LAYOUT, replace(LAYOUT, files=((7, 71, 0),)), Action.NOTE),  # VACUUM FULL
    (with_type(N, "sad"), with_type(N, "glad"), Action.READ),
    (replace(LAYOUT, files=()), replace(LAYOUT, files=((8, 80, 5),)), Action.READ),  # ATTACH PARTITION
    (replace(LAYOUT, files=((8, 80, 0),)), replace(LAYOUT, files=((8, 81, 0),)), Action.RECONCILE),
    (replace(LAYOUT, files=((8, 80, 5),)), replace(LAYOUT, files=((8, 80, 6),)), Action.RECONCILE),  # DETACH and ATTACH
    (replace(LAYOUT, toast=60), replace(LAYOUT, files=((7, 71, 0),), toast=61), Action.RECONCILE),  # SET UNLOGGED
    (replace(LAYOUT, published=((60, 5),)), replace(LAYOUT, published=((60, 6),)), Action.RECONCILE),  # SET (publish)
    (LAYOUT, replace(LAYOUT, published=((60, 6),)), Action.NOTE),  # by a version that did not know it
    (with_type(ID, "sad"), with_type(ID, "glad"), Action.REFILL),
    (LAYOUT, replace(LAYOUT, files=((7, 71, 0),), attributes=(replace(ID, version=6), N)), Action.REFILL),  # USING
]

REPLACED = [
    (None, LAYOUT, Action.READ),
    (TableState(0, 0, status=TableStatus.NEW), LAYOUT, Action.READ),
    (TableState(4, 0, status=TableStatus.GONE), LAYOUT, Action.REFILL),
    (STATE, replace(LAYOUT, oid=8), Action.REFILL),
    (MEMBER, replace(LAYOUT, member=91), Action.REFILL),
    (MEMBER, replace(LAYOUT, member=0), Action.NOTE),  # in no publication: it may come back, with another entry
    (TableState(4, 7, status=TableStatus.WANTED), replace(LAYOUT, member=91), Action.NONE),  # its entry is unknown
]


@pytest.mark.parametrize(("was", "now", "action"), AT_REST)
def test_a_changed_layout_of_the_same_table_leads_to_its_action(was: Layout, now: Layout, action: Action) -> None:
    columns = tuple(each.name for each in now.attributes)
    state = replace(STATE, layout=was)
    assert on_look(state, now, columns, PAST) is action
    assert on_record(state, RELATION, 2000, now, columns, PAST, (), chosen=False) is action


@pytest.mark.parametrize(("state", "now", "action"), REPLACED)
def test_a_new_or_replaced_table_leads_to_its_action(state: TableState | None, now: Layout, action: Action) -> None:
    assert on_look(state, now, COLUMNS, PAST) is action
    relation = replace(RELATION, oid=now.oid)
    assert on_record(state, relation, 2000, now, COLUMNS, PAST, (), chosen=False) is action


def test_a_name_that_no_topic_had_before_needs_no_truncate() -> None:
    assert on_look(TableState(4, 0, status=TableStatus.GONE), LAYOUT, COLUMNS, TopicPast()) is Action.READ


def test_a_truncate_that_is_still_to_be_sent_comes_first() -> None:
    state = replace(STATE, empty=True)
    assert on_record(state, RELATION, 2000, LAYOUT, COLUMNS, PAST, BROKEN, chosen=True) is Action.EMPTY
    other = replace(RELATION, oid=8)
    assert on_record(state, other, 2000, LAYOUT, COLUMNS, PAST, (), chosen=False) is Action.REFILL


def test_a_change_that_readers_cannot_follow_refills_the_topic() -> None:
    assert on_record(STATE, RELATION, 2000, LAYOUT, COLUMNS, PAST, BROKEN, chosen=True) is Action.REFILL
    assert on_record(STATE, RELATION, 2000, LAYOUT, COLUMNS, PAST, (), chosen=True) is Action.READ


def test_a_change_that_readers_cannot_follow_stops_if_so_configured() -> None:
    def stopped(state: TableState | None, breaks: tuple[Break, ...] = BROKEN, layout: Layout = LAYOUT) -> Action:
        return on_record(state, RELATION, 2000, layout, COLUMNS, PAST, breaks, chosen=False, stops=True)

    assert stopped(STATE) is Action.STOP
    assert stopped(MEMBER, layout=replace(LAYOUT, member=91)) is Action.STOP
    assert stopped(STATE, ()) is Action.NONE
    assert stopped(replace(STATE, empty=True)) is Action.EMPTY, "a person has asked for it"
    assert stopped(replace(STATE, oid=8)) is Action.REFILL, "another table"
    assert stopped(None) is Action.READ


def test_a_table_without_a_key_that_readers_cannot_follow_is_parked() -> None:
    log = replace(STATE, status=TableStatus.KEYLESS)
    for stops, action in ((False, Action.PARK), (True, Action.STOP)):
        for state in (log, replace(log, status=TableStatus.UNPUBLISHED), replace(log, status=TableStatus.PARKED)):
            assert on_events(state, 7, LAYOUT, PAST, BROKEN, stops=stops) is action
        assert on_events(replace(log, refill=True), 7, LAYOUT, PAST, BROKEN, stops=stops) is Action.NONE
        assert on_events(log, 8, LAYOUT, PAST, BROKEN, stops=stops) is Action.REFILL
        assert on_events(log, 7, LAYOUT, PAST, (), stops=stops) is Action.NONE
        assert on_events(None, 7, LAYOUT, PAST, BROKEN, stops=stops) is Action.READ


def test_a_table_that_has_lost_the_key_of_its_topic_is_parked() -> None:
    assert on_key(PAST, has_key=False) is Action.PARK
    assert on_key(PAST, has_key=True) is Action.NONE
    assert on_key(replace(PAST, key=()), has_key=False) is Action.NONE
    assert on_key(replace(PAST, used=False), has_key=False) is Action.NONE, "its topic has no record yet"


@pytest.mark.parametrize(
    ("now", "lsn", "action"),
    [
        (LAYOUT, 2000, Action.READ),  # the catalog has not reached the record, or is past it
        (LAYOUT, 999, Action.NONE),  # the rows were read at a later LSN
        (None, 2000, Action.NONE),  # the table is dropped: there is nothing to read
    ],
)
def test_a_record_that_differs_from_the_catalog_is_read_only_if_newer(
    now: Layout | None, lsn: int, action: Action
) -> None:
    wider = replace(RELATION, columns=(*RELATION.columns, Column("m", 25)))
    assert on_record(STATE, wider, lsn, now, ("id", "n", "m"), PAST, (), chosen=False) is action


def test_a_table_that_waits_to_be_read_needs_no_further_action() -> None:
    waiting = TableState(4, 7, status=TableStatus.WANTED)
    assert on_record(waiting, RELATION, 2000, LAYOUT, ("id",), PAST, (), chosen=False) is Action.NONE
    assert on_look(waiting, with_type(N, "glad"), COLUMNS, PAST) is Action.NONE


def test_changes_that_are_not_published() -> None:
    less = replace(LAYOUT, publishes_all=False)
    outside = TableState(4, 7, status=TableStatus.UNPUBLISHED)
    for state in (None, STATE, replace(STATE, oid=8), TableState(4, 7, status=TableStatus.WANTED)):
        assert on_look(state, less, COLUMNS, PAST) is Action.UNPUBLISH
    assert on_look(outside, less, COLUMNS, PAST) is Action.NONE
    assert on_look(outside, LAYOUT, COLUMNS, PAST) is Action.RECONCILE
    assert on_look(replace(outside, member=90), replace(LAYOUT, member=91), COLUMNS, PAST) is Action.REFILL
    assert on_look(outside, replace(LAYOUT, oid=8), COLUMNS, PAST) is Action.REFILL
    assert on_record(outside, RELATION, 2000, LAYOUT, COLUMNS, PAST, (), chosen=True) is Action.NONE
    assert on_record(outside, RELATION, 2000, LAYOUT, COLUMNS, PAST, BROKEN, chosen=True) is Action.REFILL
