"""Views as declared in the configuration: their topics, tables, key, query and shape.

A view that cannot be maintained exactly is refused: by `declare`, before any batch, as far as the configuration
tells; by `check_shapes`, if that depends on the schemas of its table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from tailrace.schemas.config.model import Config, View
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.keyless import no_key
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics, without_escapes
from tailrace.schemas.shapes import SHAPES, ShapeName
from tailrace.schemas.table_names import parts_of, split_name, written
from tailrace.sinks.read.targets import TARGETS
from tailrace.sinks.target.protocol import DELETED_AT
from tailrace.spark_jobs.query.catalog import is_view, not_captured
from tailrace.spark_jobs.query.commits import names_commits
from tailrace.spark_jobs.query.declared import Refresh
from tailrace.spark_jobs.query.parse import tables_of, tree
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.views.lower import in_order, lower_views, tables_below

if TYPE_CHECKING:
    from tailrace.spark_jobs.topics.shapes import TableShapes

_WITH_LAYOUT: Final = "@"


@dataclass(frozen=True, slots=True)
class Declared:
    """A view that can be maintained.

    `topics` are all topics that it derives from, `captured` their tables as ``schema.table``. A query reads `tables`,
    whose topics come first and in the same order, and `views`; the remaining topics are those of tables below `views`.
    For a percolate view, `queries` is the column of the second topic, or the index if there is only one topic.
    """

    name: str
    target: str
    topics: tuple[str, ...]
    key: tuple[str, ...] | None
    text: QueryText | None = None
    tables: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    refresh: Refresh = "incremental"
    shape: ShapeName = "current"
    history_from: int | None = None
    lateness_s: float | None = None
    lateness_by: tuple[str, ...] = ()
    queries: str | None = None
    captured: tuple[str, ...] = ()
    soft_deletes: bool = False
    commits: bool = False
    """Whether the query reads its tables with their commit columns."""
    layout: str | None = None
    """The identity of the target's layout, as far as only a rebuild changes it."""

    @property
    def topic_of(self) -> dict[str, str]:
        """Map each table of the query to its topic."""
        return dict(zip(self.tables, self.topics, strict=False))

    @property
    def topics_read(self) -> tuple[str, ...]:
        """The topics whose records its batches read; other views' batches read the rest."""
        return self.topics if self.text is None else self.topics[: len(self.tables)]

    @property
    def definition(self) -> str | None:
        """The identity of the definition: of the rows' one, a hash of query and key, or the shape; and the layout.

        None for shape `current` of a table without a layout.
        """
        rows = self._rows_definition
        return rows if self.layout is None else f"{rows or ''}{_WITH_LAYOUT}{self.layout}"

    def has_rows_of(self, definition: str | None) -> bool:
        """Whether a generation of this definition has the rows of this view, in whatever layout."""
        return ((definition or "").partition(_WITH_LAYOUT)[0] or None) == self._rows_definition

    @property
    def _rows_definition(self) -> str | None:
        if self.text is None:
            return None if SHAPES[self.shape].from_topics else self.shape
        # An unused option is left out, so that views of earlier revisions, which lacked it, have the same definition.
        first = ["asof_first"] if self.text.asof_first else []
        return hashlib.sha256(orjson.dumps([self.text.sql, self.key, *first])).hexdigest()


def declare(config: Config, name: str) -> Declared:
    """Return the declared view `name`; ConfigError if it does not exist or cannot be maintained."""
    if name not in config.views:
        known = ", ".join(sorted(config.views)) or "none"
        raise ConfigError(
            "TR-501",
            f'there is no view "{name}"',
            detail=f"Declared are: {known}.",
            hint=f'Add a section: [views.{name}] with table = "schema.table"',
        )
    view = config.views[name]
    _check_target(config, name, view)
    _check_shape(name, view)
    layout = TARGETS[view.target].layout_identity(name, view)
    topics = Topics(config.kafka.prefix)
    if view.table is None:
        return replace(_declare_query(config, name, view, topics), layout=layout)
    schema, table = split_name(view.table)
    if not schema:
        raise ConfigError(
            "TR-506",
            f'view "{name}": "{view.table}" names no schema',
            hint=f'table = "public.{view.table}"',
        )
    captured, queries = [(schema, table)], view.queries_index
    if view.queries is not None:
        queries_schema, queries_table, queries = parts_of(view.queries)
        captured.append((queries_schema, queries_table))
    return Declared(
        name,
        view.target,
        tuple(topics.table(*each) for each in captured),
        tuple(view.key) if view.key else None,
        shape=view.shape,
        history_from=None if view.history_from is None else parse_lsn(view.history_from),
        queries=queries,
        captured=tuple(map(".".join, captured)),
        soft_deletes=view.deletes == "soft",
        layout=layout,
    )


def _declare_query(config: Config, name: str, view: View, topics: Topics) -> Declared:
    """Return a declared query view, as far as it can be known without the tables' schemas."""
    if config.warehouse is None:
        raise ConfigError(
            "TR-502",
            f'view "{name}" is a query, but there is no [warehouse]',
            detail="The tables that queries read are kept in it, whatever the view's target is.",
            hint=f"Add [warehouse] with {TARGETS['warehouse'].example}",
        )
    text = QueryText(name, view.query or "", view.asof_before == "first")
    in_order(config, [name])  # raises ConfigError for a cycle
    tables = tuple(table for table in tables_of(text, config.views) if not is_view(table))
    below = [split_name(table) for table in tables_below(config, name)]
    found = tuple(topics.table(*each) for each in below)
    return Declared(
        name,
        view.target,
        found,
        tuple(view.key or ()),
        text,
        tables,
        lower_views(config, name),
        view.refresh,
        lateness_s=view.lateness_s,
        lateness_by=tuple(view.lateness_by),
        captured=tuple(map(".".join, below)),
        commits=bool(tables) and names_commits(tree(text)),
    )


def check_shapes(view: Declared, shapes: TableShapes) -> None:
    """Raise ConfigError if the table has no known row shape, no key, or another key than the view.

    Shape `log` needs no key.
    """
    if not shapes.rows:
        raise ConfigError(
            "TR-507",
            f'view "{view.name}": no schema of its table is known',
            detail=f'The schemas topic has none for topic "{shapes.topic}".',
            hint=not_captured(written(*map(without_escapes, shapes.topic.split(".")[1:])), shapes.captured),
        )
    if not shapes.keys and SHAPES[view.shape].needs_key:
        raise no_key(view.name, shapes.topic)
    if shapes.keys and view.text is None and view.key is not None and sorted(view.key) != sorted(shapes.key):
        raise ConfigError(
            "TR-509",
            f'view "{view.name}": its key is not its table\'s',
            detail=f"The view has ({', '.join(view.key)}), the table ({', '.join(shapes.key)}).",
            hint=f"Take `key` out of [views.{view.name}]; the table's own is the default.",
        )


def check_soft_deletes(view: Declared, columns: Iterable[str]) -> None:
    """Raise ConfigError (TR-538) if a view with soft deletes is of a table that has the column of their time."""
    taken = next((name for name in columns if name.lower() == DELETED_AT), None)
    if view.soft_deletes and taken is not None:
        raise ConfigError(
            "TR-538",
            f'view "{view.name}" cannot have soft deletes: its table has a column "{taken}"',
            detail=f"The view would have the time of a row's deletion in a column {DELETED_AT}.",
            hint=f'[views.{view.name}] deletes = "hard", or rename the column in the source',
        )


def _check_shape(name: str, view: View) -> None:
    if SHAPES[view.shape].from_topics:
        if view.history_from is None:
            return
        problem, hint = "has `history_from`, but keeps the present state only", 'shape = "history"'
    elif view.table is None:
        problem, hint = f'is a query, and shape "{view.shape}" is kept of tables', f'table = "public.{name}"'
    elif not TARGETS[view.target].keeps_states:
        problem = f'has target "{view.target}", and shape "{view.shape}" is kept in the warehouse'
        hint = 'target = "warehouse"'
    else:
        return
    raise ConfigError("TR-563", f'view "{name}" {problem}', hint=f"[views.{name}] {hint}")


def _check_target(config: Config, name: str, view: View) -> None:
    for target in (view.target, *SHAPES[view.shape].needs):
        kind = TARGETS[target]
        if not kind.configured(config):
            needs = f'target "{target}"' if target == view.target else f'shape "{view.shape}"'
            raise ConfigError(
                "TR-511",
                f'view "{name}" has {needs}, but there is no [{target}]',
                hint=f"Add [{target}] with {kind.example}",
            )


def targets_of(view: View) -> set[str]:
    """Return the names of all targets that a view's batches use: the base tables of a query are in the warehouse."""
    return {view.target, *SHAPES[view.shape].needs, *(("warehouse",) if view.query is not None else ())}
