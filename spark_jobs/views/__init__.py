"""Views as declared: which topics they read, and from changed rows to the view's own rows.

A declaration says what it can keep exact. What it cannot is refused here, when it is declared, not in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.config import Config, View
from schemas.errors import ConfigError
from schemas.topics import Topics
from spark_jobs.shapes import TableShapes


@dataclass(frozen=True, slots=True)
class Declared:
    """A view that can be kept: `topics` are all that it reads."""

    name: str
    target: str
    topics: tuple[str, ...]
    key: tuple[str, ...] | None


def declare(config: Config, name: str) -> Declared:
    """Return the view `name`; ConfigError if there is none or it asks for what cannot be kept."""
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
    if view.shape != "current":
        raise ConfigError(
            "TR-503",
            f'view "{name}": shape "{view.shape}" is not supported yet',
            detail='Views keep the newest row of each key: shape = "current".',
            hint=f'Take `shape` out of [views.{name}], or set it to "current".',
        )
    if view.table is None:
        raise ConfigError(
            "TR-502",
            f'view "{name}": a query cannot be kept up to date yet',
            detail="A view is the whole of one captured table.",
            hint=f'Give [views.{name}] table = "schema.table" in place of query.',
        )
    schema, _, table = view.table.partition(".")
    if not table:
        raise ConfigError(
            "TR-506",
            f'view "{name}": "{view.table}" names no schema',
            hint=f'table = "public.{view.table}"',
        )
    topic = Topics(config.kafka.prefix).table(schema, table)
    return Declared(name, view.target, (topic,), tuple(view.key) if view.key else None)


def check_shapes(view: Declared, shapes: TableShapes) -> None:
    """Refuse a view whose table has no rows of a known shape, no key, or another key than the view."""
    if not shapes.rows:
        raise ConfigError(
            "TR-507",
            f'view "{view.name}": no schema of its table is known',
            detail=f'The schemas topic has none for topic "{shapes.topic}".',
            hint="Is the table captured ([source] tables), and has `tailrace run` been started?",
        )
    if not shapes.keys:
        raise ConfigError(
            "TR-508",
            f'view "{view.name}": its table has no key',
            detail=f'Topic "{shapes.topic}" is a log of events: which of them are of the same row, nothing tells.',
            hint="Give the table a primary key (or REPLICA IDENTITY FULL and a key in source.keys) and start anew with"
            " another kafka.prefix.",
        )
    if view.key is not None and sorted(view.key) != sorted(shapes.key):
        raise ConfigError(
            "TR-509",
            f'view "{view.name}": its key is not its table\'s',
            detail=f"The view has ({', '.join(view.key)}), the table ({', '.join(shapes.key)}).",
            hint=f"Take `key` out of [views.{view.name}]; the table's own is the default.",
        )


def _check_target(config: Config, name: str, view: View) -> None:
    if view.target == "warehouse" and config.warehouse is None:
        section, lines = "warehouse", 'uri = "jdbc:sqlite:/path/catalog.db" and location = "/path/warehouse"'
    elif view.target == "search" and config.search is None:
        section, lines = "search", 'hosts = ["http://localhost:9200"]'
    else:
        return
    raise ConfigError(
        "TR-511",
        f'view "{name}" has target "{view.target}", but there is no [{section}]',
        hint=f"Add [{section}] with {lines}",
    )
