"""The rows of all tables that a job looks up, by topic."""

from __future__ import annotations

import threading

from tailrace.schemas.config.model import Warehouse
from tailrace.sinks.iceberg.direct.writers import index_folder
from tailrace.spark_jobs.lookup.row_form import RowForm, has_form
from tailrace.spark_jobs.lookup.table_rows import NotKnown, TableRows
from tailrace.spark_jobs.topics.shapes import TableShapes


class KnownTables:
    """The rows of the tables that the queries of a job read. The methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, TableRows] = {}

    def of(self, warehouse: Warehouse | None, topic: str, shapes: TableShapes) -> TableRows:
        """Return the rows of a table with its present columns. `NotKnown` if there is no place for them."""
        from pyspark.sql.pandas.types import to_arrow_type

        types = {name: to_arrow_type(kind) for name, kind in shapes.columns.items()}
        form = RowForm({name: kind for name, kind in types.items() if has_form(kind)}, tuple(shapes.key))
        folder = index_folder(warehouse) if warehouse is not None else None
        if folder is None:
            raise NotKnown("there is no home folder for rows: set warehouse.index_dir")
        if not set(form.key) <= set(form.columns):
            raise NotKnown("a key column has a nested type")
        with self._lock:
            known = self._tables.get(topic)
            if known is not None and known.form.identity != form.identity:
                known.close()
                known = None
            if known is None:
                known = self._tables[topic] = TableRows(folder / ".rows" / topic, form)
            return known

    def close(self) -> None:
        """Release the folders for other processes."""
        for rows in self._tables.values():
            rows.close()
