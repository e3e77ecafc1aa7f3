"""Views in a search engine: one index per generation, an alias, and an index of its own for the cuts.

* A document's version is the commit LSN of the batch's cut (`external_gte`), also for deletes. So a repeated batch
  changes nothing, and a replayed older one loses against newer versions; OpenSearch remembers deletes for an hour.
* Order of a batch: write its cut as `unfinished` → bulk → refresh → write its cut as applied. The index refreshes only
  then, so a search sees whole batches. A reader that finds the same finished cut before and after opening a point in
  time has exactly that cut.
* Replacing all rows of the live generation creates a new one that takes over the alias, because an index with external
  versions cannot be emptied.

Names: alias ``{prefix}{view}``, indexes ``{prefix}{view}-g{n}``, cuts ``{prefix}tailrace-cuts``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.config.model import Search
from tailrace.schemas.errors import RebuildError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.opensearch.arrow_documents import NotPlain, arrow_bodies, arrow_documents
from tailrace.sinks.opensearch.bulk import bodies, connect, mend_documents, named_errors, write_bodies, write_documents
from tailrace.sinks.opensearch.compare import ID, Indexes, indexed, opened, texts
from tailrace.sinks.opensearch.documents import INTEGERS, documents
from tailrace.sinks.opensearch.layout import IndexLayout
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.spark.texts import for_each_partition
from tailrace.sinks.target.ahead import made_ahead
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import DELETED, Applied, Commit
from tailrace.sinks.target.spooled_rows import SpooledRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from tailrace.sinks.target.tables import Tables

_CUTS: Final[dict[str, Any]] = {
    "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
    # Read only by id, which needs no refresh and no indexed field.
    "mappings": {"dynamic": False},
}
_LSN_STEP: Final = 8
"""Least difference of two commit LSNs: by fewer versions, another writer cannot be ahead of the next batch."""

_FEW_BYTES: Final = 262_144
"""Up to this size, by Spark's estimate, the driver writes documents itself: a job of Python tasks takes longer."""

_SLICE_BYTES: Final = 1_000_000
"""Size of the rows in this process that are converted at a time: what the processor's caches hold."""

_CONNECTIONS: Final = max(2, min(len(os.sched_getaffinity(0)), 8))
"""Number of concurrent requests of rows in this process."""


def alias_of(search: Search, view: str) -> str:
    return f"{search.index_prefix}{view}"


def cuts_index(search: Search) -> str:
    return f"{search.index_prefix}tailrace-cuts"


def cut_id(view: str, generation: int) -> str:
    return f"{view}-g{generation}"


class OpenSearchTarget:
    """One view's alias and indexes."""

    kind: Final = "search"
    takes_spooled: Final = True

    def __init__(
        self, search: Search, view: str, definition: str | None = None, layout: IndexLayout | None = None
    ) -> None:
        self._search = search
        self._definition = definition
        self._layout = layout or IndexLayout()
        self._settled: set[int] = set()
        """Generations whose replicas are known to be those of the configuration."""
        self._view = view
        self._alias = alias_of(search, view)
        self._cuts = cuts_index(search)
        self._client = connect(search)
        with named_errors(search):
            if not self._client.indices.exists(index=self._cuts):
                # 400: another process was faster.
                self._client.indices.create(index=self._cuts, body=_CUTS, params={"ignore": 400})

    def live(self) -> Applied | None:
        """Return the state of the generation that readers see; None if nothing was ever applied."""
        with named_errors(self._search):
            index = self._live_index()
            return None if index is None else self._applied(int(index.rpartition("-g")[2]))

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Create an empty index for a new generation beside the live one and return its number."""
        self._layout.check(self._view, columns, key)
        with named_errors(self._search):
            generation = max(self._numbers(), default=0) + 1
            if self._live_index() is None:
                for left in self._numbers():
                    self._drop(left)
            self._create(generation, {name: kind.simpleString() for name, kind in columns.items()}, key)
            return generation

    def replace(self, generation: int, rows: DataFrame | SpooledRows, key: Sequence[str], commit: Commit) -> Applied:
        """Replace the whole content by `rows`; for the live generation, by a new live one."""
        columns = {field.name: field.dataType for field in rows.schema if field.name != DELETED}
        with named_errors(self._search):
            live = self._live_index()
        if live == self.index(generation):
            staged = self.stage(columns, key)
            self._apply(staged, rows, key, commit, None)
            self.swap(staged, key)
            with named_errors(self._search):
                self._drop(generation)
            return self._now(staged, commit)
        if self._stored(generation) is not None:
            with named_errors(self._search):
                self._drop(generation)
                self._create(generation, {name: kind.simpleString() for name, kind in columns.items()}, key)
        return self._apply(generation, rows, key, commit, None)

    def merge(self, generation: int, changes: DataFrame | FewRows, key: Sequence[str], commit: Commit) -> Applied:
        """Bring a generation to the cut of `commit`; `changes` has one row per key, with `DELETED`."""
        types = {f.name: f.dataType.simpleString() for f in changes.schema if f.name != DELETED}
        with named_errors(self._search):
            known = self.columns(generation)
            if {**known, **types} != known:
                self._check_types(known, types)
                body = self._layout.mapping(self._view, {**known, **types}, key)
                self._client.indices.put_mapping(index=self.index(generation), body=body)
            if generation not in self._settled:
                body = {"index": self._layout.replicas}
                self._client.indices.put_settings(index=self.index(generation), body=body)
                self._settled.add(generation)
            before = self._applied(generation)
        return self._apply(generation, changes, key, commit, before)

    def unchanged(self, applied: Applied, commit: Commit) -> Applied:
        """Write only the cut and its facts."""
        with named_errors(self._search):
            self._meta(applied.generation)
            self._store(applied.generation, commit, commit.cut, None)
        return self._now(applied.generation, commit)

    def swap(self, generation: int, key: Sequence[str]) -> None:
        """Point the alias to a generation, atomically for all readers; the old one stays for a rollback."""
        actions: list[dict[str, Any]] = [
            {"remove": {"index": f"{self._alias}-g*", "alias": self._alias, "must_exist": False}},
            {"add": {"index": self.index(generation), "alias": self._alias}},
        ]
        with named_errors(self._search):
            self._client.indices.update_aliases(body={"actions": actions})

    def generations(self) -> dict[int, Applied]:
        """Return every generation that has a cut, including the live one, by number."""
        with named_errors(self._search):
            found = ((number, self._applied(number)) for number in self._numbers())
            return {number: applied for number, applied in found if applied is not None}

    def key(self, generation: int) -> tuple[str, ...]:
        """Return the key columns that a generation was written with."""
        with named_errors(self._search):
            return tuple(self._meta(generation)["key"])

    def pair(self, live: int, staged: int, key: tuple[str, ...], pins: ExitStack) -> Indexes:
        """Open points in time of two generations; `pins` closes them."""
        columns = tuple(self.columns(live)), tuple(self.columns(staged))
        both = tuple(name for name in columns[0] if name in columns[1])
        points = pins.enter_context(opened(self._search, (self.index(live), self.index(staged)), key, both))
        return Indexes(points, columns)

    def pair_with(self, generation: int, rows: DataFrame, key: Sequence[str], pins: ExitStack) -> Tables:
        """Open a point in time of a generation, to compare it with the documents of rows; `pins` closes it."""
        from tailrace.sinks.target.tables import Tables

        columns = tuple(name for name in self.columns(generation) if name in rows.columns)
        points = pins.enter_context(opened(self._search, (self.index(generation),), tuple(key), columns))

        def form(rows: DataFrame) -> DataFrame:
            return texts(documents(rows, key), columns)

        return Tables(indexed(rows.sparkSession, points), form(rows), (ID,), are_json=True, form=form)

    def mend(self, generation: int, pair: Tables, rows: DataFrame, key: Sequence[str], commit: Commit) -> Applied:
        """Write the differing documents over those of any version, while the cut is marked as unfinished.

        RebuildError (TR-705) if a document's version would be greater than that of the next batch.
        """
        ids, found = pair.changes().select(quote(ID)), documents(rows, key, self._layout.routing)
        wanted = ids.join(found, found["id"] == ids[ID], "left_outer").select(quote(ID), *found.columns[1:])
        index, limit = self.index(generation), commit.cut.position.commit_lsn + _LSN_STEP
        mended = wanted.rdd.mapPartitions(partial(mend_documents, search=self._search, index=index))
        with named_errors(self._search):
            self._store(generation, commit, commit.cut, commit.cut)
        newest = mended.fold(0, max)
        with named_errors(self._search):
            self._client.indices.refresh(index=index)
            self._store(generation, commit, commit.cut, None)
        if newest >= limit:
            raise RebuildError(
                "TR-705",
                f'view "{self._view}": something else has written newer versions of its documents',
                view=self._view,
                detail="The next batch could not replace them.",
            )
        return self._now(generation, commit)

    def keep(self, numbers: Collection[int]) -> None:
        """Drop every generation except the live one and these, including remains of interrupted attempts."""
        with named_errors(self._search):
            live = self._live_index()
            for number in self._numbers():
                if number not in numbers and self.index(number) != live:
                    self._drop(number)

    def remove(self) -> None:
        """Drop all indexes of the view, and so its alias."""
        with named_errors(self._search):
            for number in self._numbers():
                self._drop(number)

    def _apply(
        self,
        generation: int,
        changes: DataFrame | FewRows | SpooledRows,
        key: Sequence[str],
        commit: Commit,
        before: Applied | None,
    ) -> Applied:
        with named_errors(self._search):
            if before is None:
                self._store(generation, commit, None, commit.cut)
            else:
                self._store(generation, replace(commit, level_ms=before.level_ms), before.cut, commit.cut)
        index, version = self.index(generation), commit.cut.position.commit_lsn

        def write(few: FewRows) -> None:
            write_bodies(self._bodies(few, key, version), self._search, index, self._client)

        if isinstance(changes, FewRows):
            write(changes)
        elif isinstance(changes, SpooledRows):
            for _ in made_ahead(write, changes.few(_SLICE_BYTES), _CONNECTIONS, 2 * _CONNECTIONS):
                pass
        else:
            for_each = partial(write_documents, search=self._search, index=index, version=version)
            rows = documents(changes, key, self._layout.routing)
            if _estimate(rows) <= _FEW_BYTES:
                for_each(rows.collect(), client=self._client)
            else:
                for_each_partition(rows, for_each)
        with named_errors(self._search):
            self._client.indices.refresh(index=index)
            self._store(generation, commit, commit.cut, None)
        return self._now(generation, commit)

    def _bodies(self, few: FewRows, key: Sequence[str], version: int) -> Iterator[bytes]:
        """Return the bulk requests of rows in this process."""
        routing = self._layout.routing
        try:
            return arrow_bodies(arrow_documents(few.arrow(), few.schema, key, routing), version)
        except NotPlain:
            return bodies(documents(few.frame(), key, routing).collect(), version)

    def _now(self, generation: int, commit: Commit) -> Applied:
        return Applied(generation, commit.cut, definition=self._definition, inputs=commit.inputs)

    def _check_types(self, known: Mapping[str, str], types: Mapping[str, str]) -> None:
        """Raise RebuildError (TR-522) for a type change; an index allows only those between integer types.

        A field's type cannot change. Of the Spark types that share one, only integers read back unchanged.
        """
        for name, kind in types.items():
            before = known.get(name, kind)
            if before == kind or {before, kind} <= INTEGERS:
                continue
            raise RebuildError(
                "TR-522",
                f'view "{self._view}": column "{name}" was {before} and is {kind} now',
                view=self._view,
                detail="The index cannot change it in place.",
            )

    def _applied(self, generation: int) -> Applied | None:
        stored = self._stored(generation)
        if stored is None or stored["cut"] is None:
            return None
        unfinished = stored["unfinished"]
        return Applied(
            generation,
            Cut.from_json(stored["cut"]),
            unfinished=Cut.from_json(unfinished) if unfinished else None,
            definition=stored.get("definition"),
            inputs=stored.get("inputs") or {},
            level_ms=stored.get("level_ms", 0),
        )

    def _store(self, generation: int, commit: Commit, cut: Cut | None, unfinished: Cut | None) -> None:
        document = {
            "view": self._view,
            "generation": generation,
            "cut": cut.to_json() if cut else None,
            "unfinished": unfinished.to_json() if unfinished else None,
            "definition": self._definition,
            "inputs": dict(commit.inputs),
            "level_ms": time.time_ns() // 1_000_000 if commit.level_ms is None else commit.level_ms,
        }
        self._client.index(index=self._cuts, id=cut_id(self._view, generation), body=document)

    def _stored(self, generation: int) -> dict[str, Any] | None:
        found = self._client.get(index=self._cuts, id=cut_id(self._view, generation), params={"ignore": 404})
        return found["_source"] if found.get("found") else None

    def _live_index(self) -> str | None:
        found = self._client.indices.get_alias(name=self._alias, params={"ignore": 404})
        return next((name for name, value in found.items() if isinstance(value, dict) and "aliases" in value), None)

    def columns(self, generation: int) -> dict[str, str]:
        """Return a generation's columns and their types."""
        found: dict[str, str] = self._meta(generation)["columns"]
        return found

    def _meta(self, generation: int) -> dict[str, Any]:
        """Return what a generation's mapping says of it.

        RebuildError (TR-534) if the index was deleted: a write would create one of that name, without our mapping.
        """
        index = self.index(generation)
        answer = self._client.indices.get_mapping(index=index, params={"ignore": 404})
        found: dict[str, Any] | None = answer.get(index, {}).get("mappings", {}).get("_meta")
        if found is None:
            raise RebuildError(
                "TR-534",
                f'view "{self._view}": its index "{index}" is not there',
                view=self._view,
                detail="It was deleted, or is another one of that name; what it had is lost.",
            )
        return found

    def _create(self, generation: int, types: Mapping[str, str], key: Sequence[str]) -> None:
        mappings = self._layout.mapping(self._view, types, key)
        body = {"settings": {"index": self._layout.all_settings}, "mappings": mappings}
        self._client.indices.create(index=self.index(generation), body=body)

    def _drop(self, generation: int) -> None:
        """Drop a generation: first its cut, because an index without a cut counts only as remains."""
        self._client.delete(index=self._cuts, id=cut_id(self._view, generation), params={"ignore": 404})
        self._client.indices.delete(index=self.index(generation), params={"ignore": 404})

    def _numbers(self) -> list[int]:
        there = self._client.indices.get(index=f"{self._alias}-g*", params={"filter_path": "*.aliases"})
        names = (name.removeprefix(f"{self._alias}-g") for name in there or ())
        return sorted(int(number) for number in names if number.isdecimal())

    def index(self, generation: int) -> str:
        """Return the name of a generation's index."""
        return f"{self._alias}-g{generation}"


def _estimate(rows: DataFrame) -> int:
    """Return Spark's size estimate in bytes, without a job; for cached data it knows the size."""
    return int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
