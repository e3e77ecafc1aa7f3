"""What a view may say about the layout of its target; the rest is refused before Spark starts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql.types import ArrayType, DateType, IntegerType, StringType, TimestampType

from tailrace.schemas.config.model import Config, Search, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.table_layout import PartitionField, SortField
from tailrace.sinks.iceberg.layout import TableLayout
from tailrace.sinks.opensearch.layout import IndexLayout
from tailrace.spark_jobs.views import declare

COLUMNS = {"id": IntegerType(), "at": TimestampType(), "day": DateType(), "name": StringType()}
TYPES = {name: kind.simpleString() for name, kind in COLUMNS.items()}


def table(**layout: Any) -> TableLayout:
    return TableLayout.of("v", View(table="public.t", **layout))


def index(**layout: Any) -> IndexLayout:
    return IndexLayout.of("v", View(table="public.t", target="search", **layout))


def definition(**settings: Any) -> str | None:
    config = Config(
        source=Source(dsn=""),
        warehouse=Warehouse(uri="jdbc:sqlite:/c.db", location="/w"),
        search=Search(hosts=["http://localhost:1"]),
        views={"v": View(**{"table": "public.t", **settings})},
    )
    return declare(config, "v").definition


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("placed", PartitionField("identity", "placed")),
        ("identity(placed)", PartitionField("identity", "placed")),
        (" days ( `a``b (c)` ) ", PartitionField("days", "a`b (c)")),
        ("bucket(16, id)", PartitionField("bucket", "id", 16)),
        ("truncate(4,größe)", PartitionField("truncate", "größe", 4)),
    ],
)
def test_a_partition_is_written_as_in_spark(text: str, field: PartitionField) -> None:
    assert PartitionField.parse(text) == field
    assert PartitionField.parse(str(field)) == field


def test_a_sort_order_has_the_null_order_of_sql() -> None:
    assert SortField.parse("a") == SortField("a", nulls_first=True)
    assert SortField.parse("a desc") == SortField("a", descending=True, nulls_first=False)
    last = SortField.parse("`a b` ASC nulls last")
    assert last == SortField("a b", nulls_first=False)
    assert SortField.parse(str(last)) == last


@pytest.mark.parametrize(
    "layout",
    [
        {"partition_by": ["day(placed)"]},
        {"partition_by": ["bucket(id, 16)"]},
        {"partition_by": ["bucket(0, id)"]},
        {"partition_by": ["a) AS SELECT 1"]},
        {"partition_by": ["id", "identity(id)"]},
        {"sort_by": ["id, name"]},
        {"sort_by": ["id DOWN"]},
        {"routing": "id"},
        {"target": "search", "sort_by": ["id"]},
        {"shape": "percolate", "queries": "public.q.q", "sort_by": ["epoch"]},
        {"deletes": "none"},
        {"deletes": "soft", "target": "search"},
        {"deletes": "soft", "shape": "history"},
        {"deletes": "soft", "table": None, "query": "SELECT id FROM public.t", "key": ["id"]},
    ],
)
def test_a_layout_that_cannot_be_read_is_refused(layout: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        View(**{"table": "public.t", **layout})


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ({"partition_by": ["days(gone)"]}, '"gone"'),
        ({"partition_by": ["hours(day)"]}, '"day"'),
        ({"partition_by": ["years(name)"]}, '"name"'),
        ({"partition_by": ["truncate(4, at)"]}, '"at"'),
        ({"sort_by": ["id", "names"]}, '"names"'),
    ],
)
def test_a_column_has_to_fit(layout: dict[str, Any], named: str) -> None:
    table(partition_by=["hours(at)", "bucket(3, name)", "day"], sort_by=["id"]).check("v", COLUMNS)
    with pytest.raises(ConfigError, match=f"TR-535.*{named}"):
        table(**layout).check("v", {**COLUMNS, "tags": ArrayType(StringType())})


@pytest.mark.parametrize(
    "name",
    [
        "format-version",
        "write.merge.mode",
        "History.expire.max-ref-age-ms",
        "gc.enabled",
        "tailrace.cut",
        "owner",
        "provider",
    ],
)
def test_a_table_property_that_tailrace_relies_on_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f'TR-536.*"{name}"'):
        definition(table_properties={name: 1, "team": "shop"})


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ({"index_settings": {"index": {"refresh_interval": "1s"}}}, "refresh_interval"),
        ({"index_settings": {"gc_deletes": "1s"}}, "gc_deletes"),
        ({"index_settings": {"blocks": {"write": True}}}, "blocks.write"),
        ({"mapping": {"name": {"type": "completion"}}}, "name"),
        ({"mapping": {"name": {"type": "date", "ignore_malformed": False}}}, "ignore_malformed"),
        ({"mapping": {"name": {"fields": {"raw": {"type": "keyword", "ignore_above": 9000}}}}}, "name.raw"),
        ({"mapping": {"name": {"dynamic": True}}}, "dynamic"),
    ],
)
def test_a_setting_of_an_index_that_tailrace_relies_on_is_refused(layout: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"TR-536.*{named}"):
        definition(target="search", **layout)


def test_a_mapping_is_merged_over_that_of_the_type() -> None:
    given = {"name": {"analyzer": "a", "fields": {"number": {"type": "integer"}}}, "at": {"type": "keyword"}}
    found = index(mapping=given).mapping("v", TYPES, ["id"])
    assert found["_meta"]["key"] == ["id"]
    name = found["properties"]["name"]
    assert (name["type"], name["analyzer"], name["fields"]["keyword"]["type"]) == ("text", "a", "keyword")
    assert name["fields"]["number"] == {"type": "integer", "ignore_malformed": True}
    assert found["properties"]["at"] == {"type": "keyword", "ignore_above": 8191}
    assert found["properties"]["id"] == {"type": "long"}

    nested = {"lines": "array<struct<id:int,note:string>>"}
    below = index(mapping={"lines": {"properties": {"note": {"analyzer": "a"}}}}).mapping("v", nested, [])
    assert below["properties"]["lines"]["properties"]["note"]["analyzer"] == "a"
    with pytest.raises(ConfigError, match=r'TR-536.*"lines\.more"'):
        index(mapping={"lines": {"properties": {"more": {"type": "text"}}}}).mapping("v", nested, [])
    with pytest.raises(ConfigError, match="TR-536"):
        index(mapping={"lines": {"type": "keyword"}}).mapping("v", nested, [])


def test_only_key_columns_decide_the_shard() -> None:
    index(routing="id").check("v", COLUMNS, ["id"])
    with pytest.raises(ConfigError, match=r'TR-535.*"name"'):
        index(routing="name").check("v", COLUMNS, ["id"])
    with pytest.raises(ConfigError, match=r'TR-535.*"nam"'):
        index(mapping={"nam": {"type": "keyword"}}).check("v", COLUMNS, ["id"])


def test_only_what_needs_a_rebuild_is_part_of_the_definition() -> None:
    assert definition() is None
    assert definition(table_properties={"team": "shop"}) is None
    days = definition(partition_by=["days( at )"])
    assert days == definition(partition_by=["days(at)"], table_properties={"team": "shop"})
    assert days != definition(partition_by=["days(at)"], sort_by=["id"])
    soft = definition(deletes="soft")
    assert soft not in (None, days)
    assert definition(deletes="hard") is None
    assert table(deletes="soft", sort_by=["id"]).to_json() != table(sort_by=["id"]).to_json()
    assert TableLayout.from_json(table(deletes="soft").to_json()) == table(deletes="soft")
    assert definition(shape="history", partition_by=["days(at)"]) == f"history{days}"
    assert definition(target="search", index_settings={"number_of_replicas": 2}) is None
    shards = definition(target="search", index_settings={"number_of_shards": 2})
    assert shards == definition(target="search", index_settings={"index.number_of_shards": 2})
    assert shards != definition(target="search", index_settings={"number_of_shards": 2}, routing="id")
