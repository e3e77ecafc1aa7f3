"""The newest schema of a subject is its last on the topic: registries reuse a recurring shape's id."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType

from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.spark_jobs.query.catalog import TableInfo, table_of
from tailrace.spark_jobs.topics.shapes import Shape, TableShapes

_TYPES = {23: TypeInfo(23, "int4", "b")}
_ID, _N = Column("id", 23, is_key=True), Column("n", 23)


def _stored(number: int, *columns: Column) -> StoredSchema:
    relation = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, columns)
    return StoredSchema(number, "p.public.t-value", value_schema(relation, _TYPES, "p.public.t"), registered=True)


def test_a_query_sees_the_last_schema_not_the_highest_id() -> None:
    key = StoredSchema(7, "p.public.t-key", key_schema([_ID], _TYPES, "p.public.t"), registered=True)
    narrow, wide = _stored(8, _ID), _stored(9, _ID, _N)
    assert table_of(Topics("p"), "public.t", [key, narrow, wide]) == TableInfo(("id", "n"), ("id",))
    assert table_of(Topics("p"), "public.t", [key, wide, narrow]) == TableInfo(("id",), ("id",))


def test_a_view_has_the_last_schema_not_the_highest_id() -> None:
    old, new = (Shape(number, "", "", {}, {"id": kind}) for number, kind in ((9, IntegerType()), (8, LongType())))
    shapes = TableShapes("p.public.t", {7: old}, {9: old, 8: new})
    assert (shapes.columns, shapes.key, shapes.newest) == ({"id": LongType()}, ("id",), {7, 8})


def test_a_topic_without_keys_is_named_by_the_error_for_its_key() -> None:
    """And not by a StopIteration, which is reported as TR-527 with the name of a file."""
    with pytest.raises(ConfigError, match=r'table of topic "p\.public\.t" has no key') as refused:
        _ = TableShapes("p.public.t", {}, {}).key
    assert refused.value.code == "TR-508"


def test_a_stored_schema_records_whether_a_registry_gave_its_id() -> None:
    for stored in (_stored(8, _ID), StoredSchema(1, "s", "{}")):
        assert StoredSchema.from_value(stored.value()) == stored
    assert StoredSchema.from_value(b'{"id": 1, "subject": "s", "schema": "{}"}') == StoredSchema(1, "s", "{}")
