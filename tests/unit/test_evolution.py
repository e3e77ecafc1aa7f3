"""Schema changes that readers can follow, and the state of stored rows after an ALTER TABLE."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product
from typing import Any

import fastavro
import orjson
import pytest

from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.evolution import breaks, column_names, envelope_until_row, key_breaks, key_column_names
from tailrace.schemas.records.layout import Attribute, Layout, Parked, RowsAtRest, TableState, TableStatus, TypeForm
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo

_NAMES = "bool int2 int4 int8 float4 float8 numeric text varchar bytea date time timestamp timestamptz uuid hstore"
TYPES = {number: TypeInfo(number, name, "b") for number, name in enumerate(_NAMES.split(), 100)}
OID = {info.name: number for number, info in TYPES.items()}
OID["_int4"] = 200
TYPES[200] = TypeInfo(200, "_int4", "b", element_oid=OID["int4"])
OID["_int8"] = 201
TYPES[201] = TypeInfo(201, "_int8", "b", element_oid=OID["int8"])


def column(name: str, kind: str, precision: int = 0, scale: int = 0) -> Column:
    return Column(name, OID[kind], ((precision << 16) | scale) + 4 if precision else -1)


def schema(*columns: Column) -> str:
    return value_schema(Relation(1, "public", "t", ReplicaIdentity.DEFAULT, columns), TYPES, "p.public.t")


def row(envelope: str) -> Any:
    return orjson.loads(envelope)["fields"][0]["type"][1]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (column("c", "int4"), column("c", "int8"), None),
        (column("c", "int2"), column("c", "int4"), None),
        (column("c", "int8"), column("c", "int4"), 'column "c": long → int'),
        (column("c", "float4"), column("c", "float8"), None),
        (column("c", "int4"), column("c", "float8"), 'column "c": int → double'),
        (column("c", "varchar"), column("c", "text"), None),
        (column("c", "text"), column("c", "bytea"), 'column "c": string → bytes'),
        (column("c", "text"), column("c", "uuid"), 'column "c": string → uuid'),
        (column("c", "uuid"), column("c", "text"), None),
        (column("c", "numeric", 10, 2), column("c", "numeric", 12, 2), None),
        (column("c", "numeric", 10, 2), column("c", "numeric", 8, 2), 'column "c": decimal(10,2) → decimal(8,2)'),
        (column("c", "numeric", 10, 2), column("c", "numeric", 10, 4), 'column "c": decimal(10,2) → decimal(10,4)'),
        (column("c", "numeric", 10, 2), column("c", "numeric"), 'column "c": decimal(10,2) → string'),
        (
            column("c", "timestamp"),
            column("c", "timestamptz"),
            'column "c": local-timestamp-micros → timestamp-micros',
        ),
        (column("c", "int4"), column("c", "_int4"), 'column "c": int → array of int'),
        (column("c", "_int4"), column("c", "_int8"), 'column "c": array of int → array of long'),
        (column("c", "int4"), column("d", "text"), None),
        (column("a.b", "int4"), column("a_x2Eb", "int4"), 'column "a_x2Eb": int → int'),
    ],
)
def test_only_changes_that_readers_cannot_follow_are_breaks(old: Column, new: Column, found: str | None) -> None:
    id_ = column("id", "int4")
    assert [str(each) for each in breaks(schema(id_, old), schema(id_, new))] == ([found] if found else [])


def test_old_values_are_read_with_a_new_schema_without_breaks() -> None:
    """With the new schema as the reader's, every old value is the same value."""
    values = {"int": 2**31 - 1, "long": -(2**63), "float": 0.10000000149011612, "double": 0.1, "string": "a€"}
    for old, new in product(OID, OID):
        writer, reader = schema(column("c", old)), schema(column("c", new), column("d", "int4"))
        (written,) = (field["type"][1] for field in row(writer)["fields"])
        if breaks(writer, reader) or not isinstance(written, str) or written not in values:
            continue
        out = io.BytesIO()
        fastavro.schemaless_writer(out, row(writer), {"c": values[written]})
        out.seek(0)
        assert fastavro.schemaless_reader(out, row(writer), row(reader)) == {"c": values[written], "d": None}


def test_any_change_of_a_keys_schema_is_a_break() -> None:
    def key(*columns: Column) -> str:
        return key_schema(columns, TYPES, "p.public.t")

    one = key(column("id", "int4"))
    assert key_breaks(one, key(column("id", "int2"))) == []
    assert [str(each) for each in key_breaks(one, key(column("id", "int8")))] == ["the key: id int → id long"]
    (both,) = key_breaks(one, key(column("id", "int4"), column("a.b", "text")))
    assert str(both) == "the key: id int → id int, a.b string"
    assert key_column_names(key(column("a.b", "text"))) == ["a.b"]
    assert column_names(schema(column("a.b", "text"), column("c", "int4"))) == ["a.b", "c"]


ATTRIBUTES = (
    Attribute(1, "id", 23, -1, False, 500),
    Attribute(2, "name", 1043, 24, False, 500),
    Attribute(3, "n", 23, -1, True, 500),
)
BEFORE = Layout(1, ((1, 900, False),), (1,), ATTRIBUTES)


def altered(index: int, **changes: Any) -> tuple[Attribute, ...]:
    return (*ATTRIBUTES[:index], replace(ATTRIBUTES[index], **changes), *ATTRIBUTES[index + 1 :])


def added(**changes: Any) -> tuple[Attribute, ...]:
    return (*ATTRIBUTES, replace(Attribute(5, "new", 23, -1, False, 501), **changes))


@pytest.mark.parametrize(
    ("attributes", "file", "differ"),
    [
        (ATTRIBUTES, 900, False),
        (ATTRIBUTES, 901, False),  # VACUUM FULL
        (ATTRIBUTES[:2], 900, False),
        (added(), 900, False),
        (added(filled=True), 900, True),
        (added(), 901, True),  # a volatile default, dropped since
        (added(name="was"), 900, True),
        (altered(2, name="m"), 900, True),
        (altered(1, typmod=44, version=501), 900, False),
        (altered(1, type_oid=25, typmod=-1, version=501), 900, False),
        (altered(2, type_oid=20, version=501), 900, True),
        (altered(2, version=501), 900, False),  # SET STATISTICS, SET DEFAULT
        (altered(2, version=501), 901, True),  # USING
    ],
)
def test_stored_rows_differ_only_after_certain_alterations(
    attributes: tuple[Attribute, ...], file: int, differ: bool
) -> None:
    now = Layout(1, ((1, file, False),), (1,), attributes)
    columns = [each.name for each in attributes]
    before = [each.name for each in ATTRIBUTES]
    expected = RowsAtRest.DIFFER if differ else RowsAtRest.SAME
    assert BEFORE.rows_at_rest(now, columns, before, {*before, "was"}, ["id"]) is expected
    everything = [*columns, *before]
    rekeyed = RowsAtRest.REKEYED if differ else RowsAtRest.SAME
    assert BEFORE.rows_at_rest(now, columns, before, {*before, "was"}, everything) is rekeyed


def test_a_partition_with_another_file_may_have_been_truncated() -> None:
    root = Layout(1, ((2, 900, False), (3, 901, False)), (1,), ATTRIBUTES)
    names = [each.name for each in ATTRIBUTES]
    emptied = replace(root, files=((2, 900, False), (3, 999, False)))
    assert root.rows_at_rest(emptied, names, names, names, ["id"]) is RowsAtRest.MISSING
    gone = replace(root, files=((2, 900, False),))
    assert root.rows_at_rest(gone, names, names, names, ["id"]) is RowsAtRest.SAME, "its rows stay on the topic"
    own = replace(BEFORE, files=((1, 999, False),))
    assert BEFORE.rows_at_rest(own, names, names, names, ["id"]) is RowsAtRest.SAME, "the stream has a table's own"


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (0, 0, RowsAtRest.SAME),
        (700, 700, RowsAtRest.SAME),
        (0, 700, RowsAtRest.MISSING),  # created as a partition, detached, attached again
        (700, 701, RowsAtRest.MISSING),
        (1, 701, RowsAtRest.SAME),  # stored by a version that knew only that it was attached
    ],
)
def test_rows_of_a_partition_that_was_detached_for_a_while_are_missing(
    before: int, now: int, found: RowsAtRest
) -> None:
    """Its rows may have been changed or deleted meanwhile, which is not in the table's stream."""
    names = [each.name for each in ATTRIBUTES]
    root = Layout(1, ((2, 900, 0), (3, 901, before)), (1,), ATTRIBUTES)
    again = replace(root, files=((2, 900, 0), (3, 901, now)))
    assert root.rows_at_rest(again, names, names, names, ["id"]) is found


def test_a_stored_layout_that_only_flags_attached_partitions_is_read() -> None:
    stored = {"oid": 1, "files": [[2, 900, False], [3, 901, True]], "key": [1], "attributes": [], "member": 0}
    assert Layout.from_dict(stored).files == ((2, 900, 0), (3, 901, 1))


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (Layout(1, ((1, 901, 0),), (1,), ATTRIBUTES, toast=70), RowsAtRest.SAME),  # VACUUM FULL, TRUNCATE
        (Layout(1, ((1, 901, 0),), (1,), ATTRIBUTES, toast=71), RowsAtRest.MISSING),  # SET UNLOGGED, SET LOGGED
        (Layout(1, ((1, 900, 0),), (1,), ATTRIBUTES, toast=71), RowsAtRest.SAME),
        (Layout(1, ((1, 901, 0),), (1,), altered(2, version=501), toast=71), RowsAtRest.DIFFER),  # USING
    ],
)
def test_rows_of_a_table_that_was_unlogged_for_a_while_are_missing(now: Layout, found: RowsAtRest) -> None:
    names = [each.name for each in ATTRIBUTES]
    assert replace(BEFORE, toast=70).rows_at_rest(now, names, names, names, ["id"]) is found
    assert BEFORE.rows_at_rest(now, names, names, names, ["id"]) is not RowsAtRest.MISSING, "not known before"


def test_rows_differ_if_an_existing_column_is_newly_published() -> None:
    assert BEFORE.rows_at_rest(BEFORE, ["id", "name", "n"], ["id", "n"], {"id", "n"}, ["id"]) is RowsAtRest.DIFFER
    assert BEFORE.rows_at_rest(BEFORE, ["id", "n"], ["id", "name", "n"], {"id", "name", "n"}, []) is RowsAtRest.SAME


def test_attached_and_rewritten_partitions_are_recognized() -> None:
    root = Layout(1, ((2, 900, False), (3, 901, True)), (1,), ATTRIBUTES)
    made = replace(root, files=((2, 900, False), (4, 905, False)))
    assert not root.rewritten(made)
    assert not root.attached(made)
    assert root.attached(replace(root, files=((2, 900, False), (4, 905, True))))
    assert root.rewritten(replace(root, files=((2, 900, False), (3, 905, True))))


MOOD = TypeForm(50, True, ((70, "sad"), (71, "ok")))
PAIR = TypeForm(60, False, ((1, "23"), (2, "50")))


def inside(*types: TypeForm, at: int = 2) -> Layout:
    """Return BEFORE with one column whose type has all of `types` inside."""
    attributes = [replace(each, inside=tuple(form.oid for form in types)) if each.number == at else each
                  for each in BEFORE.attributes]  # fmt: skip
    return replace(BEFORE, attributes=tuple(attributes), types=types)


@pytest.mark.parametrize(
    ("now", "differ"),
    [
        (MOOD, False),
        (replace(MOOD, parts=((70, "sad"), (71, "ok"), (72, "new"))), False),  # ADD VALUE
        (replace(MOOD, parts=((70, "sad"), (71, "fine"))), True),  # RENAME VALUE
        (replace(PAIR, parts=((1, "23"), (2, "50"), (3, "25"))), True),  # ADD ATTRIBUTE
        (replace(PAIR, parts=((1, "23"),)), True),  # DROP ATTRIBUTE
        (replace(PAIR, parts=()), True),
    ],
)
def test_rows_differ_if_a_type_inside_a_columns_type_changes(now: TypeForm, differ: bool) -> None:
    names = [each.name for each in ATTRIBUTES]
    after = [now if form.oid == now.oid else form for form in (MOOD, PAIR)]
    for at, worst in ((2, RowsAtRest.DIFFER), (1, RowsAtRest.REKEYED)):
        key = [BEFORE.attributes[0].name] if BEFORE.attributes[0].number == 1 else []
        found = inside(MOOD, PAIR, at=at).rows_at_rest(inside(*after, at=at), names, names, names, key)
        assert found is (worst if differ else RowsAtRest.SAME)


def test_a_stored_layout_that_has_only_enum_labels_is_compared() -> None:
    stored = {"oid": 1, "files": [[1, 900, False]], "key": [1], "attributes": [], "labels": [[70, "sad"]], "member": 0}
    old = Layout.from_dict(stored)
    assert old.types is None
    old = replace(old, attributes=BEFORE.attributes)
    names = [each.name for each in ATTRIBUTES]
    renamed = replace(MOOD, parts=((70, "glad"), (71, "ok")))
    for form, expected in ((MOOD, RowsAtRest.SAME), (PAIR, RowsAtRest.SAME), (renamed, RowsAtRest.DIFFER)):
        assert old.rows_at_rest(inside(form), names, names, names, []) is expected


WHOLE = TableState(
    3,
    7,
    replace(inside(MOOD, PAIR), labels=((70, "sad"),), toast=70),
    2**63,
    ("id", "n"),
    status=TableStatus.PARKED,
    empty=True,
    parked=Parked("TR-220", "refused", "do this", 77, 1_800_000_000_000, left_out=True),
)


def test_a_table_state_is_stored_and_read_unchanged() -> None:
    for state in (TableState(1, 7), WHOLE):
        assert TableState.from_json(state.to_json()) == state


def test_an_envelope_can_be_read_up_to_its_row() -> None:
    whole = schema(column("id", "int8"), column("note", "text"))
    fields = orjson.loads(whole)["fields"]
    assert [field["name"] for field in orjson.loads(envelope_until_row(whole))["fields"]] == ["before", "after"]
    record = {"before": {"id": 1, "note": None}, "after": {"id": 1, "note": "é"}, "op": "u", "ts_ms": 3}
    record["source"] = {
        each["name"]: None if isinstance(each["type"], list) else "s" if each["type"] == "string" else 4
        for each in fields[2]["type"]["fields"]
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(orjson.loads(whole)), record)
    found = fastavro.schemaless_reader(
        io.BytesIO(out.getvalue()), fastavro.parse_schema(orjson.loads(envelope_until_row(whole))), None
    )
    assert found == {"before": record["before"], "after": record["after"]}
