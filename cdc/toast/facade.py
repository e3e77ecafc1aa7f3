"""TOAST cache: large values from the stream, to complete updates that omit unchanged ones.

Three rules make it exact. It receives, in order, all changes of each table that it has values of. It is committed after
Kafka, with the cut of the topics; an older file forgets every key with later records on the topics. And it forgets a
table with a doubtful history: PostgreSQL sends a Relation message before the first change after any ALTER TABLE, but
also on lesser occasions, so the catalog is queried to tell these apart (`ToastShape.mark`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import psycopg
import structlog

from tailrace.cdc.toast.catalog_facts import toast_shape
from tailrace.cdc.toast.store import Shape, ToastCache
from tailrace.cdc.toast.table_cache import TableToast
from tailrace.schemas.config.columns import HIDING
from tailrace.schemas.config.model import Config, Kafka, Source
from tailrace.schemas.envelope import FRAMING_SIZE, TRUNCATE_KEY
from tailrace.schemas.records.position import Cut, PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.schemas.state_folder import state_folder
from tailrace.schemas.types import Column
from tailrace.sinks.kafka.admin import topic_id
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import read_to

log = structlog.get_logger()


class Toast:
    """The TOAST cache of all tables."""

    def __init__(
        self, config: Config, connection: psycopg.Connection, timeline: int, stored: PositionRecord, topic: str
    ) -> None:
        """Bring the file to the cut of `stored`, whose records are in Kafka; `topic` is the progress topic."""
        source = config.source
        self._source = source
        self._connection = connection
        used = "cache" in (source.toast, *source.toast_by_table.values())
        self.cache = ToastCache(cache_folder(config) if used else None, source.toast_cache_bytes)
        # values of another server, timeline or generation of topics, or from before a gap, are unusable
        topics = topic_id(config.kafka, topic) if used else ""
        self._origin = f"{stored.here.system_identifier} {timeline} {topics} {stored.generation}"
        _catch_up(self.cache, config.kafka, stored, self._origin)

    def table(
        self,
        relation: Relation,
        topic: str,
        key_columns: Sequence[int],
        columns: Sequence[Column],
    ) -> TableToast | None:
        """Return the cache of a table with the shape in its Relation message; None if it needs none.

        `columns` are the table's, with their options. Those that are hidden on the topic are not cached either.
        """
        shape = None
        if self.cache.usable and _way(self._source, relation.qualified_name) == "cache":
            hidden = [i for i, column in enumerate(columns) if column.option and column.option.kind in HIDING]
            shape = toast_shape(self._connection, self._source.publication, relation, key_columns, hidden)
        if shape is None:
            self.cache.clear(relation.oid)
            # also for a table without large values, so that its topic does not count as unknown
            self.cache.set_shape(relation.oid, Shape(topic, None, 0, False))
            return None
        made = TableToast(self.cache, relation, shape)
        forms = [columns[i].option is None for i in key_columns]  # a key as text differs from the plain key
        made.seen(topic, f"{relation} {key_columns} {forms} {shape.mark}" if shape.mark else None, shape.until)
        return made

    def commit(self, cut: Cut) -> None:
        """Commit the cache as of a cut that Kafka has committed."""
        self.cache.commit(cut, self._origin)

    def close(self) -> None:
        """Close the file in the state of the last `commit`."""
        self.cache.close()


def _way(source: Source, table: str) -> str:
    ways = [way for pattern, way in source.toast_by_table.items() if fnmatchcase(table, pattern)]
    return ways[-1] if ways else source.toast


def cache_folder(config: Config) -> Path | None:
    """Return the file's folder, the same at each start and not temporary; None without a home folder."""
    if config.source.toast_cache_dir:
        return Path(config.source.toast_cache_dir)
    folder = state_folder()
    if folder is None:
        log.warning("toast cache disabled: no home folder", hint="Set source.toast_cache_dir.")
        return None
    return folder / f"{config.kafka.prefix}-{config.source.slot}"


def _catch_up(cache: ToastCache, kafka: Kafka, record: PositionRecord, origin: str) -> None:
    """Bring the cache to `record`: erase keys with records since its own cut; in doubt, everything.

    Rereads are one such doubt: an update of a row that was missing in the source by then has left no record.
    """
    found, stored = cache.at, record.here
    if found == (stored, origin):
        return
    if found is not None:
        cut, of = found
        topics = Topics(kafka.prefix)
        moved = [topic for topic in _moved(cut, stored) if topic not in topics.beside]
        known = all(cache.oids(topic) for topic in moved)
        if of == origin and _is_before(cut, stored) and known and not record.reread:
            for topic in moved:
                _forget(cache, kafka, topic, cut, stored)
            log.info("toast cache caught up", position=str(stored.position))
        else:
            log.warning("toast cache emptied: it belongs to another state of the topics")
            cache.clear_all()
    cache.commit(stored, origin)


def _is_before(cut: Cut, stored: Cut) -> bool:
    if cut.position.epoch != stored.position.epoch:
        return False
    if cut.position > stored.position or cut.flushed_lsn > stored.flushed_lsn:
        return False
    return all(
        len(stored.offsets.get(topic, [])) >= len(offsets)
        and all(mine <= other for mine, other in zip(offsets, stored.offsets[topic], strict=False))
        for topic, offsets in cut.offsets.items()
    )


def _moved(cut: Cut, stored: Cut) -> list[str]:
    return [topic for topic, offsets in stored.offsets.items() if any(offsets) and offsets != cut.offsets.get(topic)]


def _forget(cache: ToastCache, kafka: Kafka, topic: str, cut: Cut, stored: Cut) -> None:
    """Erase the keys with records on a topic between two cuts.

    Compaction keeps one record of each key, except perhaps of deleted keys, whose next change is an insert.
    """
    oids = cache.oids(topic)
    for records in read_to(client_options(kafka), topic, stored.offsets[topic], cut.offsets.get(topic, [])):
        for record in records:
            for oid in oids:
                if record.key == TRUNCATE_KEY:
                    cache.clear(oid)
                else:
                    cache.erase(oid, record.key[FRAMING_SIZE:])
