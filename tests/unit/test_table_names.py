"""Names of tables as people write them: quotes, dots, and names with several readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.config.model import Config, Search, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.table_names import candidates, known_name, qualified, resolve, split_name, written
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.spark_jobs.query.catalog import captured
from tailrace.spark_jobs.views import declare

_NAMES = st.text(st.sampled_from('a." B'), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("name", "schema", "table"),
    [
        ("public.orders", "public", "orders"),
        ('"freight.v2"."a.b"', "freight.v2", "a.b"),
        ('"freight.v2".orders', "freight.v2", "orders"),
        ('public."a.b"', "public", "a.b"),
        ('"a""b"."c"', 'a"b', "c"),
        ('public.quo"ted', "public", 'quo"ted'),
        ("public.a.b", "public", "a.b"),
        ('"unterminated.b', '"unterminated', "b"),
        ("orders", "", "orders"),
        ('"a.b"', "", "a.b"),
    ],
)
def test_a_name_is_split_outside_of_quotes(name: str, schema: str, table: str) -> None:
    assert split_name(name) == (schema, table)
    assert qualified(name) == f"{schema or 'public'}.{table}"


@given(_NAMES, _NAMES)
def test_a_written_name_means_what_was_written(schema: str, table: str) -> None:
    assert split_name(written(schema, table)) == (schema, table)
    if "." not in schema + table and '"' not in schema + table:
        assert written(schema, table) == f"{schema}.{table}"


def test_without_quotes_the_existing_table_is_meant() -> None:
    def found(name: str, *tables: tuple[str, str]) -> tuple[str, str]:
        return resolve(name, lambda *names: names in tables)

    assert found("freight.v2.a.b", ("freight.v2", "a.b")) == ("freight.v2", "a.b")
    assert found("freight.v2.a.b", ("other", "t")) == ("freight", "v2.a.b")
    assert found("a.b", ("public", "a.b")) == ("public", "a.b")
    assert candidates('"freight.v2"."a.b"') == [("freight.v2", "a.b")]
    assert known_name("a.b", ["public.a.b"]) == "public.a.b"
    assert known_name("a.b", ["public.a.b", "a.b"]) == "a.b"
    assert known_name("orders", []) == "public.orders"


def test_views_of_tables_with_dots_in_their_names() -> None:
    quoted = '"freight.v2"."a.b"'
    config = Config(
        source=Source(dsn=""),
        warehouse=Warehouse(uri="jdbc:sqlite:none", location="none"),
        search=Search(hosts=["http://none"]),
        views={
            "rows": View(table=quoted),
            "sums": View(query="SELECT t.id FROM `freight.v2`.`a.b` t JOIN public.b USING (id)", key=["id"]),
            "found": View(table="public.b", shape="percolate", queries=f'{quoted}."q.1"'),
        },
    )
    topic = "tailrace.freight_x2Ev2.a_x2Eb"
    rows, sums, found = (declare(config, name) for name in config.views)
    assert (rows.topics, rows.captured) == ((topic,), ("freight.v2.a.b",))
    assert (sums.topics, sums.captured) == ((topic, "tailrace.public.b"), ("freight.v2.a.b", "public.b"))
    assert sums.topic_of[quoted] == topic
    assert (found.topics[1], found.queries, found.captured[1]) == (topic, "q.1", "freight.v2.a.b")
    stored = [StoredSchema(1, f"{topic}-key", ""), StoredSchema(2, f"{topic}-value", "")]
    assert captured("tailrace", stored) == {quoted: True}
    with pytest.raises(ConfigError, match="TR-506"):
        declare(config.model_copy(update={"views": {"rows": View(table='"a.b"')}}), "rows")
