"""Data files of an Iceberg table in Parquet: write rows, read keys or all rows.

Columns are known by Iceberg's field ids, so that renamed and widened ones are found in older files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

_ROW_ID: Final = "_row_id"
_ROW_ID_FIELD: Final = 2147483540
"""Iceberg's reserved field id of `_row_id`."""
_CHANGED: Final = "_last_updated_sequence_number"
_CHANGED_FIELD: Final = 2147483539
"""The same of `_last_updated_sequence_number`: https://iceberg.apache.org/spec/#row-lineage"""
_FIELD_ID: Final = b"PARQUET:field_id"
_READ_ROWS: Final = 65_536


@lru_cache(maxsize=16)
def arrow_schema(schema_json: str) -> Any:
    """Return an Iceberg schema, given as JSON, for Arrow, with field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    return schema_to_pyarrow(Schema.model_validate_json(schema_json))


def data_file(
    rows: Any, row_ids: Sequence[int | None], schema: Any, changed: Sequence[int | None] | None = None
) -> bytes:
    """Return an Arrow table as a data file; a column of `schema` that it lacks is null.

    `row_ids` are the ids that rows had before, None for new ones: Iceberg gives these the next ids. `changed` are the
    sequence numbers of the commits that changed the rows last, if that is not the commit of this file.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    given = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in given else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    if any(row_id is not None for row_id in row_ids):
        columns.append(pa.array(row_ids, pa.int64()))
        schema = schema.append(pa.field(_ROW_ID, pa.int64(), metadata={_FIELD_ID: str(_ROW_ID_FIELD)}))
    if changed is not None:
        columns.append(pa.array(changed, pa.int64()))
        schema = schema.append(pa.field(_CHANGED, pa.int64(), metadata={_FIELD_ID: str(_CHANGED_FIELD)}))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema),
        sink,
        compression="zstd",
        # As Spark writes them; Iceberg's readers expect this form of small decimals.
        store_decimal_as_integer=True,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def read_keys(stream: Any, wanted: Sequence[Any]) -> Iterator[tuple[list[Any], list[int | None] | None]]:
    """Yield the columns of a data file in batches, as Arrow arrays, and the row ids that it has, if any.

    `wanted` are fields of `arrow_schema`; a column that the file lacks is null.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(stream) as file:
        names = {_field_id(field): field.name for field in file.schema_arrow}
        columns = [names.get(_field_id(field)) for field in wanted]
        row_ids = names.get(_ROW_ID_FIELD)
        for batch in file.iter_batches(_READ_ROWS, columns=[each for each in (*columns, row_ids) if each is not None]):
            arrays = [
                pa.nulls(batch.num_rows, field.type) if name is None else batch.column(name)
                for name, field in zip(columns, wanted, strict=True)
            ]
            yield arrays, None if row_ids is None else batch.column(row_ids).to_pylist()


def read_rows(stream: Any, schema: Any) -> tuple[Any, list[int | None] | None, list[int | None] | None]:
    """Return a data file as an Arrow table of `schema`, the row ids that it has, if any, and their last changes.

    A column that the file lacks is null. ArrowInvalid or ArrowNotImplementedError if Arrow cannot convert a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(stream) as file:
        read = file.read()
    places = {_field_id(field): place for place, field in enumerate(read.schema)}
    columns = [
        pa.nulls(len(read), field.type)
        if (place := places.get(_field_id(field))) is None
        else read.column(place).cast(field.type)
        for field in schema
    ]
    row_ids, changed = (
        None if (place := places.get(number)) is None else read.column(place).to_pylist()
        for number in (_ROW_ID_FIELD, _CHANGED_FIELD)
    )
    return pa.Table.from_arrays(columns, schema=schema), row_ids, changed


def _field_id(field: Any) -> int | None:
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)
