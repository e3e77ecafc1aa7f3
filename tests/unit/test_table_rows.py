"""Rows that batches look up: every value comes back as it was, as of each moment, whatever happens to the folder."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tailrace.spark_jobs.lookup.row_form import RowForm, has_form
from tailrace.spark_jobs.lookup.table_rows import Log, Moment, NotKnown, Rows, TableRows, doubt

_LOG = Log("7", 1)
_FORM = RowForm({"k": pa.int64(), "part": pa.string(), "g": pa.int32(), "v": pa.string()}, ("k", "part"))
_MOST = 10_000

Model = dict[tuple[int, str], tuple[int | None, str | None]]


def test_every_value_comes_back_as_it_was() -> None:
    values: dict[str, tuple[Any, list[Any]]] = {
        "text": (pa.string(), ["", "a\x01\u20ac\U0001f600", None]),
        "small": (pa.int16(), [-(2**15), 2**15 - 1, None]),
        "large": (pa.int64(), [-(2**63), 2**63 - 1, None]),
        "yes": (pa.bool_(), [True, False, None]),
        "double": (pa.float64(), [-0.0, math.inf, None]),
        "nan": (pa.float64(), [math.nan, 5e-324, None]),
        "single": (pa.float32(), [math.nan, -0.0, None]),
        "number": (
            pa.decimal128(38, 10),
            [Decimal("0E-10"), Decimal("-9999999999999999999999999999.9999999999"), None],
        ),
        "whole": (pa.decimal128(3, 0), [Decimal(0), Decimal(-999), None]),
        "day": (pa.date32(), [date.min, date(9999, 12, 31), None]),
        "at": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None]),
        "local": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), None]),
        "bytes": (pa.binary(), [b"", bytes(range(256)), None]),
    }
    assert all(has_form(kind) for kind, _ in values.values())
    form = RowForm({name: kind for name, (kind, _) in values.items()}, ("text",))
    rows = pa.table({name: pa.array(given, kind) for name, (kind, given) in values.items()}, schema=form.schema)
    found = form.decode(form.encode(rows))
    for name, (kind, _) in values.items():
        bits = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}.get(kind)
        mine, its = (table.column(name).combine_chunks() for table in (rows, found))
        assert (mine.view(bits), its.view(bits)) == (mine.view(bits),) * 2 if bits else mine.equals(its), name
    # years that Python has no date for
    far = pa.table({"at": pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us"))})
    form = RowForm({"at": pa.timestamp("us")}, ())
    assert form.decode(form.encode(far)).equals(far)
    assert form.decode([]).num_rows == 0


def test_columns_without_a_form_and_missing_ones() -> None:
    assert not any(
        map(has_form, (pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int8())))
    )
    given = pa.table({"g": pa.array([1], pa.int64()), "k": pa.array([2], pa.int32()), "more": [3]})
    assert _FORM.aligned(given).to_pylist() == [{"k": 2, "part": None, "g": 1, "v": None}]


class _Table:
    """The rows of a table and a model of them, at every moment so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rows = TableRows(folder, _FORM)
        self.random = random.Random(seed)
        self.models: dict[Moment, Model] = {}
        self.moment: Moment = (0, 0)
        self.model: Model = {}

    def fill(self) -> None:
        for _ in range(self.random.randint(0, 60)):
            self.model[self._key()] = self._value()
        whole = _arrow(self.model)
        assert self.rows.fill(whole.to_batches(max_chunksize=7), self.moment, _LOG, 0) == len(self.model)
        self.models = {self.moment: dict(self.model)}

    def advance(self) -> None:
        changed: dict[tuple[int, str], tuple[int | None, str | None] | None] = {}
        for _ in range(self.random.randint(0, 12)):
            changed[self._key()] = None if self.random.random() < 0.3 else self._value()
        self.moment = (self.moment[0] + len(changed), self.moment[1] + 1)
        for key, value in changed.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        rows = _arrow({key: value or (None, None) for key, value in changed.items()})
        self.rows.advance(rows, [value is None for value in changed.values()], self.moment, 0)
        self.models[self.moment] = dict(self.model)

    def check(self, moment: Moment) -> None:
        model = self.models[moment]
        for by, column in (("g", 0), ("v", 1)):
            wanted = [self.random.choice([None, 0, 1, 2]) for _ in range(2)]
            values = [None if each is None or column == 0 else str(each) for each in wanted] if column else wanted
            found = self.rows.rows(moment, (by,), [pa.array(values, _FORM.columns[by])], _MOST)
            assert _model(found) == {key: row for key, row in model.items() if row[column] in values}
        keys = [self._key() for _ in range(5)]
        arrays = [pa.array([key[0] for key in keys], pa.int64()), pa.array([key[1] for key in keys], pa.string())]
        found = self.rows.rows(moment, ("k", "part"), arrays, _MOST)
        assert _model(found) == {key: row for key, row in model.items() if key in keys}

    def _key(self) -> tuple[int, str]:
        return self.random.randint(0, 20), self.random.choice("ab")

    def _value(self) -> tuple[int | None, str | None]:
        return self.random.choice([None, 0, 1, 2]), self.random.choice([None, "0", "1", "2"])


def _arrow(model: Any) -> Any:
    columns = [(*key, *value) for key, value in model.items()]
    return pa.table(
        {name: pa.array([row[n] for row in columns], kind) for n, (name, kind) in enumerate(_FORM.columns.items())},
        schema=_FORM.schema,
    )


def _model(rows: Rows) -> Model:
    return {(row["k"], row["part"]): (row["g"], row["v"]) for row in _FORM.decode(list(rows.values())).to_pylist()}


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_a_model_at_the_last_moments(tmp_path: Path, seed: int) -> None:
    table = _Table(tmp_path / "rows", seed)
    table.fill()
    for number in range(12):
        if number == table.random.randint(0, 11):
            # another process goes on with the folder
            table.rows.close()
            table.rows = TableRows(tmp_path / "rows", _FORM)
            assert table.rows.moment(_LOG) == (table.moment, 0)
            table.models = {table.moment: table.models[table.moment]}
        table.advance()
        known = list(table.models)[-9:]
        for moment in known:
            table.check(moment)
        start, end = sorted(table.random.choices(known, k=2))
        before, after = table.rows.images(start, end)
        old, new = table.models[start], table.models[end]
        mine = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        assert mine <= _model(before).keys() | _model(after).keys()
        assert {key: old[key] for key in _model(before)} == _model(before)
        assert {key: new[key] for key in _model(after)} == _model(after)
        for key in _model(before).keys() ^ _model(after).keys():
            assert (key in old, key in new) == (key in _model(before), key in _model(after))
    if len(table.models) > 9:
        with pytest.raises(NotKnown, match="before this batch"):
            table.check(next(iter(table.models)))
    table.rows.close()


def test_moments_of_another_log_or_form_are_not_known(tmp_path: Path) -> None:
    table = _Table(tmp_path / "rows", 1)
    assert table.rows.moment(_LOG) is None
    table.fill()
    assert table.rows.moment(_LOG) == ((0, 0), 0)
    assert table.rows.moment(Log("7", 2)) is None
    assert table.rows.moment(Log("8", 1)) is None
    table.rows.close()
    other = TableRows(tmp_path / "rows", RowForm(dict(_FORM.columns), ("k",)))
    assert other.moment(_LOG) is None
    other.close()


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    table = _Table(tmp_path / "rows", 2)
    table.model = {(number, "a"): (1, None) for number in range(50)}
    table.rows.fill([_arrow(table.model)], (0,), _LOG, 0)
    wanted = [pa.array([1], pa.int32())]
    assert len(table.rows.rows((0,), ("g",), wanted, 50)) == 50
    with pytest.raises(NotKnown, match="more than 49 rows"):
        table.rows.rows((0,), ("g",), wanted, 49)
    table.rows.close()


def test_another_process_that_has_the_folder_is_left_alone(tmp_path: Path) -> None:
    table = _Table(tmp_path / "rows", 3)
    table.fill()
    other = TableRows(tmp_path / "rows", _FORM)
    for use in (lambda: other.moment(_LOG), lambda: other.fill([], (0,), _LOG, 0)):
        with pytest.raises(NotKnown, match="cannot be opened"):
            use()
    table.check((0, 0))
    table.rows.close()


def test_doubted_rows_are_read_again_by_whatever_process_uses_them(tmp_path: Path) -> None:
    table = _Table(tmp_path / "rows", 3)
    table.fill()
    doubt(tmp_path / "rows")
    assert table.rows.moment(_LOG) is None
    with pytest.raises(NotKnown):
        table.check((0, 0))
    table.fill()
    table.check((0, 0))
    table.rows.close()
    # also by one that was not there then
    doubt(tmp_path / "rows")
    later = TableRows(tmp_path / "rows", _FORM)
    assert later.moment(_LOG) is None
    later.close()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    for at in range(0, len(content), 64):
        content[at] ^= 0xFF
    file.write_bytes(content)


def many(folder: Path) -> _Table:
    """Return a table of several files, not written yet."""
    table = _Table(folder, 4)
    table.model = {(number, "a"): (number % 3, "v" * 400) for number in range(30_000)}
    return table


def fill_and_end(folder: Path) -> None:
    """Write it and end this process as if it were killed: its last rows are in the log only."""
    table = many(folder)
    table.rows.ensure_index(("g",))
    table.rows.fill(_arrow(table.model).to_batches(max_chunksize=2000), (0, 0), _LOG, 0)
    os._exit(0)


def _flip(file: Path) -> None:
    """Change one byte in the first half."""
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 0x01
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _spoil, _flip], ids=["deleted", "cut", "spoilt", "flipped"])
@pytest.mark.parametrize("kind", ["*.sst", "*.log", "MANIFEST-*", "CURRENT"])
def test_a_damaged_folder_costs_only_time(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    """Either nothing is known any more, or what is known is exact."""
    folder = tmp_path / "rows"
    call = f"import pathlib, tests.unit.test_table_rows as t; t.fill_and_end(pathlib.Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", call], cwd=Path(__file__).parents[2], check=True, timeout=60)
    table = many(folder)
    files = [file for file in folder.glob(kind) if file.stat().st_size]
    assert files, kind
    for file in files:
        damage(file)
    again = TableRows(folder, _FORM)
    try:
        known = again.moment(_LOG)
        if known is not None:
            assert known == ((0, 0), 0)
            for group in range(3):
                found = again.rows((0, 0), ("g",), [pa.array([group], pa.int32())], 20_000)
                assert _model(found) == {key: row for key, row in table.model.items() if row[0] == group}
    except NotKnown:
        pass
    again.fill([_arrow(table.model)], (0, 0), _LOG, 0)
    assert len(again.rows((0, 0), ("g",), [pa.array([1], pa.int32())], 20_000)) == 10_000
    again.close()
