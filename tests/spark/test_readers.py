"""Every reader that README.md names reads the rows of a view, whichever way its batches were written."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.iceberg.maintenance import compact
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import DELETED, Commit
from tests.support import duckdb_iceberg

COLUMNS = "id int, name string, price decimal(12,2), at timestamp, labels array<string>"
NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
WAYS = {
    "merge": ("merge",) * 4,
    "direct": ("direct",) * 4,
    "both, compacted": ("merge", "direct", "compact", "direct", "merge"),
}
"""What each view is written by; `direct` puts the vectors of several data files into one Puffin file."""


@dataclass
class Written:
    """A view in the warehouse, and the rows that it must have."""

    session: SparkSession
    table: str
    scan: Any
    """pyiceberg's, as of `tailrace.table`."""
    metadata: str
    rows: list[dict[str, Any]]

    def check(self, found: Iterable[dict[str, Any]]) -> None:
        """Compare what a reader found with the rows: each once, value for value."""
        assert _sorted(found) == _sorted(self.rows)


def _sorted(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def _row(draw: random.Random, key: int) -> dict[str, Any]:
    at = datetime(2024, 2, 29, tzinfo=UTC) + timedelta(microseconds=draw.randrange(10**15))
    price = None if draw.random() < 0.2 else Decimal(draw.randrange(10**11)).scaleb(-2)
    return dict(zip(NAMES, (key, f"né {draw.random()}", price, at, draw.choice([[], ["a", None]])), strict=True))


def _write(session: SparkSession, warehouse: Warehouse, view: str, ways: tuple[str, ...]) -> list[dict[str, Any]]:
    """Fill a view with 60 rows in three files, apply a batch in each of the ways, and return the rows that result."""
    draw = random.Random(" ".join(ways))
    rows = {key: _row(draw, key) for key in range(60)}
    target = IcebergTarget(session, warehouse, view)
    try:
        first = session.createDataFrame([tuple(row.values()) for row in rows.values()], COLUMNS).repartition(3)
        generation = target.stage({each.name: each.dataType for each in first.schema}, ["id"])
        target.replace(generation, first, ["id"], Commit(_cut(1)))
        for number, way in enumerate(ways, 2):
            if way == "compact":
                compact(target)
                continue
            changed = {key: _row(draw, key) for key in draw.sample(range(80), 12)}
            gone = {key for key in changed if draw.random() < 0.3}
            batch = [(*row.values(), key in gone) for key, row in changed.items()]
            frame = session.createDataFrame(batch, f"{COLUMNS}, {DELETED} boolean")
            changes = FewRows.of(frame) if way == "direct" else frame
            target.merge(generation, changes, ["id"], Commit(_cut(number), level_ms=5))
            rows = {key: row for key, row in {**rows, **changed}.items() if key not in gone}
    finally:
        target.close()
    return list(rows.values())


def _cut(number: int) -> Cut:
    return Cut(Position(1, number, 0), number + 1, 0, "1", 1)


@pytest.fixture(scope="module", params=WAYS)
def written(request: pytest.FixtureRequest, spark: SparkSession, warehouse: Warehouse) -> Iterator[Written]:
    view = f"read_{uuid.uuid4().hex[:8]}"
    rows = _write(spark.newSession(), warehouse, view, WAYS[request.param])
    with opened(warehouse) as catalog:
        table = catalog.load_table((warehouse.namespace, view))
        puffins = [file.file_path for task in table.scan().plan_files() for file in task.delete_files]
        assert puffins, "no deletion vectors to read"
        assert request.param != "direct" or len(puffins) > len(set(puffins)), "not in one file"
        name = f"{warehouse.catalog}.{warehouse.namespace}.{view}"
        yield Written(spark, name, table.scan(), table.metadata_location, rows)


def test_spark(written: Written) -> None:
    written.check(written.session.table(written.table).toArrow().to_pylist())


def test_pyiceberg_and_arrow(written: Written) -> None:
    written.check(written.scan.to_arrow().to_pylist())


def test_polars(written: Written) -> None:
    written.check(written.scan.to_polars().to_dicts())


def test_duckdb_over_arrow(written: Written) -> None:
    view = written.scan.to_arrow()
    found: Any = duckdb.sql("SELECT * FROM view")
    written.check(found.to_arrow_table().to_pylist())
    connection = written.scan.to_duckdb("view")
    assert connection.sql("SELECT count(*) FROM view").fetchall() == [(len(view),)]
    connection.close()


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "true": lambda row: True,
    "id < 30": lambda row: row["id"] < 30,
    "price IS NULL": lambda row: row["price"] is None,
    "price IS NOT NULL AND id > 10": lambda row: row["price"] is not None and row["id"] > 10,
    "name > 'né 0.5'": lambda row: row["name"] > "né 0.5",
}


def test_the_iceberg_extension_of_duckdb(written: Written) -> None:
    """With filters, too: pushed down, they decide which files and which deletion vectors are read."""
    table = f"iceberg_scan('{written.metadata.removeprefix('file://')}')"
    found = duckdb_iceberg.answers([f"SELECT * FROM {table} WHERE {where}" for where in FILTERS])
    for (where, matches), rows in zip(FILTERS.items(), found, strict=True):
        assert _sorted(rows) == _sorted(filter(matches, written.rows)), where
