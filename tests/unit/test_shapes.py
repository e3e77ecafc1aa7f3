"""What becomes of a topic when its table changes, without servers: what the WAL shows, what the catalog says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.layouts import when_visible
from cdc.progress import Progress, new_origin
from cdc.shapes import Shapes, Subjects
from schemas.avro import key_schema, value_schema
from schemas.columns import ColumnOptions
from schemas.config import Source
from schemas.errors import StateError
from schemas.layout import Attribute, Layout, TableState
from schemas.relation import Column, Relation, ReplicaIdentity
from schemas.types import TypeInfo
from snapshot.window import Found

TYPES = {23: TypeInfo(23, "int4", "b"), 20: TypeInfo(20, "int8", "b"), 25: TypeInfo(25, "text", "b")}
ID, N = Column("id", 23, -1, True), Column("n", 23)
T = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, (ID, N))
LAYOUT = Layout(7, ((7, 70, False),), (1,), (Attribute(1, "id", 23, -1, False, 5), Attribute(2, "n", 23, -1, False, 5)))
READ = TableState(3, 7, LAYOUT, 1000, ("id", "n"))


def subjects(relation: Relation) -> Subjects:
    keys = [column for column in relation.columns if column.is_key]
    return Subjects(key_schema(keys, TYPES, "p.public.t"), value_schema(relation, TYPES, "p.public.t"))


def shapes(states: dict[str, TableState] | None = None, **source: Any) -> Shapes:
    progress = Progress(new_origin(1, 1, "1", 1, (1, 0), []))
    made = Source(dsn="", **source)
    return Shapes(made, ColumnOptions(made), progress, lambda key, value: None, dict(states or {"public.t": READ}))


def take(
    made: Shapes, relation: Relation, now: Layout | None = LAYOUT, lsn: int = 2000, old: Relation | None = T
) -> bool:
    return made.take(
        relation, lsn, now, subjects(old) if old else None, subjects(relation), {c.name for c in T.columns}
    )


def test_nothing_has_changed() -> None:
    made = shapes()
    assert not take(made, T)
    assert (made.wanted, made.states) == ({}, {"public.t": READ})


def test_a_column_without_values_is_noted_only() -> None:
    made = shapes()
    wider = replace(T, columns=(ID, N, Column("m", 25)))
    now = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, False, 6)))
    assert not take(made, wider, now)
    assert made.wanted == {}
    assert made.states["public.t"] == replace(READ, layout=now, columns=("id", "n", "m"))


@pytest.mark.parametrize(
    ("now", "lsn", "wanted"),
    [
        (LAYOUT, 2000, True),  # the catalog is not there yet, or is past it
        (LAYOUT, 999, False),  # the rows were read later than that
        (None, 2000, False),  # the table is gone: there is nothing to read
    ],
)
def test_wal_and_catalog_are_not_of_one_moment(now: Layout | None, lsn: int, wanted: bool) -> None:
    made = shapes()
    assert not take(made, replace(T, columns=(ID, N, Column("m", 25))), now, lsn)
    assert ("public.t" in made.wanted) is wanted
    assert made.states["public.t"].run == READ.run + wanted


def test_a_look_from_before_the_stream_had_come_so_far_says_nothing() -> None:
    made = shapes()
    now = replace(LAYOUT, attributes=LAYOUT.attributes[:1])
    assert not take(made, replace(T, columns=(ID,)), now, 2000)
    made.look(Found("public", "t", ("id", "n"), LAYOUT, 1999), {"id", "n"})
    assert made.wanted == {}
    made.look(Found("public", "t", ("id", "n"), LAYOUT, 2001), {"id", "n"})
    assert "public.t" in made.wanted, "it has come back"


def test_a_commit_is_in_the_wal_before_others_see_it() -> None:
    wider = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, False, 6)))
    shown = replace(T, columns=(ID, N, Column("m", 25)))
    assert when_visible(iter([LAYOUT, LAYOUT, wider, LAYOUT]).__next__, shown) is wider
    assert when_visible(lambda: LAYOUT, shown) is LAYOUT, "past it, perhaps"
    assert when_visible(iter([None, LAYOUT]).__next__, shown) is None


def test_while_it_waits_to_be_read_nothing_more_is_wanted() -> None:
    waiting = TableState(4, 7)
    made = shapes({"public.t": waiting})
    assert not take(made, replace(T, columns=(ID,)))
    assert made.states["public.t"] == waiting


def test_what_readers_cannot_follow_stops() -> None:
    text = replace(T, columns=(ID, Column("n", 25)))
    made = shapes()
    with pytest.raises(StateError) as stopped:
        take(made, text)
    assert stopped.value.exit_code == 6
    assert 'column "n": int → string' in stopped.value.detail
    assert 'as_text = ["public.t.n"]' in stopped.value.hint
    assert made.states["public.t"] == READ
    chosen = shapes(as_text=["public.t.*"])
    assert not take(chosen, text)
    assert "public.t" in chosen.wanted
    emptied = shapes(on_schema_change="truncate")
    assert take(emptied, text)
    assert "public.t" in emptied.wanted


def test_a_key_stops_even_as_text() -> None:
    longer = replace(T, columns=(Column("id", 20, -1, True), N))
    with pytest.raises(StateError) as stopped:
        take(shapes(as_text=["public.t.*"]), longer)
    assert "the key: id int → id long" in stopped.value.detail
    assert "as_text" not in stopped.value.hint


def test_another_table_of_the_same_name() -> None:
    made = shapes()
    assert take(made, replace(T, oid=8), replace(LAYOUT, oid=8))
    assert made.states["public.t"] == TableState(4, 8)
    assert "public.t" in made.wanted
    reading = shapes({"public.t": replace(READ, layout=replace(LAYOUT, oid=8))})
    assert take(reading, replace(T, oid=8), replace(LAYOUT, oid=8))
    assert (reading.states["public.t"].run, reading.wanted) == (READ.run, {})


def test_published_anew() -> None:
    before = replace(READ, member=90, layout=replace(LAYOUT, member=90))
    gone, anew = replace(LAYOUT, member=0), replace(LAYOUT, member=91)
    made = shapes({"public.t": before})
    assert not take(made, T, gone)
    assert made.states["public.t"].member == 90
    assert take(made, T, anew)
    assert made.states["public.t"] == TableState(4, 7, member=91)
    assert not take(made, T, anew)
    reading = shapes({"public.t": replace(before, layout=anew)})
    assert take(reading, T, anew)
    assert reading.states["public.t"] == replace(before, layout=anew, member=91)


def test_renamed_and_back() -> None:
    made = shapes()
    assert not take(made, replace(T, name="u"), old=None)
    assert made.wanted.keys() == {"public.u"}
    assert made.states["public.t"].oid == 0
    assert take(made, T)
    assert made.states["public.u"].oid == 0
    assert made.wanted.keys() == {"public.t"}


def test_primary_key_changed_where_the_wal_does_not_name_it() -> None:
    made = shapes()
    assert not made.key_changed(T, 2000, LAYOUT)
    other = replace(LAYOUT, key=(2,))
    assert made.key_changed(T, 2000, other)
    assert not made.key_changed(T, 999, other)


def test_a_look_at_the_catalog() -> None:
    filled = replace(LAYOUT, attributes=(*LAYOUT.attributes, Attribute(3, "m", 25, -1, True, 6)))
    for found, wanted in (
        (Found("public", "t", ("id", "n"), LAYOUT, 2000), False),
        (Found("public", "t", ("id", "n", "m"), filled, 2000), True),
        (Found("public", "t", ("id", "n", "m"), filled, 1000), False),
        (Found("public", "t", ("id", "n"), replace(LAYOUT, oid=8), 2000), True),
        (Found("public", "u", ("id", "n"), replace(LAYOUT, oid=9), 2000), True),
        (Found("public", "t", ("id", "n"), replace(LAYOUT, member=90), 2000), True),
    ):
        made = shapes()
        made.look(found, set())
        assert bool(made.wanted) is wanted


def test_an_option_that_is_taken_back() -> None:
    """What was left out, or masked, is not on the topic for the rows that were read so."""
    hidden = shapes({"public.t": replace(READ, columns=("id",))})
    hidden.look(Found("public", "t", ("id", "n"), LAYOUT, 2000), set())
    assert "public.t" in hidden.wanted
    excluded = shapes({"public.t": replace(READ, columns=("id",))}, exclude=["public.t.n"])
    excluded.look(Found("public", "t", ("id", "n"), LAYOUT, 2000), set())
    assert excluded.wanted == {}
    masked = shapes(mask={"public.t.n": 2})
    masked.look(Found("public", "t", ("id", "n"), LAYOUT, 2000), set())
    assert "public.t" in masked.wanted
