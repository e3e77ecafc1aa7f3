"""The error for a view of a table without a key, for the command and the job."""

from __future__ import annotations

from tailrace.schemas.errors import ConfigError


def no_key(view: str | None, topic: str) -> ConfigError:
    """Return the error TR-508, for a view of the topic if its name is known.

    A key added later does not help, because the topic keeps its initial form.
    """
    return ConfigError(
        "TR-508",
        f'the table of view "{view}" has no key' if view else f'the table of topic "{topic}" has no key',
        detail=f'Topic "{topic}" is a log of events: nothing identifies the row that an event belongs to.',
        hint=f'shape = "log"  # under [views.{view or "NAME"}]: one row for each change, needs no key\n'
        "       Or give the table a primary key (or REPLICA IDENTITY FULL, a unique index, and its columns in\n"
        "       source.keys), and start with new topics, because the present ones stay without keys:\n"
        '       prefix = "NEW"  # under [kafka], and another slot under [source]',
    )
