"""Views that read other views: which ones they may read, and the order to maintain them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.shapes import SHAPES
from tailrace.schemas.table_names import split_name, written
from tailrace.sinks.read.targets import TARGETS
from tailrace.spark_jobs.query.catalog import is_view
from tailrace.spark_jobs.query.parse import tables_of
from tailrace.spark_jobs.query.text import QueryText


def lower_views(config: Config, name: str) -> tuple[str, ...]:
    """Return the views that the query of view `name` reads, in the query's order.

    ConfigError if one of them cannot be read.
    """
    query = config.views[name].query
    if query is None:
        return ()
    found = tuple(filter(is_view, tables_of(QueryText(name, query), config.views)))
    for lower in found:
        view = config.views[lower]
        keeps_states = TARGETS[view.target].keeps_states
        if not keeps_states or not SHAPES[view.shape].readable:
            what = f'shape "{view.shape}"' if keeps_states else f'target "{view.target}"'
            raise ConfigError(
                "TR-581",
                f'view "{name}" reads view "{lower}", which has {what}',
                detail='A query can read views of shape "current" or "history" in the warehouse.',
                hint=f"Declare another view with the query of [views.{lower}] for the warehouse, and read that one.",
            )
    return found


def in_order(config: Config, names: Iterable[str]) -> list[str]:
    """Return `names` sorted so that each view follows those it reads. ConfigError for a cycle."""
    wanted = dict.fromkeys(names)
    done: dict[str, None] = {}
    for name in wanted:
        for each in _with_lower(config, name, ()):
            done[each] = None
    return [name for name in done if name in wanted]


def _with_lower(config: Config, name: str, path: Sequence[str]) -> Iterator[str]:
    """Yield all views that a view reads, directly or indirectly, then the view itself."""
    if name in path:
        circle = " -> ".join((*path[path.index(name) :], name))
        raise ConfigError(
            "TR-580",
            f'view "{name}" reads itself',
            detail=f"Cycle: {circle}.",
            hint=f"Change `query` of [views.{name}].",
        )
    if name in config.views:
        for lower in lower_views(config, name):
            yield from _with_lower(config, lower, (*path, name))
    yield name


def tables_below(config: Config, name: str) -> list[str]:
    """Return the captured tables that a view derives from, its own inputs first, as `written` returns them."""
    view = config.views[name]
    if view.query is None:
        return [written(*split_name(view.table or ""))]
    own = [table for table in tables_of(QueryText(name, view.query), config.views) if not is_view(table)]
    below = (table for lower in lower_views(config, name) for table in tables_below(config, lower))
    return list(dict.fromkeys((*own, *below)))
