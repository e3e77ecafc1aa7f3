"""Read views in a search engine without Spark: all documents at a finished cut.

Values are as in the topic without Avro's logical types: days, microseconds, unscaled decimal bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tailrace.schemas.config.model import Search
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.opensearch.bulk import connect, named_errors
from tailrace.sinks.opensearch.documents import field_of, plain_value
from tailrace.sinks.opensearch.target import alias_of, cut_id, cuts_index
from tailrace.sinks.target.kind import ViewState, not_made

_PAGE: Final = 2000
_PIT_KEPT: Final = "10m"
_IDLE_WAIT_S: Final = 60.0


def read_documents(search: Search, name: str) -> ViewState:
    """Return a view at a finished cut, as of one point in time. SinkError (TR-532) if there was none for a minute."""
    with named_errors(search):
        client = connect(search)
        deadline = time.monotonic() + _IDLE_WAIT_S
        while True:
            found = _finished_cut(client, search, name)
            if found is not None:
                index, generation, cut = found
                pit = client.create_pit(index=index, params={"keep_alive": _PIT_KEPT})["pit_id"]
                # The same cut before and after: no batch was in flight when the point in time was opened.
                if _finished_cut(client, search, name) == found:
                    kinds = client.indices.get_mapping(index=index)[index]["mappings"]["_meta"]["columns"]
                    return ViewState(cut, generation, _documents(client, search, pit, kinds))
                client.delete_pit(body={"pit_id": [pit]})
            if time.monotonic() > deadline:
                raise SinkError(
                    "TR-532",
                    f'view "{name}" could not be read at a finished cut for {_IDLE_WAIT_S:.0f} s',
                    detail="Batches follow one another without a pause, or one was interrupted.",
                    hint="tailrace views follow  # its start completes an interrupted batch",
                )
            time.sleep(0.02)


def _finished_cut(client: Any, search: Search, name: str) -> tuple[str, int, Cut] | None:
    """Return index, generation and cut of the live generation; None while a batch is in flight."""
    aliased = client.indices.get_alias(name=alias_of(search, name), params={"ignore": 404})
    index = next((key for key, value in aliased.items() if isinstance(value, dict) and "aliases" in value), None)
    if index is None:
        raise not_made(name)
    generation = int(index.rpartition("-g")[2])
    stored = client.get(index=cuts_index(search), id=cut_id(name, generation), params={"ignore": 404})
    source = stored.get("_source", {"cut": None, "unfinished": None})
    if source["cut"] is None or source["unfinished"] is not None:
        return None
    return index, generation, Cut.from_json(source["cut"])


def _documents(client: Any, search: Search, pit: str, kinds: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    fields = [(column, field_of(column), kind) for column, kind in kinds.items()]
    after: dict[str, Any] = {}
    try:
        while True:
            body = {
                "size": _PAGE,
                "query": {"match_all": {}},
                "pit": {"id": pit, "keep_alive": _PIT_KEPT},
                "sort": [{"_shard_doc": "asc"}],
                "track_total_hits": False,
                **after,
            }
            with named_errors(search):
                hits = client.search(body=body)["hits"]["hits"]
            if not hits:
                return
            after = {"search_after": hits[-1]["sort"]}
            for hit in hits:
                source = hit["_source"]
                yield {column: plain_value(source.get(field), kind) for column, field, kind in fields}
    finally:
        with named_errors(search):
            client.delete_pit(body={"pit_id": [pit]})
