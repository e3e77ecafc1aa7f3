"""Read a view at one cut without Spark, for `verify` and for callers that need the LSN of a read.

Rows are column → value, with values as in the topic without Avro's logical types: days, microseconds, unscaled decimal
bytes. So they compare with records directly, and the limits of Python's types lose no value.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tailrace.schemas.config.model import Config, Search, Warehouse
from tailrace.schemas.errors import ConfigError, SinkError, StateError
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, read_views
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.opensearch.bulk import connect, named_errors
from tailrace.sinks.opensearch.documents import field_of, plain_value, unscaled_bytes
from tailrace.sinks.target.protocol import VALIDITY, HistoryFrom

_PAGE: Final = 2000
_PIT_KEPT: Final = "10m"
_IDLE_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ViewState:
    """A view at `cut`; `rows` can be iterated once."""

    cut: Cut
    generation: int
    rows: Iterator[dict[str, Any]]


def read_view(config: Config, name: str) -> ViewState:
    """Return the live generation of a view, all rows as of its cut, even if batches are applied meanwhile."""
    view = config.views.get(name)
    if view is None:
        raise ConfigError("TR-501", f'there is no view "{name}"', hint="tailrace views list")
    record = read_views(config.kafka, Topics(config.kafka.prefix)).get(name)
    if view.target == "search" and config.search is not None:
        return _read_search(config.search, name)
    if view.target == "warehouse" and config.warehouse is not None:
        return _read_warehouse(config.warehouse, name, record, history=view.shape == "history")
    raise ConfigError(
        "TR-511",
        f'view "{name}" has target "{view.target}", but there is no [{view.target}]',
        hint=f"Add [{view.target}]",
    )


def _not_made(name: str) -> StateError:
    return StateError(
        "TR-512",
        f'view "{name}" has not been made yet',
        detail="No batch has been applied to it.",
        hint=f"tailrace views rebuild {name}, or let `tailrace views follow` run.",
    )


def _read_warehouse(warehouse: Warehouse, name: str, record: ViewRecord | None, *, history: bool) -> ViewState:
    stored = stored_view(warehouse, name, record)
    # In a history, the rows that are valid at the cut are those without an end.
    rows = stored.rows("valid_to_lsn IS NULL", VALIDITY) if history else stored.rows()
    return ViewState(stored.cut, stored.generation, rows)


@dataclass(frozen=True, slots=True)
class StoredView:
    """A view's table in the warehouse, at one snapshot; `table` is pyiceberg's."""

    table: Any
    snapshot_id: int
    cut: Cut
    generation: int
    history_from: HistoryFrom | None

    def rows(self, where: str | None = None, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Return the rows that match `where` (pyiceberg's filter syntax), less the columns `without`."""
        columns = [field.name for field in self.table.schema().fields if field.name not in without]
        scan = self.table.scan(snapshot_id=self.snapshot_id, **({"row_filter": where} if where else {}))
        return _arrow_rows(scan.to_arrow_batch_reader(), columns)


def stored_view(warehouse: Warehouse, name: str, record: ViewRecord | None) -> StoredView:
    """Return the live generation of a view in the warehouse; `record` is its record on the views topic."""
    from pyiceberg.exceptions import NoSuchTableError

    with opened(warehouse) as catalog:
        try:
            table = catalog.load_table((warehouse.namespace, name))
        except NoSuchTableError:
            raise _not_made(name) from None
    # The data is from the current snapshot; the cut is from the newest ancestor that has one.
    data = snapshot = table.current_snapshot()
    while snapshot is not None and (snapshot.summary is None or snapshot.summary.get("tailrace.cut") is None):
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    if data is None or snapshot is None or snapshot.summary is None:
        raise _not_made(name)
    cut = Cut.from_json(snapshot.summary["tailrace.cut"] or "")
    generation = int(snapshot.summary["tailrace.generation"] or 0)
    begins = snapshot.summary.get("tailrace.history_from")
    if record is not None and record.cut is not None and record.snapshot_id == snapshot.snapshot_id:
        # Later cuts that changed no row are only on the topic.
        newer = record.cut.order > cut.order
        cut = record.cut if newer and record.generation == generation else cut
    history_from = HistoryFrom.from_json(begins) if begins else None
    return StoredView(table, data.snapshot_id, cut, generation, history_from)


def _arrow_rows(batches: Any, columns: list[str]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        names = batch.schema.names
        values = {name: _plain_arrow(batch.column(name)) for name in names}
        # A column that was added after this snapshot is null in all of its rows.
        missing = dict.fromkeys(column for column in columns if column not in values)
        for row in zip(*values.values(), strict=True):
            found = dict(zip(names, row, strict=True)) | missing
            yield {column: found[column] for column in columns}


def _plain_arrow(array: Any) -> list[Any]:
    import pyarrow as pa  # type: ignore[import-untyped]

    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items, offsets = _plain_arrow(array.values), array.offsets.to_pylist()
        spans = zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
        return [items[first:end] if there else None for first, end, there in spans]
    if pa.types.is_struct(kind):
        fields = {kind.field(n).name: _plain_arrow(array.field(n)) for n in range(kind.num_fields)}
        rows = (dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True))
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.cast(pa.int64())
    plain: list[Any] = array.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else unscaled_bytes(f"{value:f}") for value in plain]
    if pa.types.is_map(kind):
        return [None if value is None else dict(value) for value in plain]
    return plain


def _read_search(search: Search, name: str) -> ViewState:
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
                    f'view "{name}" was at no finished cut for {_IDLE_WAIT_S:.0f} s',
                    detail="Batches follow one another without a pause, or one was cut short.",
                    hint="Is `tailrace views follow` running? A batch that was cut short is done by its next start.",
                )
            time.sleep(0.02)


def _finished_cut(client: Any, search: Search, name: str) -> tuple[str, int, Cut] | None:
    """Return index, generation and cut of the live generation; None while a batch is in flight."""
    from tailrace.sinks.opensearch.target import alias_of, cut_id, cuts_index

    aliased = client.indices.get_alias(name=alias_of(search, name), params={"ignore": 404})
    index = next((key for key, value in aliased.items() if isinstance(value, dict) and "aliases" in value), None)
    if index is None:
        raise _not_made(name)
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
