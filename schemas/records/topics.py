"""Which topic a table goes to, and the settings that the guarantees rest on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 249
"""Characters of a topic's name."""


@dataclass(frozen=True, slots=True)
class Topics:
    """All topic names of one pipeline, from its prefix."""

    prefix: str

    def table(self, schema: str, table: str) -> str:
        """``{prefix}.{schema}.{table}``; characters that Kafka refuses in a name become ``_xHH``.

        The underscore itself is kept, so two tables *can* be given one name; `clashes` is what finds that.
        """
        return f"{self.prefix}.{_legal(schema)}.{_legal(table)}"

    def clashes(self, tables: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
        """Return each group of tables, as ``schema.table``, that cannot be told apart by their topic or their name.

        To Kafka a dot is the same as an underscore: it refuses a topic whose name differs in that alone. The names of
        our own topics are among those that a table cannot have.
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
        """Our own topics that hold no changes, all but those of matches: a topic that is added belongs here, too."""
        return (self.progress, self.schemas, self.tables, self.requests, self.views, self.published)

    @property
    def beside(self) -> tuple[str, ...]:
        """Topics of changes that are not in a table's topic; they have their place in the cuts as those have."""
        return (self.message, self.dead)

    def may_be_in_cuts(self, topic: str) -> bool:
        """Whether a topic of this prefix holds changes, so that position records count what is on it."""
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
        """What is known of each table, and the chunks of its reads: apart from the progress topic, which is long."""
        return f"{self.prefix}.tailrace.tables"

    @property
    def requests(self) -> str:
        """What people ask of the daemon, and its answers."""
        return f"{self.prefix}.tailrace.requests"

    @property
    def views(self) -> str:
        return f"{self.prefix}.tailrace.views"

    @property
    def published(self) -> str:
        """How far the matches of each percolate view are on its topic."""
        return f"{self.prefix}.tailrace.published"

    def matches(self, view: str) -> str:
        """Where the matches of a percolate view go."""
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
    """Return the name of a table that `_legal` may have made of `name`, for people: the escapes of ASCII undone."""
    return re.sub(r"_x([2-7][0-9A-F])", lambda found: chr(int(found[1], 16)), name)


def _to_kafka(topic: str) -> str:
    return topic.replace(".", "_")


REQUESTS = {"cleanup.policy": "compact"}
"""Settings of the topic of requests: each stays until the daemon has answered it, and it forgets the answer later."""


def kept(max_message_bytes: int) -> dict[str, str]:
    """Return the settings of a topic on which every record stays."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }


def messages(max_message_bytes: int) -> dict[str, str]:
    """Return the settings of the topic of logical messages; how long they stay is the broker's default."""
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }


def compacted(min_compaction_lag_ms: int, delete_retention_ms: int, max_message_bytes: int) -> dict[str, str]:
    """Return the settings of a table's topic; each is checked again at every start.

    The lag counts record timestamps, so the broker must set them: a source with a slow clock would
    otherwise have its newest records compacted at once.
    """
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(min_compaction_lag_ms),
        "delete.retention.ms": str(delete_retention_ms),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max_message_bytes),
    }
