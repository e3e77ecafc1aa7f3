"""Views in a search index: one index per generation behind an alias, and the cuts in an index of their own.

* A document's version is the commit LSN of the batch's cut (`external_gte`), deletes too. So a repeated batch
  changes nothing, and a replayed older one loses against what is there; deletes are kept in mind for an hour.
* A batch: its cut written as `unfinished` → bulk → refresh → its cut written as applied. The index refreshes only
  then, so a search sees whole batches; and who finds the same finished cut before and after opening a point in
  time holds exactly that cut.
* Replacing all rows of the live generation makes a new one that takes the alias over: an index cannot be emptied
  under versions.

Names: alias ``{prefix}{view}``, indexes ``{prefix}{view}-g{n}``, cuts ``{prefix}tailrace-cuts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from schemas.config import Search
from schemas.errors import StateError
from schemas.progress import Cut
from sinks.bulk import connect, named_errors, write_documents
from sinks.changes import DELETED, Applied
from sinks.documents import INTEGERS, documents, mapping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_SETTINGS: Final[dict[str, Any]] = {
    "number_of_shards": 1,
    "auto_expand_replicas": "0-1",
    "refresh_interval": "-1",
    "gc_deletes": "1h",
    "mapping.total_fields.limit": 5000,
}
_CUTS: Final[dict[str, Any]] = {
    "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
    # Read by id only, which is always up to date; so nothing in it is indexed.
    "mappings": {"dynamic": False},
}


def alias_of(search: Search, view: str) -> str:
    return f"{search.index_prefix}{view}"


def cuts_index(search: Search) -> str:
    return f"{search.index_prefix}tailrace-cuts"


def cut_id(view: str, generation: int) -> str:
    return f"{view}-g{generation}"


class OpenSearchTarget:
    """One view's alias and indexes."""

    kind: Final = "search"

    def __init__(self, search: Search, view: str, definition: str | None = None) -> None:
        self._search = search
        self._definition = definition
        self._view = view
        self._alias = alias_of(search, view)
        self._cuts = cuts_index(search)
        self._client = connect(search)
        self._seen: dict[int, dict[str, str]] = {}
        self.inputs: Mapping[str, int] = {}
        with named_errors(search):
            if not self._client.indices.exists(index=self._cuts):
                # 400: another process was faster.
                self._client.indices.create(index=self._cuts, body=_CUTS, params={"ignore": 400})

    def live(self) -> Applied | None:
        """Return generation and cut of what readers see; None if nothing was ever applied."""
        with named_errors(self._search):
            index = self._live_index()
            return None if index is None else self._applied(int(index.rpartition("-g")[2]))

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Make an empty index for a new generation beside the live one and return its number."""
        with named_errors(self._search):
            there = self._client.indices.get(index=f"{self._alias}-g*", params={"filter_path": "*.aliases"})
            live = self._live_index()
            numbers = [int(name.rpartition("-g")[2]) for name in there or ()]
            generation = max(numbers, default=0) + 1
            self._create(generation, {name: kind.simpleString() for name, kind in columns.items()}, key)
            if live is None:
                self._drop_others(generation)
            return generation

    def replace(self, generation: int, rows: DataFrame, key: Sequence[str], cut: Cut) -> Applied:
        """Make `rows` the whole content as of `cut`; of the live generation, as a new one that is then live."""
        columns = {field.name: field.dataType for field in rows.schema if field.name != DELETED}
        with named_errors(self._search):
            live = self._live_index()
        if live == self._index(generation):
            staged = self.stage(columns, key)
            self._apply(staged, rows, key, cut, started=None)
            self.swap(staged, key)
            with named_errors(self._search):
                self._drop(generation)
            return self._now(staged, cut)
        if self._stored(generation) is not None:
            with named_errors(self._search):
                self._drop(generation)
                self._create(generation, {name: kind.simpleString() for name, kind in columns.items()}, key)
        return self._apply(generation, rows, key, cut, started=None)

    def merge(self, generation: int, changes: DataFrame, key: Sequence[str], cut: Cut) -> Applied:
        """Bring a generation to `cut`; `changes` has one row per key, with `DELETED`."""
        types = {f.name: f.dataType.simpleString() for f in changes.schema if f.name != DELETED}
        with named_errors(self._search):
            known = self._seen.get(generation) or self._columns(generation)
            if {**known, **types} != known:
                self._check_types(known, types)
                body = mapping({**known, **types}, key)
                self._client.indices.put_mapping(index=self._index(generation), body=body)
            self._seen[generation] = {**known, **types}
            before = self._applied(generation)
        return self._apply(generation, changes, key, cut, started=before.cut if before else None)

    def unchanged(self, applied: Applied, cut: Cut) -> Applied:
        """Write the cut alone."""
        with named_errors(self._search):
            self._store(applied.generation, cut, None)
        return self._now(applied.generation, cut)

    def swap(self, generation: int, key: Sequence[str]) -> None:
        """Point the alias to a generation, at once for all readers; the one before stays for a way back."""
        actions: list[dict[str, Any]] = [
            {"remove": {"index": f"{self._alias}-g*", "alias": self._alias, "must_exist": False}},
            {"add": {"index": self._index(generation), "alias": self._alias}},
        ]
        with named_errors(self._search):
            live = self._live_index()
            self._client.indices.update_aliases(body={"actions": actions})
            if live is not None:
                self._drop_others(generation, int(live.rpartition("-g")[2]))

    def _apply(self, generation: int, changes: DataFrame, key: Sequence[str], cut: Cut, started: Cut | None) -> Applied:
        with named_errors(self._search):
            self._store(generation, started, cut)
        write = partial(
            write_documents,
            search=self._search,
            index=self._index(generation),
            version=cut.position.commit_lsn,
        )
        documents(changes, key).foreachPartition(write)
        with named_errors(self._search):
            self._client.indices.refresh(index=self._index(generation))
            self._store(generation, cut, None)
        return self._now(generation, cut)

    def _now(self, generation: int, cut: Cut) -> Applied:
        return Applied(generation, cut, definition=self._definition, inputs=self.inputs)

    def _check_types(self, known: Mapping[str, str], types: Mapping[str, str]) -> None:
        """A field's type is for good. Between those that share one, only integers read back as they were."""
        for name, kind in types.items():
            before = known.get(name, kind)
            if before == kind or {before, kind} <= INTEGERS:
                continue
            raise StateError(
                "TR-522",
                f'view "{self._view}": column "{name}" was {before} and is {kind} now',
                detail="The index cannot change it in place.",
                hint=f"tailrace views rebuild {self._view}",
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
        )

    def _store(self, generation: int, cut: Cut | None, unfinished: Cut | None) -> None:
        document = {
            "view": self._view,
            "generation": generation,
            "cut": cut.to_json() if cut else None,
            "unfinished": unfinished.to_json() if unfinished else None,
            "definition": self._definition,
            "inputs": self.inputs,
        }
        self._client.index(index=self._cuts, id=cut_id(self._view, generation), body=document)

    def _stored(self, generation: int) -> dict[str, Any] | None:
        found = self._client.get(index=self._cuts, id=cut_id(self._view, generation), params={"ignore": 404})
        return found["_source"] if found.get("found") else None

    def _live_index(self) -> str | None:
        found = self._client.indices.get_alias(name=self._alias, params={"ignore": 404})
        return next((name for name, value in found.items() if isinstance(value, dict) and "aliases" in value), None)

    def _columns(self, generation: int) -> dict[str, str]:
        index = self._index(generation)
        found: dict[str, str] = self._client.indices.get_mapping(index=index)[index]["mappings"]["_meta"]["columns"]
        return found

    def _create(self, generation: int, types: Mapping[str, str], key: Sequence[str]) -> None:
        body = {"settings": {"index": _SETTINGS}, "mappings": mapping(types, key)}
        self._client.indices.create(index=self._index(generation), body=body)
        self._seen[generation] = dict(types)

    def _drop(self, generation: int) -> None:
        """The cut goes first: an index without one is only a leftover."""
        self._client.delete(index=self._cuts, id=cut_id(self._view, generation), params={"ignore": 404})
        self._client.indices.delete(index=self._index(generation), params={"ignore": 404})
        self._seen.pop(generation, None)

    def _drop_others(self, *kept: int) -> None:
        there = self._client.indices.get(index=f"{self._alias}-g*", params={"filter_path": "*.aliases"})
        for name in there or ():
            generation = int(name.rpartition("-g")[2])
            # A greater number is a rebuild under way.
            if generation not in kept and generation < max(kept):
                self._drop(generation)

    def _index(self, generation: int) -> str:
        return f"{self._alias}-g{generation}"
