"""Find the stored queries that match documents; runs in Spark's workers, so it has minimal imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.schemas.config.model import Search
from tailrace.sinks.opensearch.bulk import connected

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

OWN: Final = "_tailrace"
FIELD: Final = f"{OWN}.query"
"""The percolator field of an index that we maintain (`sinks.opensearch.stored_queries`)."""

PIT_KEPT: Final = "10m"

_DOCUMENTS: Final = 64
_DOCUMENT_BYTES: Final = 1_000_000
_PAGE: Final = 1000
"""A worker's memory: this many documents or bytes of documents, at least one document, and one page of hits."""


@dataclass(frozen=True, slots=True)
class Queries:
    """Stored queries at one time: a point in time (PIT) of their index, and its percolator field."""

    pit: str
    field: str


def match(rows: Iterable[Any], search: Search, queries: Queries) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield query, version, key, commit LSN and ordinal of each match.

    `rows` are key, LSN, ordinal and document.
    """
    with connected(search) as client:
        for chunk in chunks(rows, _DOCUMENTS, _DOCUMENT_BYTES):
            for query, version, slots in _hits(client, queries, [row[-1] for row in chunk]):
                for slot in slots:
                    key, lsn, ordinal, _ = chunk[slot]
                    yield query, version, key, lsn, ordinal


def _hits(client: OpenSearch, queries: Queries, documents: list[str]) -> Iterator[tuple[str, str, list[int]]]:
    """Yield each matching query with its version and the indexes of the matched documents in the list."""
    own = queries.field == FIELD
    percolate = {"field": queries.field, "documents": [orjson.Fragment(document) for document in documents]}
    after: dict[str, Any] = {}
    while True:
        body = {
            "size": _PAGE,
            "query": {"constant_score": {"filter": {"percolate": percolate}}},
            "pit": {"id": queries.pit, "keep_alive": PIT_KEPT},
            "sort": [{"_shard_doc": "asc"}],
            "track_total_hits": False,
            "version": True,
            "_source": [f"{OWN}.id", f"{OWN}.version"] if own else False,
            **after,
        }
        # A partial answer of an index with several shards would be taken as complete.
        found = client.search(body=orjson.dumps(body), params={"allow_partial_search_results": "false"})
        hits = found["hits"]["hits"]
        for hit in hits:
            slots = hit["fields"]["_percolator_document_slot"]
            if own:
                yield hit["_source"][OWN]["id"], hit["_source"][OWN]["version"], slots
            else:
                yield hit["_id"], str(hit["_version"]), slots
        if len(hits) < _PAGE:
            return
        after = {"search_after": hits[-1]["sort"]}


def chunks(rows: Iterable[Any], most: int, most_bytes: int) -> Iterator[list[Any]]:
    """Split rows into lists limited by row count and by the total length of each row's last item.

    A list reaches `most_bytes` with its last row, so it may be larger by that row.
    """
    rows = iter(rows)
    while chunk := list(islice(rows, 1)):
        size = len(chunk[0][-1] or "")
        while len(chunk) < most and size < most_bytes and (more := list(islice(rows, 1))):
            chunk += more
            size += len(more[0][-1] or "")
        yield chunk
