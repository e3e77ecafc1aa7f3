"""Compare two indexes of a view at points in time, document by document; runs in Spark's workers.

Each page of one index is looked up in the other, in both directions. Memory: two pages, and the listed differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.config.model import Search
from tailrace.sinks.opensearch.bulk import connect, named_errors
from tailrace.sinks.opensearch.documents import field_of
from tailrace.sinks.target.comparison import Counts, Difference, What

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PAGE: Final = 1000
_KEPT: Final = "10m"
_SLICES: Final = 8
"""Number of slices of an index that are compared separately."""


@dataclass(frozen=True, slots=True)
class Points:
    """One or two indexes, each at a point in time; `columns` are those that both sides of a comparison have."""

    search: Search
    live: str
    staged: str | None
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def compare(self, numbers: Iterable[int], limit: int) -> Iterator[tuple[Counts, list[Difference]]]:
        """Compare these slices; list up to `limit` keys of each."""
        client = connect(self.search)
        try:
            with named_errors(self.search):
                for number in numbers:
                    yield _Slice(client, self, number, limit).compare()
        finally:
            client.close()


@dataclass(frozen=True, slots=True)
class Indexes:
    """A pair of indexes at points in time; each Spark task compares one slice of them."""

    points: Points
    columns: tuple[tuple[str, ...], tuple[str, ...]]

    def compare(self, session: SparkSession, limit: int) -> tuple[Counts, list[Difference]]:
        slices = session.sparkContext.parallelize(range(_SLICES), _SLICES)
        counts, keys = Counts(), []
        for found, listed in slices.mapPartitions(partial(self.points.compare, limit=limit)).collect():
            counts.add(found)
            keys += listed
        return counts, keys


@contextmanager
def opened(search: Search, indexes: Sequence[str], key: tuple[str, ...], columns: tuple[str, ...]) -> Iterator[Points]:
    """Open points in time of both indexes for the block; nothing may be written to them until it begins."""
    client = connect(search)
    points: list[str] = []
    try:
        with named_errors(search):
            for index in indexes:
                points.append(client.create_pit(index=index, params={"keep_alive": _KEPT})["pit_id"])
        yield Points(search, points[0], points[1] if points[1:] else None, key, columns)
    finally:
        with named_errors(search):
            if points:
                client.delete_pit(body={"pit_id": points})
        client.close()


ID: Final = "document id"
"""The document id in frames of documents; the other columns are those of the view, as JSON texts."""


def indexed(session: SparkSession, points: Points) -> DataFrame:
    """Return the documents of an index, read by Spark's tasks."""
    slices = session.sparkContext.parallelize(range(_SLICES), _SLICES)
    return session.createDataFrame(slices.mapPartitions(partial(_read, points)), _schema(points.columns))


def texts(found: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return documents, given by id and JSON text, as `indexed` returns them."""
    rows = found.rdd.mapPartitions(partial(_parsed, columns))
    return found.sparkSession.createDataFrame(rows, _schema(columns))


def _schema(columns: Sequence[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in (ID, *columns)])


def _read(points: Points, numbers: Iterable[int]) -> Iterator[tuple[str | None, ...]]:
    client = connect(points.search)
    try:
        with named_errors(points.search):
            for number in numbers:
                for page in _Slice(client, points, number, 0).pages(points.live):
                    for document_id, document in page.items():
                        yield _texts(document_id, document, points.columns)
    finally:
        client.close()


def _parsed(columns: Sequence[str], rows: Iterable[Any]) -> Iterator[tuple[str | None, ...]]:
    for row in rows:
        yield _texts(row.id, json.loads(row.document), columns)


def _texts(document_id: str, document: Mapping[str, Any], columns: Sequence[str]) -> tuple[str | None, ...]:
    """Return the columns' values as JSON texts in one form, whatever wrote them; None for NULL."""
    values = (document.get(field_of(name)) for name in columns)
    return document_id, *(None if value is None else json.dumps(value, sort_keys=True) for value in values)


@dataclass(slots=True)
class _Slice:
    client: OpenSearch
    points: Points
    number: int
    limit: int
    counts: Counts = field(default_factory=Counts)
    found: list[Difference] = field(default_factory=list)

    def compare(self) -> tuple[Counts, list[Difference]]:
        assert self.points.staged is not None
        for page in self.pages(self.points.live):
            self.counts.live += len(page)
            others = self._lookup(self.points.staged, page)
            for number, document in page.items():
                if number not in others:
                    self.counts.only_live += 1
                    self._list(document, "only live")
                elif columns := self._different(document, others[number]):
                    self.counts.changed += 1
                    self._list(document, "different", columns)
        for page in self.pages(self.points.staged):
            self.counts.staged += len(page)
            others = self._lookup(self.points.live, page)
            for number in page.keys() - others.keys():
                self.counts.only_staged += 1
                self._list(page[number], "only staged")
        return self.counts, self.found

    def pages(self, point: str) -> Iterator[dict[str, dict[str, Any]]]:
        after: dict[str, Any] = {}
        one_of = {"slice": {"id": self.number, "max": _SLICES}}
        while True:
            body = {
                "size": _PAGE,
                "query": {"match_all": {}},
                "sort": [{"_shard_doc": "asc"}],
                "track_total_hits": False,
                **one_of,
                **after,
            }
            hits = self._search(point, body)
            if not hits:
                return
            after = {"search_after": hits[-1]["sort"]}
            yield {hit["_id"]: hit["_source"] for hit in hits}

    def _lookup(self, point: str, page: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        body = {"size": len(page), "query": {"ids": {"values": list(page)}}, "track_total_hits": False}
        return {hit["_id"]: hit["_source"] for hit in self._search(point, body)}

    def _search(self, point: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.client.search(body={**body, "pit": {"id": point, "keep_alive": _KEPT}})
        hits: list[dict[str, Any]] = found["hits"]["hits"]
        return hits

    def _different(self, live: Mapping[str, Any], staged: Mapping[str, Any]) -> tuple[str, ...]:
        fields = ((column, field_of(column)) for column in self.points.columns)
        return tuple(column for column, name in fields if live.get(name) != staged.get(name))

    def _list(self, document: Mapping[str, Any], what: What, columns: Sequence[str] = ()) -> None:
        if len(self.found) < self.limit:
            key = {column: document.get(field_of(column)) for column in self.points.key}
            self.found.append(Difference(key, what, tuple(columns)))
