"""The direct writers of one view: one for each generation that is being written, each with its index's folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.reasons import reason
from tailrace.schemas.state_folder import state_folder
from tailrace.sinks.iceberg.catalog import properties as catalog_properties
from tailrace.sinks.iceberg.direct.compaction import Merged, merge_small
from tailrace.sinks.iceberg.direct.java_table import JavaApi, JavaTable
from tailrace.sinks.iceberg.direct.key_index import remove
from tailrace.sinks.iceberg.direct.writer import CannotWrite, DirectWriter, append, replace
from tailrace.sinks.iceberg.place import Place
from tailrace.sinks.target.spooled_rows import SpooledRows

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger("tailrace.warehouse")
_MANY_ROWS: Final = 10_000
"""Reading so many keys takes some ten milliseconds, so that a batch is visibly longer."""


def index_folder(warehouse: Warehouse) -> Path | None:
    """Return the folder of all key indexes of a catalog; None if none is configured and there is no home folder.

    It is beside the SQLite catalog if there is one, otherwise in the service's or the user's state folder.
    """
    if warehouse.index_dir is not None:
        return Path(warehouse.index_dir)
    if (file := warehouse.sqlite_file) is not None:
        return Path(file).absolute().parent / "indexes"
    folder = state_folder()
    return folder / "indexes" / hashlib.sha256(warehouse.uri.encode()).hexdigest()[:16] if folder is not None else None


class DirectWriters:
    """Opens a writer at the first small batch of a generation and keeps it; at most one for each of two generations."""

    def __init__(self, session: SparkSession, warehouse: Warehouse) -> None:
        self._session = session
        self._warehouse = warehouse
        self._writers: dict[Place, tuple[tuple[str, ...], DirectWriter]] = {}
        self._noted: dict[Place, str] = {}

    def merge(self, place: Place, table: Any, changes: Any, key: Sequence[str], properties: Mapping[str, str]) -> bool:
        """Apply an Arrow table of changes to a generation; False if `MERGE` has to do it. `table` is Java's table."""
        java = JavaTable(self._api, table, place.ref)
        try:
            writer = self._writer(place, java, key)
            writer.merge(java, changes, properties)
        except CannotWrite as error:
            self._note(place, str(error))
            return False
        if writer.rows_indexed:
            level = logging.INFO if writer.rows_indexed >= _MANY_ROWS else logging.DEBUG
            _LOG.log(level, "key index updated: %s: keys of %d rows read", place.table, writer.rows_indexed)
        return True

    def append(self, place: Place, table: Any, rows: Any, properties: Mapping[str, str]) -> bool:
        """Add the rows of an Arrow table to a generation; False if `INSERT` has to do it."""
        try:
            append(JavaTable(self._api, table, place.ref), rows, properties)
        except CannotWrite as error:
            self._note(place, str(error))
            return False
        return True

    def replace(self, place: Place, table: Any, rows: SpooledRows, properties: Mapping[str, str]) -> None:
        """Make rows the whole content of a generation."""
        replace(JavaTable(self._api, table, place.ref), rows.tables(), properties)

    def merge_small(self, place: Place, table: Any, target_bytes: int) -> Merged | None:
        """Merge the small data files of a generation; None if Iceberg's own procedure has to do it."""
        java = JavaTable(self._api, table, place.ref)
        try:
            return merge_small(java, self._io(java), target_bytes)
        except CannotWrite:
            return None

    def _note(self, place: Place, reason: str) -> None:
        """Log once why Spark writes the batches of a generation."""
        if self._noted.get(place) != reason:
            self._noted[place] = reason
            _LOG.info("small batch written by Spark: %s: %s", place.table, reason)

    def _writer(self, place: Place, table: JavaTable, key: Sequence[str]) -> DirectWriter:
        known = self._writers.get(place)
        if known is not None and known[0] == tuple(key):
            return known[1]
        self.forget(place)
        folder = self._folder(place)
        if folder is None:
            raise CannotWrite("there is no home folder for the key index: set warehouse.index_dir")
        writer = DirectWriter(folder, self._io(table), key)
        self._writers[place] = tuple(key), writer
        return writer

    def _io(self, table: JavaTable) -> FileIO:
        from pyiceberg.io import load_file_io

        try:
            return load_file_io(catalog_properties(self._warehouse), table.location)
        except Exception as error:
            raise CannotWrite(f"its data files cannot be read here: {reason(error)}") from None

    @cached_property
    def _api(self) -> JavaApi:
        return JavaApi(self._session)

    def forget(self, place: Place) -> None:
        """Close the writer of a generation; its index stays."""
        known = self._writers.pop(place, None)
        if known is not None:
            known[1].close()

    def close(self) -> None:
        """Close all writers; their indexes stay."""
        for place in list(self._writers):
            self.forget(place)

    def drop(self, place: Place) -> None:
        """Close the writer of a generation that is dropped, and delete its index."""
        self.forget(place)
        folder = self._folder(place)
        if folder is not None:
            remove(folder)

    def _folder(self, place: Place) -> Path | None:
        folder = index_folder(self._warehouse)
        return folder / self._warehouse.namespace / f"{place.table}@{place.ref}" if folder is not None else None
