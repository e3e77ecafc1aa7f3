"""Tables of `tests.support.shop_model` on topics and views of its queries; DuckDB gives expected rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.schemas.config.model import View
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tests.spark.conftest import Bench, step
from tests.spark.pipeline import column
from tests.support.shop_engine import Engine, declared, over_new
from tests.support.shop_model import COLUMNS, EXAMPLES, KEYS, ShopModel

Change = tuple[str, str, Any]


class Shop:
    """A pipeline over the tables; `names` are examples, "NAME@search" one in the index."""

    def __init__(
        self, bench: Callable[..., Bench], names: Iterable[str], search: str | None = None, seed: int = 0
    ) -> None:
        self.suffix = uuid.uuid4().hex[:8]
        self.names = list(names)
        views = {self.called(name): view_of(name) for name in self.names}
        self.bench = bench(views, search)
        self.model = ShopModel(seed)
        for table, columns in COLUMNS.items():
            listed = [column(name, kind) for name, kind in columns.items()]
            self.bench.pipeline.table(table, listed, KEYS[table])
        self.views: dict[str, KeptView] = {name: self.bench.kept(self.called(name)) for name in self.names}
        self._engine = Engine()

    def called(self, name: str) -> str:
        """Return a view name that is unique to this shop, since all tests share one warehouse."""
        return f"{name.replace('@', '_')}_{self.suffix}"

    def commit(self, changes: Iterable[Change]) -> None:
        """Write changes, which the model already has, as one transaction."""
        with self.bench.pipeline.transaction() as tx:
            for kind, table, what in changes:
                if kind == "put":
                    tx.put(table, what)
                elif kind == "delete":
                    tx.delete(table, *what)
                else:
                    tx.truncate(table)

    def step(self) -> None:
        step(self.bench, *self.views.values())

    def check(self, *names: str) -> dict[str, int]:
        """Compare the named views, by default all, with their queries over the tables; return row counts."""
        new = {table: dict(rows) for table, rows in self.model.tables.items()}
        self._engine.load({table: {} for table in COLUMNS}, new)
        counts = {}
        for name in names or self.names:
            state = read_view(self.bench.config, self.called(name))
            assert self.bench.pipeline.cut is not None
            assert state.cut.flushed_lsn == self.bench.pipeline.cut.flushed_lsn
            example = EXAMPLES[name.partition("@")[0]]
            outputs = declared(name.partition("@")[0]).whole.named_selects
            found = [tuple(row[output] for output in outputs) for row in state.rows]
            query = over_new(example.sql)
            expected = [tuple(map(plain, row)) for row in self._engine.query(query)]
            assert sorted(found, key=repr) == sorted(expected, key=repr), name
            counts[name] = len(found)
        return counts


def view_of(name: str) -> View:
    example, _, target = name.partition("@")
    found = EXAMPLES[example]
    return View(query=found.sql, key=list(found.key), target="search" if target else "warehouse")


def plain(value: Any) -> Any:
    """Convert timestamps to microseconds, as the topics have them."""
    if hasattr(value, "timestamp"):
        seconds = (value - type(value)(1970, 1, 1)).total_seconds()
        return round(seconds * 1_000_000)
    return value
