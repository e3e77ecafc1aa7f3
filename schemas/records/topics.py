"""Names of a pipeline's topics, and the topic settings that our guarantees depend on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 249
"""Maximum length of a topic's name, in characters."""


@dataclass(frozen=True, slots=True)
class Topics:
    """All topic names of one pipeline, from its prefix."""

    prefix: str

    def table(self, schema: str, table: str) -> str:
        """Return ``{prefix}.{schema}.{table}``; characters that Kafka refuses in a name become ``_xHH``.

        An underscore is not escaped, so two tables *can* have the same topic name; `clashes` detects that.
        """
        return f"{self.prefix}.{_legal(schema)}.{_legal(table)}"

    def clashes(self, tables: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
        """Return each group of tables (``schema.table``) with an ambiguous topic or name.

        Kafka treats dot and underscore as equal: it refuses a topic whose name differs only in that. A table whose
        topic would have the name of one of our own topics is also returned.
        """
        groups: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for schema, table in tables:
            groups[_to_kafka(self.table(schema, table))].add((schema, table))
            groups[f"{schema}.{table}"].add((schema, table))
        own = {_to_kafka(topic) for topic in (*self.notes, *self.beside)}
        found = {
            tuple(f"{schema}.{table}" for schema, table in sorted(group))
            for name, group in groups.items()
            if len(group) > 1 or name in own or name.startswith(_to_kafka(self.matches("")))
        }
        return sorted(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """Our own topics without changes, except those of matches. Add every new such topic here."""
        return (self.progress, self.schemas, self.tables, self.requests, self.views, self.published)

    @property
    def beside(self) -> tuple[str, ...]:
        """Topics with changes outside of the tables' topics; cuts include their offsets, too."""
        return (self.message, self.dead)

    def may_be_in_cuts(self, topic: str) -> bool:
        """Return whether a topic has this prefix and holds changes, so that cuts may include its offsets."""
        ours = topic.startswith(f"{self.prefix}.")
        return ours and topic not in self.notes and not topic.startswith(self.matches(""))

    @property
    def progress(self) -> str:
        return f"{self.prefix}.tailrace.progress"

    @property
    def schemas(self) -> str:
        return f"{self.prefix}.tailrace.schemas"

    @property
    def tables(self) -> str:
        """The state of each table and the chunks of its reads; separate because the progress topic is long."""
        return f"{self.prefix}.tailrace.tables"

    @property
    def requests(self) -> str:
        """Requests to the daemon, and its answers."""
        return f"{self.prefix}.tailrace.requests"

    @property
    def views(self) -> str:
        return f"{self.prefix}.tailrace.views"

    @property
    def published(self) -> str:
        """The last published match of each percolate view."""
        return f"{self.prefix}.tailrace.published"

    def matches(self, view: str) -> str:
        """Return the topic of a percolate view's matches."""
        return f"{self.prefix}.tailrace.matches.{view}"

    @property
    def dead(self) -> str:
        return f"{self.prefix}.tailrace.dead"

    @property
    def message(self) -> str:
        return f"{self.prefix}.message"


def _legal(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else f"_x{ord(c):02X}" for c in name)


def without_escapes(name: str) -> str:
    """Return a name with `_legal`'s ASCII escapes undone, for display."""
    return re.sub(r"_x([2-7][0-9A-F])", lambda found: chr(int(found[1], 16)), name)


def _to_kafka(topic: str) -> str:
    return topic.replace(".", "_")


REQUESTS = {"cleanup.policy": "compact"}
"""Settings of the requests topic: a request stays until the daemon has answered it and later deletes the answer."""


def kept(max_message_bytes: int) -> dict[str, str]:
    """Return the settings of a topic that retains every record forever."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }


def messages(max_message_bytes: int) -> dict[str, str]:
    """Return the settings of the topic of logical messages; retention is the broker's default."""
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }


def compacted(min_compaction_lag_ms: int, delete_retention_ms: int, max_message_bytes: int) -> dict[str, str]:
    """Return the settings of a table's topic, which are checked at every start.

    The compaction lag is measured by record timestamps, so the broker must set them: otherwise the newest records of a
    source with a slow clock would be compacted at once.
    """
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(min_compaction_lag_ms),
        "delete.retention.ms": str(delete_retention_ms),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }
