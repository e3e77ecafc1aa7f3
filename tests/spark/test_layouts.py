"""Layouts of targets by their effects: files that a query skips, results that an analyzer changes, shards."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from opensearchpy import OpenSearch

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import ConfigError, RebuildError
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.iceberg.maintenance import compact
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.opensearch.target import alias_of
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.generations import rollback
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tests.spark.conftest import Bench, step
from tests.spark.pipeline import column
from tests.support.documentation import blocks

Make = Callable[..., Bench]

DAY_US = 86_400_000_000
DAYS = 5


def configured(made: Bench, name: str, **changed: Any) -> Bench:
    """Return the bench of a new process, with other settings of a view."""
    views = {**made.config.views, name: View(**{**made.config.views[name].model_dump(exclude_unset=True), **changed})}
    config = made.config.model_copy(update={"views": views})
    return replace(made, config=config, shared=replace(made.shared, config=config, views={}, bases={}))


def target_of(view: KeptView) -> IcebergTarget:
    target = view.batch.target
    assert isinstance(target, IcebergTarget)
    return target


def planned(made: Bench, name: str, where: str | None = None) -> list[Any]:
    """Return the data files that a query of a view reads."""
    assert made.config.warehouse is not None
    with opened(made.config.warehouse) as catalog:
        table = catalog.load_table((made.config.warehouse.namespace, name))
        scan = table.scan(row_filter=where) if where else table.scan()
        return [task.file for task in scan.plan_files()]


def files(made: Bench, name: str, where: str | None = None) -> int:
    return len(planned(made, name, where))


def codecs(made: Bench, name: str) -> set[str]:
    paths = [file.file_path.removeprefix("file:") for file in planned(made, name)]
    metadata = [pyarrow.parquet.read_metadata(path) for path in paths]
    return {each.row_group(0).column(0).compression for each in metadata}


def values(file: Any, name: str) -> list[Any]:
    """Return a column of a data file, in the order of its rows."""
    found: list[Any] = pyarrow.parquet.read_table(file.file_path.removeprefix("file:"), columns=[name])[
        name
    ].to_pylist()
    return found


def spans(view: KeptView, generation: int) -> list[tuple[int, ...]]:
    """Return the versions of a history: their ids and LSNs."""
    rows = target_of(view).rows(generation).select("id", "valid_from_lsn", "valid_to_lsn").collect()
    return sorted((row[0], row[1], row[2] or 0) for row in rows)


def in_order(made: Bench, name: str, column: str) -> bool:
    """Whether the files of a view are sorted by a column, descending, and no two share a range of its values."""
    rows = sorted((values(file, column) for file in planned(made, name)), reverse=True)
    together = [value for each in rows for value in each]
    return together == sorted(together, reverse=True)


def row(number: int, day: int, **changed: Any) -> dict[str, Any]:
    placed = (20_000 + day) * DAY_US + number
    return {"id": number, "placed": placed, "city": f"c{number * 7 % 10}", "n": number, **changed}


ONE_DAY = "placed >= '2024-10-04T00:00:00+00:00' and placed < '2024-10-05T00:00:00+00:00'"
COLUMNS = [column("id", "int4"), column("placed", "timestamptz"), column("city", "text"), column("n", "int4")]


def test_partitions_and_order_skip_files_and_change_no_row(bench: Make) -> None:
    suffix = uuid.uuid4().hex[:8]
    laid, asked, versions = (f"{kind}_{suffix}" for kind in ("laid", "asked", "versions"))
    made = bench(
        {
            laid: View(
                table="public.t",
                partition_by=["days(placed)", "bucket(2, id)"],
                sort_by=["city"],
                table_properties={"write.parquet.compression-codec": "gzip"},
            ),
            asked: View(
                query="SELECT id, city, placed, n + 1 AS n FROM public.t WHERE city <> 'none'",
                key=["id"],
                sort_by=["n DESC"],
                table_properties={"write.target-file-size-bytes": 6000},
            ),
            versions: View(table="public.t", shape="history"),
        }
    )
    pipeline = made.pipeline
    pipeline.table("t", COLUMNS, ("id",))
    with pipeline.transaction() as tx:
        for number in range(200):
            tx.put("t", row(number, number % DAYS))
        tx.put("t", row(900, 0, placed=2**63 - 1))  # infinity
        tx.put("t", row(901, 0, placed=None, city="none"))
    views = [made.kept(laid), made.kept(asked), made.kept(versions)]
    for view in views:
        # otherwise so small a table is one file
        view.batch.session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    step(made, *views)
    assert files(made, laid) == 2 * DAYS + 2
    assert files(made, laid, ONE_DAY) == 2, "the day's buckets"
    found, read = planned(made, laid), planned(made, laid, ONE_DAY)
    assert sum(file.file_size_in_bytes for file in read) < sum(file.file_size_in_bytes for file in found) / 4
    assert all(values(file, "city") == sorted(values(file, "city")) for file in found)
    assert codecs(made, laid) == {"GZIP"}
    assert files(made, asked) > 2
    assert files(made, asked, "n == 77") == 1
    assert made.agrees(laid, "t") == 202

    with pipeline.transaction() as tx:
        tx.put("t", row(0, 3))  # moves to another partition
        tx.put("t", row(1, 1, city="other"))
        tx.put("t", row(300, DAYS + 2))
        tx.delete("t", 2)
        tx.change_key("t", (3,), row(301, 0))
    step(made, *views)
    assert made.agrees(laid, "t") == 202
    assert all(each["equal"] for each in verify(made.shared, views[1], 20))
    assert len(list(read_view(made.config, asked).rows)) == 201
    # a compaction restores the order over all files
    assert not in_order(made, asked, "n")
    assert compact(target_of(views[1]))["files_rewritten"] >= 5
    assert in_order(made, asked, "n")
    assert files(made, asked) > 1
    check_another_layout(made, laid)
    # a history is copied into its new layout: its topic may no longer have its versions
    step(made, views[2])
    before = spans(views[2], 1)
    partitioned = configured(made, versions, partition_by=["days(placed)"])
    assert rebuild(partitioned.shared, kept := partitioned.kept(versions)).generation == 2
    assert files(made, versions, "placed is null") == 1 < files(made, versions)
    assert spans(kept, 2) == before
    assert len(before) > 202


def check_another_layout(made: Bench, laid: str) -> None:
    """Another layout is refused until a rebuild, and a rollback returns to the old one."""
    pipeline = made.pipeline
    other = configured(made, laid, partition_by=["truncate(1, city)"], sort_by=[])
    with pipeline.transaction() as tx:
        tx.put("t", row(5, 0))
    with pytest.raises(RebuildError, match="TR-537"):
        step(other, other.kept(laid))
    assert rebuild(other.shared, other.kept(laid)).generation == 2
    assert files(other, laid, "city == 'other'") == 1
    assert files(other, laid) == 3
    with pipeline.transaction() as tx:
        tx.truncate("t")
        tx.put("t", row(5, 0))
        tx.put("t", row(6, 1, city="x"))
    step(other, other.kept(laid))
    assert made.agrees(laid, "t") == 2
    rollback(other.shared, other.kept(laid))
    with pytest.raises(RebuildError, match="TR-537"):
        step(other, other.kept(laid))
    # the same layout again, with another compression: a property needs no rebuild
    again = configured(made, laid, table_properties={"write.parquet.compression-codec": "snappy"})
    step(again, again.kept(laid))
    assert made.agrees(laid, "t") == 2
    assert files(made, laid) == 2
    assert files(made, laid, "placed < '2024-10-05T00:00:00+00:00'") == 1
    assert codecs(made, laid) == {"SNAPPY"}


SETTINGS: dict[str, Any] = {
    "number_of_shards": 3,
    "analysis": {
        "filter": {"same": {"type": "synonym", "synonyms": ["sneaker, shoe"]}},
        "analyzer": {"shop": {"tokenizer": "standard", "filter": ["lowercase", "porter_stem", "same"]}},
    },
}
MAPPING: dict[str, Any] = {
    "name": {"analyzer": "shop", "fields": {"plain": {"type": "text"}}},
    "size": {"fields": {"number": {"type": "integer"}}},
}


@dataclass
class Index:
    """The index of a view."""

    client: OpenSearch
    alias: str

    def hits(self, query: dict[str, Any], **params: Any) -> tuple[set[int], int]:
        """Return the ids of the documents that match, and the number of shards that were asked."""
        found = self.client.search(index=self.alias, body={"query": query, "size": 100}, params=params)
        return {hit["_source"]["id"] for hit in found["hits"]["hits"]}, found["_shards"]["total"]

    def of(self, shop: int) -> set[int]:
        """Return the documents of a shop, all of which are on its shard."""
        query = {"term": {"shop": shop}}
        routed, asked = self.hits(query, routing=str(shop))
        assert asked == 1
        assert self.hits(query)[0] == routed
        return routed

    @property
    def live(self) -> str:
        (found,) = self.client.indices.get_alias(name=self.alias)
        return str(found)

    def shard(self, routing: str) -> int:
        ((found,),) = self.client.search_shards(index=self.alias, params={"routing": routing})["shards"]
        return int(found["shard"])


def test_the_blocks_of_the_page_about_layouts(request: pytest.FixtureRequest, bench: Make) -> None:
    """Each declaration of `docs/how-to/layout-of-views.md` is accepted and maintained, each statement answered."""
    page = blocks("how-to/layout-of-views.md")
    assert [each.language for each in page] == ["toml", "toml", "sql", "toml", "console"]
    declared = [tomllib.loads(each.text)["views"] for each in page if each.language == "toml"]
    suffix = uuid.uuid4().hex[:8]
    laid, soft, found = (f"{kind}_{suffix}" for kind in ("laid", "soft", "found"))
    views = {laid: declared[0]["orders"], soft: declared[1]["orders"], found: declared[2]["products"]}
    made = bench({name: View(**view) for name, view in views.items()}, request.getfixturevalue("search_url"))
    orders = [column("id", "int4"), column("customer_id", "int4"), column("placed", "timestamptz")]
    products = [column("shop_id", "int4"), column("id", "int4"), column("name", "text"), column("size", "text")]
    made.pipeline.table("orders", orders, ("id",))
    made.pipeline.table("products", products, ("shop_id", "id"))
    with made.pipeline.transaction() as tx:
        for number in range(20):
            tx.put("orders", {"id": number, "customer_id": number % 3, "placed": 20_000 * DAY_US})
            tx.put("products", {"shop_id": number % 3, "id": number, "name": "running shoes", "size": "XL"})
    kept = [made.kept(name) for name in views]
    step(made, *kept)
    with made.pipeline.transaction() as tx:
        tx.delete("orders", 7)
    step(made, *kept)
    assert (made.agrees(laid, "orders"), made.agrees(found, "products")) == (19, 20)
    assert made.config.warehouse is not None
    table = f"{made.config.warehouse.catalog}.{made.config.warehouse.namespace}.{soft}"
    statements = [each.partition(";")[0].replace("views.orders", table) for each in page[2].text.splitlines()]
    deleted, live = (made.shared.session.sql(each).collect() for each in statements)
    assert deleted == []  # the clock of these topics begins in 1970
    assert live[0][0] == 19
    assert made.shared.session.sql(f"SELECT id FROM {table} WHERE _deleted_at IS NOT NULL").collect() == [(7,)]
    # the command of the page, after another layout
    other = configured(made, laid, sort_by=["placed"])
    with pytest.raises(RebuildError, match="TR-537"):
        step(other, other.kept(laid))
    assert page[4].text == "tailrace views rebuild orders\n"
    assert rebuild(other.shared, other.kept(laid)).generation == 2


def test_analyzers_shards_and_routing_of_an_index(request: pytest.FixtureRequest, bench: Make) -> None:
    url, name = request.getfixturevalue("search_url"), f"found_{uuid.uuid4().hex[:8]}"
    view = View(table="public.t", target="search", mapping=MAPPING, index_settings=SETTINGS, routing="shop")
    made = bench({name: view}, url)
    columns = [column("shop", "int4"), column("id", "int4"), column("name", "text"), column("size", "text")]
    made.pipeline.table("t", columns, ("shop", "id"))
    with made.pipeline.transaction() as tx:
        for number in range(60):
            tx.put("t", {"shop": number % 6, "id": number, "name": f"bag {number}", "size": str(number)})
        tx.put("t", {"shop": 1, "id": 100, "name": "Running SHOES", "size": "XL"})
    kept = made.kept(name)
    step(made, kept)
    assert made.agrees(name, "t") == 61
    assert made.config.search is not None
    with connect(made.config.search) as client:
        index = Index(client, alias_of(made.config.search, name))
        # the stemmer and the synonym find what the standard analyzer does not
        assert index.hits({"match": {"name": "sneakers"}}) == ({100}, 3)
        assert index.hits({"match": {"name.plain": "sneakers"}}) == (set(), 3)
        # a value that the field cannot hold is in the document all the same
        assert index.hits({"range": {"size.number": {"gte": 58}}}) == ({58, 59}, 3)
        assert index.of(1) == {1, 7, 13, 19, 25, 31, 37, 43, 49, 55, 100}
        with made.pipeline.transaction() as tx:
            tx.put("t", {"shop": 1, "id": 7, "name": "boot", "size": "9"})
            tx.delete("t", 1, 13)
            for shop, moved in enumerate((19, 25, 31, 37), 2):  # one of them is on another shard
                tx.change_key("t", (1, moved), {"shop": shop, "id": moved, "name": "bag"})
        step(made, kept)
        assert made.agrees(name, "t") == 60
        assert index.of(1) == {1, 7, 43, 49, 55, 100}
        for shop, moved in enumerate((19, 25, 31, 37), 2):
            assert moved in index.of(shop)
        check_repair(made, kept, index)
        check_other_settings(made, index, name)


def check_repair(made: Bench, kept: KeptView, index: Index) -> None:
    """A repair finds a document that something else has put on another shard, and one that it has deleted."""
    live, client = index.live, index.client
    other = next(str(n) for n in range(9) if index.shard(str(n)) != index.shard("1"))
    client.index(index=live, id="[1,999]", body={"shop": 1, "id": 999}, params={"routing": other})
    client.delete(index=live, id="[1,55]", params={"routing": "1"})
    client.indices.refresh(index=live)
    assert [each.keys for each in mend(made.shared, kept)] == [2]
    assert made.agrees(kept.declared.name, "t") == 60
    assert index.of(1) == {1, 7, 43, 49, 55, 100}
    assert mend(made.shared, kept) == []


def check_other_settings(made: Bench, index: Index, name: str) -> None:
    """Replicas are changed in place, shards by a rebuild."""
    changed = {**SETTINGS, "number_of_replicas": 2}
    more = configured(made, name, index_settings=changed)
    with made.pipeline.transaction() as tx:
        tx.delete("t", 1, 7)
    step(more, more.kept(name))
    health = index.client.cluster.health(index=index.live, params={"level": "indices"})["indices"][index.live]
    assert (health["number_of_shards"], health["number_of_replicas"]) == (3, 2)
    fewer = configured(made, name, index_settings={**changed, "number_of_shards": 2}, routing=None)
    with made.pipeline.transaction() as tx:
        tx.delete("t", 1, 1)
    with pytest.raises(RebuildError, match="TR-537"):
        step(fewer, fewer.kept(name))
    rebuild(fewer.shared, fewer.kept(name))
    assert index.hits({"term": {"shop": 1}}) == ({43, 49, 55, 100}, 2)
    assert made.agrees(name, "t") == 58
    wrong = configured(made, name, routing="size")
    with pytest.raises(ConfigError, match="TR-535"):
        rebuild(wrong.shared, wrong.kept(name))
