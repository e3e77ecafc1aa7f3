"""The registry of captured tables, without servers: its states, and the calls that change them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.postgres.layouts import when_visible
from tailrace.cdc.tables.decision import Action, TopicPast
from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.cdc.tables.registry import Subjects, TableRegistry
from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.errors import SourceError, StateError
from tailrace.schemas.records.layout import Asked, Attribute, Layout, TableState, TableStatus
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo
from tailrace.snapshot.window import Found, Look

TYPES = {23: TypeInfo(23, "int4", "b"), 20: TypeInfo(20, "int8", "b"), 25: TypeInfo(25, "text", "b")}
ID, N = Column("id", 23, -1, True), Column("n", 23)
T = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, (ID, N))
LAYOUT = Layout(7, ((7, 70, False),), (1,), (Attribute(1, "id", 23, -1, False, 5), Attribute(2, "n", 23, -1, False, 5)))
READ = TableState(3, 7, LAYOUT, 1000, ("id", "n"), status=TableStatus.STREAMING)
WANTED = TableState(4, 7, status=TableStatus.WANTED)
REFILL = replace(WANTED, refill=True)
PAST = TopicPast(frozenset({"id", "n"}), ("id",), used=True)


def subjects(relation: Relation) -> Subjects:
    keys = [column for column in relation.columns if column.is_key]
    return Subjects(key_schema(keys, TYPES, "p.public.t"), value_schema(relation, TYPES, "p.public.t"))


def registry(states: dict[str, TableState] | None = None, *incomplete: str, **source: Any) -> TableRegistry:
    progress = Progress(new_origin(1, 1, "1", 1, (1, 0), incomplete))
    made = Source(dsn="", **source)
    stored = {"public.t": READ} if states is None else states
    return TableRegistry(made, Topics("p"), ColumnOptions(made), progress, lambda key, value: None, stored)


def adopt(
    made: TableRegistry, relation: Relation, now: Layout | None = LAYOUT, lsn: int = 2000, old: Relation | None = T
) -> bool:
    past = PAST if old is not None else TopicPast()
    return made.adopt(relation, lsn, now, subjects(old) if old else None, subjects(relation), past)


def settle(made: TableRegistry, *found: Found, began: float | None = None, unpublished: str = "") -> None:
    look = Look(time.monotonic() if began is None else began, 2000, found, frozenset(unpublished.split()))
    made.settle(look, {each.name: PAST for each in found}, dict.fromkeys(unpublished.split(), "ALTER PUBLICATION"))


def found(name: str, layout: Layout = LAYOUT, columns: tuple[str, ...] = ("id", "n")) -> Found:
    return Found("public", name, columns, layout)


def test_an_unchanged_table_is_not_read() -> None:
    made = registry()
    assert not adopt(made, T)
    settle(made, found("t"))
    assert (made.wanted, made.states, made.incomplete) == ({}, {"public.t": READ}, set())


def test_a_new_column_without_values_is_only_recorded() -> None:
    made = registry()
    wider = replace(T, columns=(ID, N, Column("m", 25)))
    now = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, False, 6)))
    assert not adopt(made, wider, now)
    assert made.wanted == {}
    assert made.states["public.t"] == replace(READ, layout=now, columns=("id", "n", "m"), lsn=2000)


def test_the_hidden_columns_of_a_state_from_an_older_version_are_known() -> None:
    """Renamed while the daemon of an older version was stopped; then parked, and resumed without a mend."""
    made = registry(hash=["public.t.n"], hash_salt="s")
    renamed = replace(T, columns=(ID, Column("m", 23)))
    now = replace(LAYOUT, attributes=(LAYOUT.attributes[0], Attribute(2, "m", 23, -1, False, 6)))
    for _ in range(2):
        with pytest.raises(StateError, match=r'column "m" of table "public\.t" was "public\.t\.n"') as raised:
            made.check_hidden(renamed, now)
        made.park(renamed, raised.value, 2000)
        assert [each.number for each in made.states["public.t"].hidden] == [2]
        made.resume(renamed)


def test_a_look_from_before_the_streams_position_is_ignored() -> None:
    made = registry()
    began = time.monotonic()
    now = replace(LAYOUT, attributes=LAYOUT.attributes[:1])
    assert not adopt(made, replace(T, columns=(ID,)), now, 2000)
    assert made.judge(Look(began, 1999, ()), found("t"), PAST) is None
    settle(made, found("t"), began=began)
    assert made.wanted == {}
    settle(made, found("t"))
    assert "public.t" in made.wanted, "it has come back"


def test_a_layout_is_awaited_until_its_commit_is_visible() -> None:
    wider = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, False, 6)))
    shown = replace(T, columns=(ID, N, Column("m", 25)))
    assert when_visible(iter([LAYOUT, LAYOUT, wider, LAYOUT]).__next__, shown) is wider
    assert when_visible(lambda: LAYOUT, shown) is LAYOUT, "past it, perhaps"
    assert when_visible(iter([None, LAYOUT]).__next__, shown) is None


def test_a_table_goes_from_wanted_to_reading_to_streaming() -> None:
    made = registry()
    made.want(T)
    assert (made.status("public.t"), made.incomplete) == (TableStatus.WANTED, {"public.t"})
    made.begun("public.t")
    assert made.wanted == {}
    assert not adopt(made, replace(T, columns=(ID,)))
    held = replace(READ, run=4, status=TableStatus.WANTED)
    assert made.states["public.t"] == held, "nothing more is wanted of it; its topic has rows of that layout"
    made.planned(T, LAYOUT, 3000, PAST)
    assert (made.status("public.t"), made.incomplete) == (TableStatus.READING, {"public.t"})
    made.copied("public.t")
    assert (made.status("public.t"), made.incomplete) == (TableStatus.STREAMING, set())
    assert made.states["public.t"] == replace(READ, run=4, lsn=3000)


REWRITTEN = (replace(LAYOUT.attributes[0], version=6), LAYOUT.attributes[1])
REKEYED = replace(LAYOUT, files=((7, 71, False),), attributes=REWRITTEN)


def test_changes_before_a_read_is_planned_can_require_an_empty_topic() -> None:
    """The topic has rows of the old layout: records of old keys would stay beside those of the read."""
    for layout, emptied in ((LAYOUT, False), (REKEYED, True)):
        made = registry()
        made.want(T)
        made.planned(T, layout, 3000, PAST)
        assert made.must_be_emptied("public.t") is emptied
    parts = replace(LAYOUT, files=((8, 80, False),))
    truncated = registry({"public.t": replace(READ, layout=parts)})
    truncated.want(T)
    truncated.planned(T, replace(parts, files=((8, 81, False),)), 3000, PAST)
    assert truncated.must_be_emptied("public.t"), "a partition's TRUNCATE is not in the stream"
    looked = registry()
    looked.want(T)
    settle(looked, found("t", REKEYED))
    assert (looked.states["public.t"].run, looked.must_be_emptied("public.t")) == (5, True)


def test_rows_before_the_first_planned_read_can_require_an_empty_topic() -> None:
    """They are streamed in their layout at the time, while the table waits for others to be read."""
    looked = registry({}, "public.t")
    settle(looked, found("t"))
    looked.planned(T, REKEYED, 3000, PAST)
    assert looked.must_be_emptied("public.t")
    streamed = registry({})
    assert not adopt(streamed, T, old=None)
    streamed.planned(T, LAYOUT, 3000, PAST)
    assert (streamed.must_be_emptied("public.t"), streamed.begins_empty("public.t")) == (False, True)


def test_a_table_altered_while_it_is_read_is_wanted_again() -> None:
    filled = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, True, 6)))
    for layout, emptied in ((filled, False), (None, False), (REKEYED, True)):
        made = registry()
        made.want(T)
        made.planned(T, LAYOUT, 3000, PAST)
        made.altered(T, layout, PAST)
        assert (made.status("public.t"), made.must_be_emptied("public.t")) == (TableStatus.WANTED, emptied)


def test_the_first_copy_leaves_no_table_incomplete() -> None:
    made = registry({}, "public.t", "public.u")
    assert (made.status("public.t"), made.incomplete) == (TableStatus.NEW, {"public.t", "public.u"})
    made.first(T, LAYOUT, 1000)
    assert made.status("public.t") is TableStatus.READING
    made.keyless.add("public.t")
    made.copied("public.t")
    assert (made.status("public.t"), made.incomplete) == (TableStatus.KEYLESS, {"public.u"})
    made.gone("public.u")
    assert (made.status("public.u"), made.incomplete) == (TableStatus.GONE, set())


def test_of_requested_reads_only_reconcile_makes_a_table_incomplete() -> None:
    made = registry()
    made.ask(T, Asked(whole=True))
    assert (made.status("public.t"), made.incomplete) == (TableStatus.STREAMING, set())
    made.planned(T, LAYOUT, 3000, PAST)
    made.cancel("public.t")
    assert (replace(made.states["public.t"], ended=None), made.wanted) == (replace(READ, run=5), {})
    made.ask(T, Asked(since=(1, 2)))
    assert made.incomplete == {"public.t"}


def test_a_reconciling_read_in_place_of_another_begins_anew() -> None:
    """Rows that were sent since the first one began, and then truncated with their partition, get their deletes."""
    parts = replace(LAYOUT, files=((8, 80, 0),))
    made = registry({"public.t": replace(READ, layout=parts)})
    made.ask(T, Asked(whole=True, since=(1, 2)))
    made.begun("public.t")
    made.planned(T, parts, 3000, PAST)
    settle(made, found("t", replace(LAYOUT, files=((8, 81, 0),))))
    state = made.states["public.t"]
    assert (state.run, state.status, state.asked) == (5, TableStatus.WANTED, Asked(since=made.ends(T)))


def test_a_change_that_readers_cannot_follow_refills_the_topic() -> None:
    text, longer = replace(T, columns=(ID, Column("n", 25))), replace(T, columns=(Column("id", 20, -1, True), N))
    for relation in (text, longer):
        made = registry()
        assert adopt(made, relation)
        assert (made.states["public.t"], "public.t" in made.wanted) == (REFILL, True)
    chosen = registry(as_text=["public.t.*"])
    assert not adopt(chosen, text)
    assert "public.t" in chosen.wanted
    assert adopt(registry(as_text=["public.t.*"]), longer), "a key has no other form"


def test_on_schema_change_stop_refuses_what_readers_cannot_follow() -> None:
    made = registry(on_schema_change="stop")
    with pytest.raises(StateError) as stopped:
        adopt(made, replace(T, columns=(ID, Column("n", 25))))
    assert stopped.value.exit_code == 6
    assert 'column "n": int → string' in stopped.value.detail
    assert 'as_text = ["public.t.n"]' in stopped.value.hint
    assert made.states["public.t"] == READ
    with pytest.raises(StateError) as stopped:
        adopt(registry(on_schema_change="stop"), replace(T, columns=(Column("id", 20, -1, True), N)))
    assert "the key: id int → id long" in stopped.value.detail
    assert "as_text" not in stopped.value.hint


def test_another_table_of_the_same_name_refills_the_topic() -> None:
    made = registry()
    assert adopt(made, replace(T, oid=8), replace(LAYOUT, oid=8))
    assert made.states["public.t"] == replace(REFILL, oid=8)
    assert "public.t" in made.wanted
    looked = registry()
    settle(looked, found("t", replace(LAYOUT, oid=8)))
    assert looked.states["public.t"] == replace(REFILL, oid=8, empty=True)
    looked.planned(replace(T, oid=8), replace(LAYOUT, oid=8), 3000, PAST)
    assert looked.must_be_emptied("public.t")
    assert adopt(looked, replace(T, oid=8), replace(LAYOUT, oid=8)), "before its first row"
    assert (looked.must_be_emptied("public.t"), looked.begins_empty("public.t")) == (False, True)
    looked.emptied("public.t")
    assert not looked.begins_empty("public.t")
    assert not adopt(looked, replace(T, oid=8), replace(LAYOUT, oid=8))
    assert looked.status("public.t") is TableStatus.READING


def test_a_table_that_is_published_again_refills_its_topic() -> None:
    before = replace(READ, member=90, layout=replace(LAYOUT, member=90))
    gone, again = replace(LAYOUT, member=0), replace(LAYOUT, member=91)
    made = registry({"public.t": before})
    assert not adopt(made, T, gone)
    assert made.states["public.t"].member == 90
    assert adopt(made, T, again)
    assert made.states["public.t"] == replace(REFILL, member=91)
    assert not adopt(made, T, again)


def test_a_table_renamed_and_back_is_read_under_its_last_name() -> None:
    made = registry()
    assert not adopt(made, replace(T, name="u"), old=None)
    assert made.wanted.keys() == {"public.u"}
    assert made.status("public.t") is TableStatus.GONE
    assert adopt(made, T)
    assert made.status("public.u") is TableStatus.GONE
    assert made.wanted.keys() == {"public.t"}


def test_a_rename_without_a_streamed_change_is_found_by_a_look() -> None:
    made = registry()
    look = Look(time.monotonic(), 2000, (found("u"),))
    assert made.moved(look) == {"public.t"}
    made.settle(look, {"public.u": TopicPast()})
    assert (made.status("public.t"), set(made.wanted)) == (TableStatus.GONE, {"public.u"})
    assert not made.must_be_emptied("public.u")


def test_two_tables_that_swap_names_are_both_read_once() -> None:
    other = replace(LAYOUT, oid=8, files=((8, 80, False),))
    made = registry({"public.t": READ, "public.u": replace(READ, oid=8, layout=other)})
    settle(made, found("t", other), found("u"))
    assert made.wanted.keys() == {"public.t", "public.u"}
    assert {name: (state.oid, state.empty, state.run) for name, state in made.states.items()} == {
        "public.t": (8, True, 4),
        "public.u": (7, True, 4),
    }
    settle(made, found("t", other), found("u"))
    assert {state.run for state in made.states.values()} == {4}, "once is enough"


def test_only_a_table_dropped_while_it_was_read_is_forgotten() -> None:
    made = registry({"public.t": replace(READ, status=TableStatus.READING), "public.u": replace(READ, oid=8)})
    settle(made)
    assert made.status("public.t") is TableStatus.GONE
    assert made.status("public.u") is TableStatus.STREAMING, "its topic is as it was at its end"


def test_a_changed_key_that_the_wal_does_not_name_is_found() -> None:
    made = registry()
    assert not made.key_changed(T, 2000, LAYOUT)
    other = replace(LAYOUT, key=(2,))
    assert made.key_changed(T, 2000, other)
    assert not made.key_changed(T, 999, other)


def test_a_change_of_column_options_has_the_table_read() -> None:
    """Values that were left out, or masked, are not on the topic for the rows that were read so."""
    hidden = {"public.t": replace(READ, columns=("id",))}
    for options, wanted in (({}, True), ({"exclude": ["public.t.n"]}, False)):
        made = registry(hidden, **options)
        settle(made, found("t"))
        assert ("public.t" in made.wanted) is wanted
    masked = registry(mask={"public.t.n": 2})
    settle(masked, found("t"))
    assert "public.t" in masked.wanted


def test_a_table_is_parked_left_out_and_resumed() -> None:
    made = registry()
    made.park(T, SourceError("TR-220", "refused", hint="do this"), 2000)
    assert (made.status("public.t"), made.incomplete) == (TableStatus.PARKED, {"public.t"})
    settle(made, found("t", replace(LAYOUT, oid=8)))
    assert made.status("public.t") is TableStatus.PARKED, "a look changes nothing of it"
    assert made.parked == {"public.t": "TR-220"}
    made.leave_out("public.t")
    assert (made.parked, made.incomplete) == ({"public.t": ""}, {"public.t"})
    made.resume(T)
    state = made.states["public.t"]
    assert (state.status, state.parked, state.asked is not None) == (TableStatus.WANTED, None, True)
    assert made.incomplete == {"public.t"}


def test_states_without_a_status_follow_from_the_position_record() -> None:
    old = replace(READ, status=None)
    made = registry({"public.a": old, "public.b": old, "public.c": TableState(4, 7), "public.d": TableState(1, 0)},
                    "public.b", "public.c")  # fmt: skip
    assert [made.status(f"public.{name}") for name in "abcd"] == [
        TableStatus.STREAMING,
        TableStatus.READING,
        TableStatus.WANTED,
        TableStatus.GONE,
    ]
    assert made.incomplete == {"public.b", "public.c"}


def test_a_name_that_was_only_unsettled_gets_no_state() -> None:
    """It may be that of a partition; if it is a captured table, the first inspection reads it like any unknown one."""
    made = registry({"public.t": READ}, "public.t", "public.partition")
    assert (set(made.states), made.incomplete) == ({"public.t"}, set())


LOG = replace(T, columns=(replace(ID, is_key=False), N))
LOG_READ = replace(READ, status=TableStatus.KEYLESS, layout=replace(LAYOUT, key=(), member=90), member=90)
LOG_PAST = TopicPast(frozenset({"id", "n"}), (), used=True)


def adopt_events(made: TableRegistry, relation: Relation = LOG, now: Layout | None = None, **more: Any) -> None:
    old = more.get("old", LOG)
    past = more.get("past", LOG_PAST)
    made.adopt_events(relation, now, old and Subjects("", subjects(old).value), subjects(relation), past)


def log_registry(state: TableState = LOG_READ) -> TableRegistry:
    made = registry({"public.t": state})
    made.keyless.add("public.t")
    return made


def test_a_table_without_a_key_is_read_whole_if_it_is_new() -> None:
    made = registry({})
    adopt_events(made, old=None, past=TopicPast())
    assert (made.status("public.t"), set(made.wanted)) == (TableStatus.WANTED, {"public.t"})
    assert made.is_read_whole("public.t"), "its changes come with its rows"
    adopt_events(made)
    made.planned(LOG, LOG_READ.layout or LAYOUT, 3000, TopicPast(), has_key=False)
    assert (made.status("public.t"), made.begins_empty("public.t")) == (TableStatus.READING, False)
    assert made.is_read_whole("public.t")
    made.copied("public.t")
    assert (made.status("public.t"), made.incomplete) == (TableStatus.KEYLESS, set())
    assert not made.is_read_whole("public.t")


def test_a_table_without_a_key_is_read_again_if_rows_or_changes_may_be_missing() -> None:
    same, again, other = (replace(LAYOUT, key=(), member=90), replace(LAYOUT, member=91), replace(LAYOUT, oid=8))
    for now, action in ((same, Action.NONE), (again, Action.REFILL), (other, Action.REFILL)):
        made = log_registry()
        assert made.judge(Look(time.monotonic(), 1, ()), found("t", now), LOG_PAST) is action
        adopt_events(made, replace(LOG, oid=now.oid), now)
        assert (made.status("public.t") is TableStatus.WANTED) is (action is Action.REFILL)
        assert made.begins_empty("public.t") is (action is Action.REFILL)
    altered = log_registry(replace(LOG_READ, status=TableStatus.READING))
    altered.altered(LOG, same, LOG_PAST)
    assert (altered.status("public.t"), altered.begins_empty("public.t")) == (TableStatus.WANTED, True)


def test_a_person_has_a_table_without_a_key_read_again() -> None:
    parked = log_registry()
    parked.park(LOG, SourceError("TR-220", "refused"), 2000)
    parked.resume(LOG)
    asked = log_registry()
    asked.ask(LOG, Asked(whole=True, where="n > 1", rate=5))
    assert asked.states["public.t"].asked == Asked(whole=False, rate=5)
    for made in (parked, asked):
        assert (made.status("public.t"), made.begins_empty("public.t")) == (TableStatus.WANTED, True)
        made.planned(LOG, LAYOUT, 3000, LOG_PAST, has_key=False)
        assert (made.must_be_emptied("public.t"), made.begins_empty("public.t")) == (False, True)


def test_a_table_that_gets_a_key_is_refilled_by_it() -> None:
    made = log_registry()
    old = Subjects("", subjects(LOG).value)
    assert made.adopt(T, 2000, LAYOUT, old, subjects(T), LOG_PAST), "a truncate precedes its first record"
    assert (made.status("public.t"), made.begins_empty("public.t")) == (TableStatus.WANTED, True)
    assert not made.adopt(T, 2001, LAYOUT, old, subjects(T), LOG_PAST), "once is enough"
    assert (made.keyless, made.states["public.t"].run) == (set(), 4)
    found_at_start = log_registry()
    found_at_start.refill(T)
    found_at_start.planned(T, LAYOUT, 3000, LOG_PAST)
    assert (found_at_start.keyless, found_at_start.begins_empty("public.t")) == (set(), True)
    stop = registry({"public.t": LOG_READ}, on_schema_change="stop")
    with pytest.raises(StateError, match="TR-407") as refused:
        stop.adopt(T, 2000, LAYOUT, old, subjects(T), LOG_PAST)
    assert "the key: none → id" in refused.value.detail


def test_a_table_without_a_key_that_readers_cannot_follow() -> None:
    text = replace(LOG, columns=(LOG.columns[0], Column("n", 25)))
    for on_schema_change, code in (("refill", "TR-431"), ("stop", "TR-407")):
        with pytest.raises(StateError, match=code) as refused:
            adopt_events(registry({"public.t": LOG_READ}, on_schema_change=on_schema_change), text)
        assert 'column "n": int → string' in refused.value.detail
        assert 'as_text = ["public.t.n"]' in refused.value.hint
    adopt_events(registry({"public.t": LOG_READ}, as_text=["public.t.n"]), text)
    resumed = log_registry()
    resumed.refill(text)
    adopt_events(resumed, text)


def test_a_parked_table_whose_topic_has_lost_records_is_resumed_by_a_truncate() -> None:
    lost = {"public.t": StateError("TR-424", "lost", hint="restart")}
    made = registry()
    made.park(T, SourceError("TR-220", "refused"), 2000)
    made.park_lost(lost)
    assert made.parked == {"public.t": "TR-424"}
    made.leave_out("public.t")
    made.park_lost(lost)
    assert made.parked == {"public.t": ""}, "a person does not need it"
    made.park_again("public.t")
    assert made.parked == {"public.t": "TR-424"}
    made.park_lost({})
    parked = made.states["public.t"].parked
    assert parked is not None
    assert (parked.hint, parked.lsn) == ("tailrace table resume public.t", 2000)
    made.resume(T)
    assert made.must_be_emptied("public.t")
    assert made.begins_empty("public.t")


@pytest.mark.parametrize("status", [TableStatus.STREAMING, TableStatus.WANTED, TableStatus.READING, TableStatus.GONE])
def test_a_table_that_leaves_the_publication_is_incomplete_until_it_is_read_again(status: TableStatus) -> None:
    made = registry({"public.t": replace(READ, status=status), "public.u": replace(READ, oid=8)})
    began = time.monotonic()
    settle(made, found("u", replace(LAYOUT, oid=8)), unpublished="public.t public.new")
    state = made.states["public.t"]
    assert (state.status, state.remedy, made.incomplete) == (
        TableStatus.UNPUBLISHED,
        "ALTER PUBLICATION",
        {"public.t"},
    )
    settle(made, found("u", replace(LAYOUT, oid=8)), unpublished="public.t")
    assert made.states["public.t"] == state, "once is enough"
    settle(made, found("t"), began=began)
    assert made.states["public.t"] == state, "an inspection from before says nothing"
    settle(made, found("t"), found("u", replace(LAYOUT, oid=8)))
    asked = made.states["public.t"].asked
    assert (made.status("public.t"), asked is not None and asked.since is not None) == (TableStatus.WANTED, True)


def test_an_unpublished_table_that_is_dropped_is_gone() -> None:
    made = registry()
    settle(made, unpublished="public.t")
    settle(made)
    assert (made.status("public.t"), made.incomplete) == (TableStatus.GONE, set())


def test_the_name_of_a_renamed_table_is_taken_by_an_unpublished_one() -> None:
    made = registry()
    settle(made, found("was"), unpublished="public.t")
    assert (made.status("public.t"), made.status("public.was")) == (TableStatus.UNPUBLISHED, TableStatus.WANTED)
    assert not adopt(made, replace(T, name="was"), old=None)
    assert made.status("public.t") is TableStatus.UNPUBLISHED


def test_parked_tables_stay_parked_if_they_are_not_published() -> None:
    made = registry()
    made.park(T, SourceError("TR-220", "refused", hint="do this"), 2000)
    settle(made, unpublished="public.t")
    assert made.status("public.t") is TableStatus.PARKED


def test_an_unpublished_table_without_a_key_is_refilled() -> None:
    made = log_registry()
    settle(made, unpublished="public.t")
    assert (made.status("public.t"), made.incomplete) == (TableStatus.UNPUBLISHED, {"public.t"})
    adopt_events(made)
    assert made.status("public.t") is TableStatus.UNPUBLISHED, "until an inspection finds it published"
    settle(made, found("t", replace(LAYOUT, key=(), member=91)))
    assert (made.status("public.t"), made.begins_empty("public.t")) == (TableStatus.WANTED, True)


def test_a_publication_of_fewer_changes() -> None:
    less, again = replace(LAYOUT, publishes_all=False), replace(LAYOUT, published=((60, 6),))
    made = registry()
    settle(made, found("t", less))
    assert (made.status("public.t"), made.incomplete) == (TableStatus.UNPUBLISHED, {"public.t"})
    settle(made, found("t", again))
    assert made.status("public.t") is TableStatus.WANTED
    log = registry(publish="insert")
    settle(log, found("t", less))
    assert log.status("public.t") is TableStatus.STREAMING, "it is declared so"


def test_an_earlier_version_reads_an_unpublished_table_again_into_an_emptied_topic() -> None:
    made = registry()
    settle(made, unpublished="public.t")
    state = made.states["public.t"]
    assert TableState.from_json(state.to_json()) == state
    stored = json.loads(state.to_json())
    assert (stored["status"], stored["refill"]) == ("wanted", True)


def test_a_wanted_table_whose_key_is_missing_is_refilled_as_a_log() -> None:
    made = registry()
    made.ask(T, Asked(since=(1, 2)))
    made.planned(LOG, LAYOUT, 3000, LOG_PAST, has_key=False)
    assert made.states["public.t"].asked == Asked(), "it has no keys to delete"
    assert (made.is_read_whole("public.t"), made.begins_empty("public.t")) == (True, True)


def test_a_streaming_or_missing_table_without_a_key_holds_events() -> None:
    made = registry()
    adopt_events(made)
    assert made.states["public.t"] == replace(READ, status=TableStatus.KEYLESS)
    assert (made.wanted, made.incomplete) == ({}, set())
    for used, refilled in ((True, True), (False, False)):
        gone = registry({"public.t": TableState(4, 0, status=TableStatus.GONE)})
        adopt_events(gone, past=replace(LOG_PAST, used=used))
        assert (gone.status("public.t"), gone.begins_empty("public.t")) == (TableStatus.WANTED, refilled)
    for status in (TableStatus.READING, TableStatus.WANTED, TableStatus.UNPUBLISHED, TableStatus.PARKED):
        made = registry({"public.t": replace(READ, status=status)})
        adopt_events(made)
        assert made.status("public.t") is status, "the end of its read decides"
    renamed = registry()
    adopt_events(renamed, replace(LOG, name="u"), old=None, past=TopicPast())
    assert [renamed.status(name) for name in ("public.t", "public.u")] == [TableStatus.GONE, TableStatus.WANTED]


def test_a_table_that_leaves_the_capture_set_is_gone() -> None:
    for status in TableStatus:
        made = registry({"public.t": replace(READ, status=status), "public.u": replace(READ, oid=8)})
        made.left(replace(T, name="audit"))
        assert made.states["public.t"] == TableState(4, 0, status=TableStatus.GONE)
        assert (made.incomplete, made.status("public.u")) == (set(), TableStatus.STREAMING)
    wanted = registry()
    wanted.want(T)
    wanted.left(replace(T, name="audit"))
    assert wanted.wanted == {}, "nothing is read of it"
    assert adopt(wanted, T), "it is read from the start if it returns"
    assert (wanted.status("public.t"), set(wanted.wanted)) == (TableStatus.WANTED, {"public.t"})


def test_a_table_is_parked_from_each_status() -> None:
    for status in set(TableStatus) - {TableStatus.PARKED}:
        made = registry({"public.t": replace(READ, status=status, empty=True)})
        made.want(T)
        made.park(T, SourceError("TR-220", "refused", hint="do this"), 2000)
        state = made.states["public.t"]
        assert (state.status, state.empty, state.layout, made.wanted) == (TableStatus.PARKED, True, None, {})
        assert state.parked is not None
        assert state.parked.lsn == 2000
        made.park(T, SourceError("TR-304", "too large"), 3000)
        assert made.states["public.t"] == state, "the first error stays"


def test_a_parked_table_that_is_renamed_is_gone() -> None:
    made = registry()
    made.park(T, SourceError("TR-220", "refused", hint="do this"), 2000)
    settle(made)
    assert made.status("public.t") is TableStatus.PARKED, "it may be in no publication for a while"
    settle(made, found("u"))
    assert (made.status("public.t"), made.parked, made.incomplete) == (TableStatus.GONE, {}, {"public.u"})
    assert made.wanted.keys() == {"public.u"}
