"""The sums of a query's groups, in a local file beside the rows that its batches look up (`spark_jobs.query.sums`).

They are those of the view's applied state, or of no use: then they are computed from the base tables, and until then
batches recompute groups. To lose them costs only that. A batch changes them once its commit has succeeded.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Context, localcontext
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.direct.key_bytes import key_bytes
from tailrace.spark_jobs.lookup.known_tables import KnownTables, ViewLayout, fill, sums_of_view
from tailrace.spark_jobs.lookup.row_form import RowForm
from tailrace.spark_jobs.lookup.table_rows import Log, Moment, NotKnown, TableRows
from tailrace.spark_jobs.maintain.input_rows import MOST_REACHED
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.sums import ROWS, SIGN, Sums
from tailrace.spark_jobs.topics.cuts import SeenCut

OverOld = Callable[[str], DataFrame]
"""Plans a statement over the inputs at the cut of the applied state."""

_WORTH: Final = 2
"""After so many small batches in a row, more are expected, for which the sums are worth computing."""

_READ_ROWS: Final = 50_000
"""Groups that are in memory at a time while they are read."""

_DIGITS: Final = 80
"""Of the arithmetic with decimals, which have up to 38: nothing is rounded."""

_EXACT: Final = (LongType, DecimalType)
"""Types of sums that do not depend on the order of values."""

_UNITS: Final = (
    *(BinaryType, BooleanType, DateType, DecimalType, IntegralType, StringType),
    *(TimestampNTZType, TimestampType),
)
"""Types of what groups are told apart by. Not floating point, which has values that are equal, but not the same."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The sums of one query, with the columns that Spark gives them."""

    sums: Sums
    schema: StructType
    rows: TableRows


@dataclass(frozen=True, slots=True)
class _Next:
    """The changed groups at the state that a batch leads to."""

    moment: Moment
    level_ms: int
    groups: Any
    """An Arrow table, in which empty groups have 0 rows; None if no group has changed."""


@dataclass(slots=True)
class GroupSums:
    """The sums of one view's groups. `moment` returns what tells states of the query's inputs apart."""

    view: str
    config: Config
    known: KnownTables
    moment: Callable[[Cut], Moment]
    _query: DeclaredQuery | None = field(default=None, init=False)
    _stored: _Stored | None = field(default=None, init=False)
    """Those of `_query`; None if they are not exact."""
    _waited: int = field(default=0, init=False)
    """The number of small batches in a row that could not use the sums."""
    _applied: Moment = field(default=(), init=False)
    _next: _Next | None = field(default=None, init=False)

    def ready(self, query: DeclaredQuery, applied: Cut, seen: SeenCut, over_old: OverOld) -> bool:
        """Whether a batch can bring the groups forward by their sums: they are exact and known as of `applied`."""
        self._next, self._applied = None, ()
        # elsewhere, tasks cannot write files of this machine
        if query.sums is None or not self.config.spark.master.startswith("local"):
            return False
        try:
            if query is not self._query:
                self._query, self._stored = query, None
                self._stored = self._opened(query.sums, over_old)
            stored = self._stored
            if stored is None:
                return False
            self._applied, log = self.moment(applied), Log.of(applied)
            with stored.rows.renewal:
                there = stored.rows.moment(log)
                if there is None or there[0] != self._applied:
                    self._waited += 1
                    if self._waited < _WORTH:
                        return False
                    self._fill(stored, over_old, log, seen.level_ms)
        except NotKnown as error:
            self.known.note(self.view, str(error))
            return False
        self._waited = 0
        return True

    @property
    def schema(self) -> StructType:
        """The columns of the sums that are `ready`."""
        return self._ready().schema

    def around(self, added: Any, seen: SeenCut) -> tuple[Any, Any]:
        """Return the sums of the groups of `added`, the first step's result: as they are, and with what it adds.

        Arrow tables without empty groups. NotKnown if the sums cannot be right, or do not fit their types.
        """
        stored = self._ready()
        form = stored.rows.form
        units = added.group_by(list(form.key)).aggregate([])
        values = [_array(units, name) for name in form.key]
        found = stored.rows.rows(self._applied, form.key, values, MOST_REACHED) if units.num_rows else {}
        before = form.decode(list(found.values()))
        try:
            after = add(before, units, added, form)
        except NotKnown:
            stored.rows.drop()
            raise
        self._next = _Next(self.moment(seen.cut), seen.level_ms, after)
        return before, after.filter(pc.greater(after.column(ROWS), 0))

    def pass_over(self, seen: SeenCut) -> None:
        """Note that the batch changes no group."""
        if self._applied:
            self._next = _Next(self.moment(seen.cut), seen.level_ms, None)

    def committed(self, cut: Cut) -> None:
        """Bring the sums to the state of the last batch, if that is the one at `cut` and they were `ready` for it."""
        done, self._next = self._next, None
        if done is None:
            return
        rows = self._ready().rows
        with rows.renewal:
            try:
                known = rows.moment(Log.of(cut))
                if known is None or known[0] != self._applied or done.moment != self.moment(cut):
                    return
                if done.groups is not None and done.groups.num_rows:
                    empty = [count == 0 for count in done.groups.column(ROWS).to_pylist()]
                    rows.advance(done.groups, empty, done.moment, done.level_ms)
                else:
                    rows.pass_over(done.moment, done.level_ms)
            except NotKnown as error:
                self.known.note(self.view, str(error))

    def skip(self) -> None:
        """Note a batch that reads its inputs: the sums are not computed for the next one alone."""
        self._waited, self._next = 0, None

    def doubt(self) -> None:
        """Have the sums computed again: rows of the view were wrong, or all are new."""
        self.known.doubt(self.config.warehouse, sums_of_view(self.config.warehouse, self.view))

    def _ready(self) -> _Stored:
        assert self._stored is not None
        return self._stored

    def _opened(self, sums: Sums, over_old: OverOld) -> _Stored | None:
        try:
            schema = over_old(sums.over("old")).schema
        except ConfigError as error:
            raise NotKnown(f"Spark cannot compute the sums: {reason(error)}") from None
        if not _is_exact(schema, sums):
            return None
        layout = ViewLayout({each.name: each.dataType for each in schema}, tuple(sums.units))
        what = hashlib.sha256(sums.over("old").encode()).hexdigest()
        name = sums_of_view(self.config.warehouse, self.view)
        return _Stored(sums, schema, self.known.of(self.config.warehouse, name, layout, what))

    def _fill(self, stored: _Stored, over_old: OverOld, log: Log, level_ms: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tailrace-sums-") as folder:
            # not collected: there may be any number of groups
            over_old(stored.sums.over("old")).write.parquet(f"file:{folder}/sums")
            batches = _batches(Path(folder) / "sums")
            fill(stored.rows, f'the groups of view "{self.view}"', batches, self._applied, log, level_ms)


def add(before: Any, units: Any, added: Any, form: RowForm) -> Any:
    """Return the sums of groups after a batch, an Arrow table of `form`.

    `before` are those that exist of the groups `units`, `added` what the batch adds to them. NotKnown if a group would
    have less than no rows, or a sum does not fit its type.
    """
    groups = {key: number for number, key in enumerate(_keys(units, form))}
    parts = [(before, [1] * before.num_rows), (added, added.column(SIGN).to_pylist())]
    after = {name: [0] * len(groups) for name in form.columns if name not in form.key}
    with localcontext(Context(prec=_DIGITS)):
        for table, signs in parts:
            places = [groups[key] for key in _keys(table, form)]
            for name, values in after.items():
                for place, sign, value in zip(places, signs, table.column(name).to_pylist(), strict=True):
                    values[place] += sign * (value or 0)
    _check(before, after)
    for name, values in after.items():
        if name.startswith("s"):
            counts = after[f"c{name[1:]}"]
            # the sum of no value is NULL
            after[name] = [value if count else None for value, count in zip(values, counts, strict=True)]  # type: ignore[misc]
    columns = {name: _array(units, name) for name in form.key}
    try:
        columns |= {name: pa.array(values, form.columns[name]) for name, values in after.items()}
    except (pa.ArrowInvalid, OverflowError):
        raise NotKnown("a sum does not fit its type") from None
    return pa.table([columns[name] for name in form.columns], schema=form.schema)


def _check(before: Any, after: Mapping[str, list[int]]) -> None:
    for name in after:
        if name.startswith("s"):
            there = zip(before.column(f"c{name[1:]}").to_pylist(), before.column(name).to_pylist(), strict=True)
            if any(count and value is None for count, value in there):
                raise NotKnown("a sum does not fit its type")
        elif any(count < 0 for count in after[name]):
            raise NotKnown("more is taken away from a group than it has")


def _is_exact(schema: StructType, sums: Sums) -> bool:
    kinds: dict[str, DataType] = {each.name: each.dataType for each in schema}
    exact = all(isinstance(kinds[f"s{number}"], _EXACT) for number in sums.summed)
    return exact and all(isinstance(kinds[unit], _UNITS) for unit in sums.units)


def _batches(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.parquet")):
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(_READ_ROWS)


def _keys(table: Any, form: RowForm) -> list[bytes]:
    return key_bytes([_array(table, name) for name in form.key]) if table.num_rows else []


def _array(table: Any, name: str) -> Any:
    return table.column(name).combine_chunks()
