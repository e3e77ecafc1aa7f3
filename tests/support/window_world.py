"""Two streams of events and a table, changed at random: times at the bounds of windows, at gaps, and NULL.

Rows of one `k` are near one moment, so that they share windows and sessions: the epoch, 1960, both changes of European
clocks, and the end of a year.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
from psycopg import sql

from tailrace.spark_jobs.query.catalog import Catalog, TableInfo

Row = tuple[Any, ...]
Tables = dict[str, dict[int, Row]]

_STREAM = {"id": "int4", "k": "int4", "at": "timestamp", "tz": "timestamptz", "v": "int4"}
COLUMNS: dict[str, dict[str, str]] = {"event": _STREAM, "mark": _STREAM, "place": {"k": "int4", "name": "text"}}
"""The first column is the key."""
CATALOG: Catalog = {f"public.{name}": TableInfo(tuple(each), (next(iter(each)),)) for name, each in COLUMNS.items()}
ARROW = {
    "int4": pa.int32(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}

MINUTE = 60_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS = [
    round((moment - _EPOCH) / timedelta(microseconds=1))
    for moment in (
        _EPOCH,
        datetime(1960, 2, 29, tzinfo=UTC),
        datetime(2024, 3, 31, 1, tzinfo=UTC),
        datetime(2024, 10, 27, 1, tzinfo=UTC),
        datetime(2025, 1, 1, tzinfo=UTC),
    )
]
_KEYS = 8
_DISTANCES = [MINUTE * minutes // 2 for minutes in (0, 0, 1, 5, 10, 10, 20, 20, 60)]
_NEXT_TO = [0, 0, 0, 0, 0, 1, -1, 500_000]


class World:
    """The tables' rows by key; `change` draws a batch."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.tables: Tables = {name: {} for name in COLUMNS}

    def fill(self) -> None:
        for name in ("event", "mark"):
            for key in range(1, 61):
                self.tables[name][key] = self._row(name, key)
        for k in range(_KEYS):
            self.tables["place"][k] = (k, self._random.choice("abc"))

    def change(self) -> None:
        pick = self._random
        for name in ("event", "mark"):
            # with few changes, a unit is affected by one of them alone
            for key in pick.sample(range(1, 71), pick.choice([1, 2, 3, 3, 12])):
                self._change_one(name, key)
        for k in pick.sample(range(_KEYS), pick.choice([0, 0, 1, 2])):
            if self.tables["place"].pop(k, None) is None or pick.random() < 0.5:
                self.tables["place"][k] = (k, pick.choice("abc"))

    def _change_one(self, name: str, key: int) -> None:
        pick, rows = self._random, self.tables[name]
        old, kind = rows.get(key), pick.random()
        if old is None or kind < 0.25:
            rows[key] = self._row(name, key)
        elif kind < 0.6:
            del rows[key]
        else:
            fresh = self._row(name, key)
            changed = pick.choice([1, 2, 3, 4, 4])
            rows[key] = (*old[:changed], fresh[changed], *old[changed + 1 :])

    def _row(self, name: str, key: int) -> Row:
        pick = self._random
        k = pick.choice([*range(_KEYS), None])
        v = None if pick.random() < 0.15 else pick.randint(1, 6) * 4
        return (key, k, self._time(name, k, 2), self._time(name, k, 3), v)

    def _time(self, name: str, k: int | None, place: int) -> int | None:
        """Return a time: often at, or one step next to, a distance from that of another row of the same `k`."""
        pick = self._random
        if pick.random() < 0.07:
            return None
        others = [row[place] for rows in (self.tables["event"], self.tables["mark"]) for row in rows.values()
                  if row[1] == k and row[place] is not None]  # fmt: skip
        near = _MOMENTS[(k or 0) % len(_MOMENTS)] + pick.randint(-6, 6) * 5 * MINUTE
        base = pick.choice(sorted(others)) if others and pick.random() < 0.6 else near
        return int(base + pick.choice((1, -1)) * pick.choice(_DISTANCES) + pick.choice(_NEXT_TO))


def states(old: Tables, new: Tables) -> dict[tuple[str, str], Any]:
    """Return the four states of each table, Arrow tables by (table, state)."""
    found = {}
    for table, columns in COLUMNS.items():
        keys = [key for key in old[table].keys() | new[table].keys() if old[table].get(key) != new[table].get(key)]
        images = [[rows[table][key] for key in keys if key in rows[table]] for rows in (old, new)]
        whole = (list(rows[table].values()) for rows in (old, new))
        schema = pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])
        for which, rows in zip(("old", "new", "before", "after"), (*whole, *images), strict=True):
            listed = list(zip(*rows, strict=True)) or [()] * len(columns)
            arrays = [pa.array(list(cells), field.type) for cells, field in zip(listed, schema, strict=True)]
            found[table, which] = pa.Table.from_arrays(arrays, schema=schema)
    return found


class Oracle:
    """PostgreSQL with the tables, and their times as microseconds: in `e` and `m`, `at_m` and `tz_m`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        for table, columns in COLUMNS.items():
            typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            connection.execute(f"CREATE TABLE {table} ({typed})".encode())
        for short, table in (("e", "event"), ("m", "mark")):
            times = ", ".join(f"(extract(epoch FROM {name}) * 1000000)::bigint AS {name}_m" for name in ("at", "tz"))
            connection.execute(f"CREATE VIEW {short} AS SELECT *, {times} FROM {table}".encode())

    def load(self, tables: Tables) -> None:
        """Replace all rows."""
        for table, columns in COLUMNS.items():
            self._connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(table)))
            marks = {
                "timestamp": "timestamp 'epoch' + %s::bigint * interval '1 microsecond'",
                "timestamptz": "timestamptz 'epoch' + %s::bigint * interval '1 microsecond'",
            }
            values = ", ".join(marks.get(kind, "%s") for kind in columns.values())
            with self._connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} VALUES ({values})".encode(), list(tables[table].values()))

    def rows(self, query: str) -> list[Row]:
        return self._connection.execute(query.encode()).fetchall()
