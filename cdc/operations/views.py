"""The views of a configuration, by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from tailrace.schemas.config.model import Config, View
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.keyless import no_key
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.schemas.table_names import split_name
from tailrace.sinks.control.positions import read_schemas


def named(config: Config, names: Sequence[str]) -> dict[str, View]:
    """Return the views with these names, or all views if `names` is empty.

    Raises ConfigError for an unknown name (TR-107), or if no view is declared (TR-108).
    """
    for name in names:
        if name not in config.views:
            close = difflib.get_close_matches(name, config.views, n=1)
            known = ", ".join(config.views) or "none"
            raise ConfigError(
                "TR-107",
                f'no view "{name}"',
                detail=f"Declared views: {known}.",
                hint=f'Did you mean "{close[0]}"?' if close else f'[views.{name}] table = "schema.table"',
            )
    if not names and not config.views:
        raise ConfigError(
            "TR-108",
            "no view is declared",
            hint='[views.orders] table = "public.orders"  # in tailrace.toml',
        )
    return {name: config.views[name] for name in (dict.fromkeys(names) or config.views)}


def holds_rows(view: View) -> bool:
    """Whether a view has the rows of one table; logs of changes and percolator views do not."""
    return view.table is not None and SHAPES[view.shape].has_rows


def table_of(name: str, view: View) -> tuple[str, str]:
    """Return (schema, table) of a single-table view with rows. ConfigError (TR-109) for any other view."""
    schema, table = split_name(view.table or "")
    if not schema or not holds_rows(view):
        raise ConfigError(
            "TR-109",
            f'view "{name}" does not hold the current rows of one table',
            detail="Only such views can be compared with their source row by row.",
            hint=f"tailrace verify {name}  # compares it with its recomputed content",
        )
    return schema, table


def computed(config: Config, names: Sequence[str], *, every: bool, tables: bool = False) -> list[str]:
    """Return the views that a Spark job compares with their recomputed content: queries, logs and matches.

    They are those of `names`; with `every`, histories are among them, too, and without names all there are. With
    `tables`, views of one table are among them in any case.
    ConfigError (TR-109) if a name is that of a percolate view whose queries are not captured.
    """
    found = []
    for name, view in named(config, names).items() if names or config.views else ():
        if view.queries_index is not None and names:
            raise ConfigError(
                "TR-109",
                f'view "{name}" cannot be compared: its queries are in an index of yours',
                detail="Its matches depend on the queries that were in it when a change arrived; they are on no topic.",
                hint=f'[views.{name}] queries = "schema.table.column"  # a captured column instead of queries_index',
            )
        of_table = tables or (every and SHAPES[view.shape].has_versions)
        wanted = of_table if holds_rows(view) else every or bool(names)
        if wanted and view.queries_index is None:
            found.append(name)
    return found


def not_compared(config: Config, by_spark: Collection[str]) -> dict[str, str]:
    """Return the views that are compared neither with their tables nor by the Spark job, by what they are."""
    kinds: dict[str, list[str]] = {}
    for name, view in config.views.items():
        if name not in by_spark and not holds_rows(view):
            matches = "matches of an index" if view.queries_index is not None else "matches"
            kind = "queries" if view.table is None else matches if view.shape == "percolate" else "logs"
            kinds.setdefault(kind, []).append(name)
    return {kind: ", ".join(names) for kind, names in sorted(kinds.items(), reverse=True)}


def refuse_without_key(config: Config, views: Mapping[str, View], *, at_topics: bool = True) -> None:
    """Raise ConfigError for a view whose table has no key, or whose topic is a log of inserts (TR-508).

    Without a key, rows cannot be distinguished, so none is the newest. Views with shape "log" are allowed. Without
    `at_topics` the configuration alone is examined: batches examine the topics, too.
    """
    if config.source.publish == "insert":
        for name, view in views.items():
            if view.table is not None and SHAPES[view.shape].needs_key:
                raise ConfigError(
                    "TR-508",
                    f'view "{name}": the topic of its table is a log of inserts',
                    detail=f'With source.publish = "insert", the topic has no updates and deletes of {view.table},'
                    " so the current rows of the table are unknown.",
                    hint='shape = "log"  # under [views.' + name + "]: a row for each insert",
                )
    if not at_topics:
        return
    topics = Topics(config.kafka.prefix)
    subjects = {stored.subject for stored in read_schemas(config.kafka, topics)}
    for name, view in views.items():
        if view.table is None or not SHAPES[view.shape].needs_key:
            continue  # the job checks each table of a query; a log needs no key
        topic = topics.table(*split_name(view.table))
        if f"{topic}-value" in subjects and f"{topic}-key" not in subjects:
            raise no_key(name, topic)
