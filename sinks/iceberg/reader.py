"""Read views in a warehouse without Spark: rows at a cut, and the generations that exist.

Values are as in the topic without Avro's logical types: days, microseconds, unscaled decimal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.iceberg.layout import TableLayout
from tailrace.sinks.opensearch.documents import unscaled_bytes
from tailrace.sinks.target.kind import There, not_made
from tailrace.sinks.target.protocol import Applied, HistoryFrom

if TYPE_CHECKING:
    from pyiceberg.table import Table

_NUMBERED: Final = re.compile(r"g(\d+)")


@dataclass(frozen=True, slots=True)
class StoredView:
    """A view's table in the warehouse, at one snapshot; `table` is pyiceberg's."""

    table: Any
    snapshot_id: int
    cut: Cut
    generation: int
    history_from: HistoryFrom | None
    soft_deletes: bool = False

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
            raise not_made(name) from None
    # The data is from the current snapshot; the cut is from the newest ancestor that has one.
    data = snapshot = table.current_snapshot()
    while snapshot is not None and (snapshot.summary is None or snapshot.summary.get("tailrace.cut") is None):
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    if data is None or snapshot is None or snapshot.summary is None:
        raise not_made(name)
    cut = Cut.from_json(snapshot.summary["tailrace.cut"] or "")
    generation = int(snapshot.summary["tailrace.generation"] or 0)
    begins = snapshot.summary.get("tailrace.history_from")
    if record is not None and record.cut is not None and record.snapshot_id == snapshot.snapshot_id:
        # Later cuts that changed no row are only on the topic.
        newer = record.cut.order > cut.order
        cut = record.cut if newer and record.generation == generation else cut
    history_from = HistoryFrom.from_json(begins) if begins else None
    soft = TableLayout.from_json(snapshot.summary.get("tailrace.layout")).soft_deletes
    return StoredView(table, data.snapshot_id, cut, generation, history_from, soft)


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


def stored_generations(warehouse: Warehouse, name: str) -> There:
    """Return the generations of a view in the warehouse."""
    from pyiceberg.exceptions import NoSuchTableError

    file = warehouse.sqlite_file
    if file is not None and not Path(file).exists():
        return There({}, None)
    with opened(warehouse) as catalog:
        try:
            table = catalog.load_table((warehouse.namespace, name))
        except NoSuchTableError:
            return There({}, None)
        live = _applied(table, "main")
        if live is None:
            return There({}, None)
        found = {live.generation: live}
        beside = [(ref, table, ref) for ref in table.metadata.refs]
        for *_, other in catalog.list_tables(warehouse.namespace):
            if other.startswith(f"{name}__g"):
                own = catalog.load_table((warehouse.namespace, other))
                beside.append((other.removeprefix(f"{name}__"), own, "main"))
        for numbered, of, ref in beside:
            match, applied = _NUMBERED.fullmatch(numbered), _applied(of, ref)
            if match and applied is not None and applied.generation == int(match[1]):
                found.setdefault(applied.generation, applied)
        return There(found, live)


def _applied(table: Table, ref: str) -> Applied | None:
    """Return the state recorded by the newest ancestor with a cut; None if there is none."""
    snapshot = table.snapshot_by_name(ref)
    while snapshot is not None:
        summary = snapshot.summary
        if summary is not None and (cut := summary.get("tailrace.cut")) is not None:
            number = int(summary.get("tailrace.generation") or 0)
            return Applied(number, Cut.from_json(cut), snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return None
