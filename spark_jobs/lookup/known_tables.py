"""The rows of all tables and views that a job looks up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.reasons import reason
from tailrace.sinks.iceberg.direct.writers import index_folder
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.lookup.row_form import RowForm, has_form
from tailrace.spark_jobs.lookup.table_rows import Log, Moment, NotKnown, TableRows, doubt

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


_LOG: Final = logging.getLogger("tailrace.warehouse")
_MANY_ROWS: Final = 100_000
"""Reading so many rows takes about a second, so that a batch is visibly longer."""


class Layout(Protocol):
    """The columns and the key of a table or a view, as they are now."""

    @property
    def columns(self) -> Mapping[str, DataType]: ...

    @property
    def key(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class ViewLayout:
    """The columns and the key of a view's table."""

    columns: Mapping[str, DataType]
    key: tuple[str, ...]


def rows_of_view(warehouse: Warehouse | None, view: str) -> str:
    """Return the name that the rows of a view have among those of the tables, which have the names of their topics."""
    return f"@{warehouse.namespace if warehouse is not None else ''}.{view}"


def sums_of_view(warehouse: Warehouse | None, view: str) -> str:
    """Return the name that the sums of a view's groups have among the rows."""
    return f"{rows_of_view(warehouse, view)}@sums"


def rows_of_table(topic: str, *, commits: bool) -> str:
    """Return the name that the rows of a captured table have; `commits`: those with their commit columns."""
    return f"{topic}@commits" if commits else topic


def _folder(warehouse: Warehouse | None, name: str) -> Path | None:
    folder = index_folder(warehouse) if warehouse is not None else None
    return None if folder is None else folder / ".rows" / name


class KnownTables:
    """The rows of the tables and views that the queries of a job read. The methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, TableRows] = {}
        self._noted: dict[str, str] = {}
        """The last reason in the log, for each view."""
        self._large: set[str] = set()
        """The views whose last batch was too large to say what it changed."""

    def of(self, warehouse: Warehouse | None, name: str, layout: Layout, what: str = "") -> TableRows:
        """Return the rows of a table with its present columns. `NotKnown` if there is no place for them.

        `name` is that of `rows_of_table`, `rows_of_view` or `sums_of_view`; `what` tells rows apart that have the same
        name and columns.
        """
        from pyspark.sql.pandas.types import to_arrow_type

        types = {column: to_arrow_type(kind) for column, kind in layout.columns.items()}
        form = RowForm({column: kind for column, kind in types.items() if has_form(kind)}, tuple(layout.key), what)
        folder = _folder(warehouse, name)
        if folder is None:
            raise NotKnown("there is no home folder for rows: set warehouse.index_dir")
        if not set(form.key) <= set(form.columns):
            raise NotKnown("a key column has a nested type")
        with self._lock:
            known = self._tables.get(name)
            if known is not None and known.form.identity != form.identity:
                known.close()
                known = None
            if known is None:
                known = self._tables[name] = TableRows(folder, form)
            return known

    def doubt(self, warehouse: Warehouse | None, name: str) -> None:
        """Have all processes read rows again: the wrong ones may be of the same origin as what was repaired."""
        folder = _folder(warehouse, name)
        if folder is not None:
            doubt(folder)

    def note(self, view: str, why: str) -> None:
        """Log once why small batches of a view read whole tables."""
        if self._noted.get(view) != why:
            self._noted[view] = why
            _LOG.info('view "%s": a small batch reads its inputs: %s', view, why)

    def bring_to(
        self, commit: int, view: str, rows: TableRows, read: Callable[[int], Iterable[Any]], log: Log, level_ms: int
    ) -> None:
        """Fill a view's rows with those of a commit, unless that is what they are; the caller holds their `renewal`.

        `read` returns the Arrow batches of a commit. `NotKnown` if that is impossible, or of no use for longer than a
        batch: the view's last one was large.
        """
        known = rows.moment(log)
        if known is not None and known[0] == (commit,):
            return
        with self._lock:
            is_large = any(self._tables.get(name) is rows for name in self._large)
        if is_large:
            raise NotKnown(f'the last batch of view "{view}" was large')
        fill(rows, view, read(commit), (commit,), log, level_ms)

    def changed(self, name: str, before: int | None, after: int | None, changes: FewRows | None, log: Log) -> None:
        """Apply what one commit to a view's table has changed, if its rows are known and as of the commit `before`.

        `changes` has one row for each changed key and a column `DELETED`; None: they are too many. Rows of another
        state are left as they are: whoever needs them finds that they are of another commit.
        """
        import pyarrow as pa  # type: ignore[import-untyped]

        with self._lock:
            rows = self._tables.get(name)
            if changes is None:
                self._large.add(name)
            else:
                self._large.discard(name)
        if rows is None or before is None or after is None or changes is None:
            return
        with rows.renewal, suppress(NotKnown):
            known = rows.moment(log)
            if known is None or known[0] != (before,):
                return
            try:
                changed = changes.arrow()
                rows.advance(changed, changed.column(DELETED).to_pylist(), (after,), known[1])
            except pa.ArrowException:
                # values that are wider than the columns were when the rows were filled
                rows.drop()

    def close(self) -> None:
        """Release the folders for other processes."""
        for rows in self._tables.values():
            rows.close()


def fill(rows: TableRows, name: str, batches: Iterable[Any], moment: Moment, log: Log, level_ms: int) -> None:
    """Replace all rows of a table or view, called `name`, by those of Arrow batches. `NotKnown` if it cannot be read.

    `level_ms` is a time at which the moment was the newest.
    """
    began = time.monotonic()
    try:
        count = rows.fill(batches, moment, log, level_ms)
    except NotKnown:
        raise
    except Exception as error:
        # Spark may have rights, or a file system, that this process has not
        rows.drop()
        raise NotKnown(f"the rows of {name} cannot be read here: {reason(error)}") from None
    level = logging.INFO if count >= _MANY_ROWS else logging.DEBUG
    _LOG.log(level, "rows for lookups read: %s: %d rows in %.1f s", name, count, time.monotonic() - began)
