"""Maintain stored queries in an index with a percolator field.

The queries of a captured table are in ``{prefix}{view}-queries``: fields as in documents (`documents`), and in
`_tailrace` the query, its key and its version. `_meta` of the mapping records the columns, the source and the applied
cut, so index and cut are created and dropped together. A query that OpenSearch or we refuse is parked: it is stored
with its error and matches nothing until the query or the fields change.

A user's own index is only read: the one percolator field in its mapping, `_id` and `_version`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.schemas.config.model import Search
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.opensearch.bulk import connect, connected, named_errors
from tailrace.sinks.opensearch.documents import document_id, mapping
from tailrace.sinks.opensearch.percolator import FIELD, OWN, PIT_KEPT, Queries, chunks

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from pyspark.sql import DataFrame

_SETTINGS: Final[dict[str, Any]] = {
    "number_of_shards": 1,
    "auto_expand_replicas": "0-1",
    "refresh_interval": "-1",
    "gc_deletes": "1h",
    "mapping.total_fields.limit": 5000,
}
_STORED: Final[dict[str, Any]] = {
    "properties": {
        "query": {"type": "percolator"},
        "id": {"type": "keyword", "index": False, "doc_values": False},
        "version": {"type": "keyword", "index": False, "doc_values": False},
        "error": {"type": "keyword", "ignore_above": 512},
    }
}
_SCRIPTS: Final = ("script_score", "minimum_should_match_script")
_QUERIES: Final = 500
_QUERY_BYTES: Final = 1_000_000
"""A worker's memory: this many queries or bytes of queries, at least one query."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A stored query that matches nothing because of `error`, which may quote the query."""

    query: str
    version: str
    error: str


class StoredQueries:
    """A view's index of the queries in a captured column; `source` identifies that column."""

    def __init__(self, search: Search, view: str, source: str) -> None:
        self._search = search
        self._source = source
        self._index = f"{search.index_prefix}{view}-queries"
        self._client = connect(search)

    def open(self, columns: Mapping[str, str]) -> Cut | None:
        """Return the index's applied cut, or recreate it for these columns and return None.

        It is recreated if it is missing, has no cut, or has other columns or another source.
        """
        with named_errors(self._search):
            found = self._client.indices.get_mapping(index=self._index, params={"ignore": 404})
            meta = found[self._index]["mappings"]["_meta"] if self._index in found else {}
            wanted = self._meta(columns, None)
            if meta.get("cut") is not None and {**meta, "cut": None} == wanted:
                return Cut.from_json(meta["cut"])
        self.clear(columns)
        return None

    def clear(self, columns: Mapping[str, str]) -> None:
        """Recreate the index, empty."""
        self.remove()
        with named_errors(self._search):
            body = mapping(columns, [])
            properties = {**body["properties"], OWN: _STORED}
            mappings = {**body, "_meta": self._meta(columns, None), "properties": properties}
            self._client.indices.create(
                index=self._index, body={"settings": {"index": _SETTINGS}, "mappings": mappings}
            )

    def remove(self) -> None:
        """Drop the index."""
        with named_errors(self._search):
            self._client.indices.delete(index=self._index, params={"ignore": 404})

    def store(self, changes: DataFrame, columns: Mapping[str, str], cut: Cut) -> None:
        """Bring the index to `cut`; `changes` are id, version, text (null: the query is deleted)."""
        changes.foreachPartition(
            partial(store_queries, search=self._search, index=self._index, lsn=cut.position.commit_lsn)
        )
        with named_errors(self._search):
            self._client.indices.refresh(index=self._index)
            self._client.indices.put_mapping(index=self._index, body={"_meta": self._meta(columns, cut)})

    def parked(self, limit: int) -> tuple[int, list[Parked]]:
        """Return the number of parked queries, and up to `limit` of them."""
        with named_errors(self._search):
            body = {"query": {"exists": {"field": f"{OWN}.error"}}, "size": limit, "track_total_hits": True}
            found = self._client.search(index=self._index, body=body, params={"ignore": 404})
        hits = found.get("hits", {"hits": [], "total": {"value": 0}})
        own = [hit["_source"][OWN] for hit in hits["hits"]]
        return hits["total"]["value"], [Parked(each["id"], each["version"], each["error"]) for each in own]

    def opened(self) -> Queries:
        """Open a point in time of the queries, until `close`."""
        return Queries(_point_in_time(self._client, self._search, self._index), FIELD)

    def close(self, queries: Queries) -> None:
        _let_go(self._client, self._search, queries)

    def _meta(self, columns: Mapping[str, str], cut: Cut | None) -> dict[str, Any]:
        return {"columns": dict(columns), "source": self._source, "cut": cut.to_json() if cut else None}


class UsersQueries:
    """An index of the user's own."""

    def __init__(self, search: Search, index: str) -> None:
        self._search = search
        self._index = index
        self._client = connect(search)

    def opened(self) -> Queries:
        """Open a point in time of the queries, until `close`.

        ConfigError (TR-593) if the index does not have exactly one percolator field.
        """
        with named_errors(self._search):
            found = self._client.indices.get_mapping(index=self._index, params={"ignore": 404})
        fields = {field for each in found.values() if isinstance(each, dict) for field in _percolators(each)}
        if len(fields) != 1:
            raise ConfigError(
                "TR-593",
                f'index "{self._index}" has {len(fields) or "no"} percolator field{"s" * (len(fields) > 1)}',
                detail="A percolate view needs exactly one, which holds the queries to match.",
                hint='"mappings": {"properties": {"query": {"type": "percolator"}, ...the fields of the table...}}',
            )
        return Queries(_point_in_time(self._client, self._search, self._index), fields.pop())

    def close(self, queries: Queries) -> None:
        _let_go(self._client, self._search, queries)


def _percolators(mappings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, field in mappings.get("mappings", mappings).get("properties", {}).items():
        if field.get("type") == "percolator":
            yield path + name
        yield from _percolators(field, f"{path}{name}.")


def _point_in_time(client: OpenSearch, search: Search, index: str) -> str:
    with named_errors(search):
        pit: str = client.create_pit(index=index, params={"keep_alive": PIT_KEPT})["pit_id"]
        return pit


def _let_go(client: OpenSearch, search: Search, queries: Queries) -> None:
    with named_errors(search):
        client.delete_pit(body={"pit_id": [queries.pit]}, params={"ignore": 404})


def store_queries(rows: Iterable[Any], search: Search, index: str, lsn: int) -> None:
    """Index `rows` (id, version, query or null) under the external version `lsn`; park refused queries.

    SinkError (TR-531) if OpenSearch refuses a document for another reason, or a parked one.
    """
    with connected(search) as client:
        for chunk in chunks(rows, _QUERIES, _QUERY_BYTES):
            stored = [_stored(*row) for row in chunk]
            refused = _write(client, index, lsn, stored)
            parked = [(stored[n][0], _as_parked(stored[n][1], error)) for n, error in refused.items()]
            for error in _write(client, index, lsn, parked).values():
                raise SinkError(
                    "TR-531", f'OpenSearch refuses a document of index "{index}"', detail=f"{error.get('type')}."
                )


def _stored(query: str, version: str, text: str | None) -> tuple[dict[str, Any], bytes | None]:
    """Return a document's `_id` and its content, which is None for a deleted query."""
    return {"_id": document_id(query)}, None if text is None else _document(query, version, text)


def _document(query: str, version: str, text: str) -> bytes:
    about = {"id": query, "version": version}
    try:
        tree = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return orjson.dumps({OWN: {**about, "error": f"not JSON: {error}"[:500]}})
    if _has_script(tree):
        # A script may fail on a document, which would fail the search for all queries.
        return orjson.dumps({OWN: {**about, "error": "scripts are not supported"}})
    # Unparsed, to keep numbers exact, but on one line as the bulk API requires.
    query_text = text.replace("\r", " ").replace("\n", " ")
    return orjson.dumps({OWN: {**about, "query": orjson.Fragment(query_text)}})


def _has_script(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_has_script, tree))
    if not isinstance(tree, dict):
        return False
    # A column may also be called "script".
    inner = tree.get("script")
    is_script = isinstance(inner, dict) and not inner.keys().isdisjoint(("script", "source", "id"))
    return is_script or not tree.keys().isdisjoint(_SCRIPTS) or any(map(_has_script, tree.values()))


def _as_parked(document: bytes | None, error: Mapping[str, Any]) -> bytes:
    while error.get("reason") == "failed to parse" and isinstance(error.get("caused_by"), dict):
        error = error["caused_by"]
    own = orjson.loads(document or b"{}")[OWN]
    reason = f"{error.get('type')}: {error.get('reason')}"[:500]
    return orjson.dumps({OWN: {"id": own["id"], "version": own["version"], "error": reason}})


def _write(
    client: OpenSearch, index: str, lsn: int, documents: Sequence[tuple[dict[str, Any], bytes | None]]
) -> dict[int, dict[str, Any]]:
    """Send documents; return the errors of those that are invalid (status 400), by index in `documents`."""
    if not documents:
        return {}
    lines = []
    for name, document in documents:
        action = "delete" if document is None else "index"
        lines.append(orjson.dumps({action: {**name, "version": lsn, "version_type": "external_gte"}}))
        lines += [document] if document is not None else []
    answer = client.bulk(body=b"\n".join(lines) + b"\n", index=index)
    results = [next(iter(item.values())) for item in answer["items"]]
    refused = {n: result["error"] for n, result in enumerate(results) if result["status"] == 400}
    for result in results:
        # 409: a newer version exists, if a batch is repeated; 404: deleted twice.
        if result["status"] >= 300 and result["status"] not in (400, 404, 409):
            raise SinkError(
                "TR-531",
                f'OpenSearch refuses a document of index "{index}"',
                detail=f"{result['status']} {result.get('error', {}).get('type', '')}.",
                hint="See the log of the OpenSearch server. Nothing is lost: the batch is retried.",
            )
    return refused
