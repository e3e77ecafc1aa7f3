"""Compare the topics with the stored cut: they must exist and contain all of its offsets.

A table whose topic has lost records is parked. Its views have read offsets of the topic, so it can be resumed only once
a new topic of the same name has no records before the cut: `cdc.startup.renew_topics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tailrace.schemas.errors import StateError
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.kafka.offsets import Bounds, loss, records_lost


def lost_topics(
    cut: Cut, own: Topics, tables: Mapping[str, str], topics: Mapping[str, Sequence[Bounds]], bootstrap: str, hint: str
) -> dict[str, StateError]:
    """Return the error (TR-424) of each table whose topic has lost records; raise it for a topic of all tables.

    The topics of all tables may be lost: the daemon then waits for their resume. Other servers than those of the cut
    are found earlier, because they lack the topics of all tables. `tables` are the captured tables by topic; topics of
    other tables may have been deleted. `topics` are the existing topics. Compaction moves neither the first nor the end
    offset of a partition.
    """
    filled = any(offset for offsets in cut.offsets.values() for offset in offsets)
    for topic in (own.schemas, own.tables):
        if topic not in topics or (filled and not topics[topic][0].end) or topics[topic][0].first:
            raise records_lost(topic, "The topics of the tables cannot be read without it.", hint)
    lost: dict[str, StateError] = {}
    for topic, offsets in cut.offsets.items():
        detail = _lost(topics.get(topic), offsets, whole=topic in tables)
        if detail is None or (topic not in tables and topic not in own.beside):
            continue
        if topic not in tables:
            raise records_lost(topic, detail, hint)
        table = tables[topic]
        lost[table] = records_lost(topic, detail, _remedy(table, topic, bootstrap, exists=topic in topics))
    return lost


def _remedy(table: str, topic: str, bootstrap: str, *, exists: bool) -> str:
    delete = [f"kafka-topics.sh --bootstrap-server {bootstrap} --delete --topic '{topic}'  # what is left of it"]
    lines = [
        "tailrace run  # restart it: it creates the topic again",
        f"tailrace table resume {table}  # then: all rows are read again",
        f"tailrace table leave-out {table}  # or continue without it",
    ]
    return "\n       ".join([*(delete if exists else ()), *lines])


def _lost(found: Sequence[Bounds] | None, offsets: Sequence[int], *, whole: bool) -> str | None:
    if found is None:
        return f"It is missing; it had {sum(offsets)} offsets in {len(offsets)} partitions."
    if len(found) != len(offsets):
        return f"It has {len(found)} partitions, the cut {len(offsets)}: a key would be in two partitions."
    return loss(found, offsets, whole=whole)


def check_unused(own: Topics, tables: Iterable[str], topics: Mapping[str, Sequence[Bounds]], bootstrap: str) -> None:
    """Raise StateError (TR-425) if topics, to be filled by a first copy, have records without a position."""
    used = [
        topic
        for topic in (*sorted(tables), own.schemas, own.tables)
        if any(bounds.end for bounds in topics.get(topic, ()))
    ]
    if used:
        raise StateError(
            "TR-425",
            f'topic "{used[0]}" has been written to, but neither a slot nor a stored position exists',
            detail=f'Other topics of prefix "{own.prefix}" with records: {len(used) - 1}. Rows deleted in the source'
            f' since then would remain on them. Progress topic: "{own.progress}".',
            hint=f'prefix = "{own.prefix}_2"  # under [kafka]; or delete all topics of this prefix:\n'
            f"       kafka-topics.sh --bootstrap-server {bootstrap} --delete --topic '{own.prefix}\\..*'",
        )
