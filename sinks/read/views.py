"""Read views without Spark: all rows at one cut, for `verify` and callers that need the LSN of a read; generations.

Rows are column → value, with values as in the topic without Avro's logical types: days, microseconds, unscaled decimal
bytes. So they compare with records directly, and the limits of Python's types lose no value.
"""

from __future__ import annotations

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, TailraceError
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.read.targets import TARGETS
from tailrace.sinks.target.kind import There, ViewState


def read_view(config: Config, name: str) -> ViewState:
    """Return the live generation of a view, all rows as of its cut, even if batches are applied meanwhile."""
    view = config.views.get(name)
    if view is None:
        raise ConfigError("TR-501", f'there is no view "{name}"', hint="tailrace views list")
    kind = TARGETS[view.target]
    record = read_views(config.kafka, Topics(config.kafka.prefix)).get(name)
    if not kind.configured(config):
        raise ConfigError(
            "TR-511",
            f'view "{name}" has target "{view.target}", but there is no [{view.target}]',
            hint=f"Add [{view.target}]",
        )
    return kind.read(config, name, record, versions=SHAPES[view.shape].has_versions)


def generations_there(config: Config, name: str) -> There | None:
    """Return the generations of a declared view; None if only Spark can find them, or on an error.

    A command that has nothing to do can say so within a second. The generations may change before it begins, so it
    checks again.
    """
    kind = TARGETS[config.views[name].target]
    if not kind.configured(config):
        return None
    try:
        return kind.generations(config, name)
    except TailraceError:
        return None
