"""Inspect the catalog before a cut becomes a state, to find DDL that the stream does not report.

The stream reports DDL only with the next row change. First, one cheap query checks for catalog rows written by
transactions that the last inspection did not see. Only if there are any, all captured tables are inspected. The
findings are applied once the stream has passed the LSN of the inspection, because until then it may still bring changes
of earlier shapes. Until then no cut is a state of these tables.

While a commit waits for a synchronous standby, it is already in the WAL, and perhaps on the topics, but not visible to
other sessions. Until then its transaction holds its DDL lock, or the lock on its own id. So a table is also unsettled
while a session that is not idle holds such a lock on it, or has altered its publication's options or its schema.

Cost: the query reads the catalogs of tables, columns and types, some 4,000 rows in a database of a hundred tables (1 ms
of server time). `rest_s` limits it to a tenth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, LiteralString

import psycopg

from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.tables.decision import Action, TopicPast
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.snapshot.reader import LOCK_BRIEFLY
from tailrace.snapshot.window import Found, Look

_MOST = 200
"""Maximum number of new row versions compared; with more, all tables are inspected each time."""

_SHARE: Final = 10

_LET_GO_S: Final = 0.1
"""Maximum wait, in seconds, for a session that has just locked a captured table."""

# ANALYZE and VACUUM update rows of pg_class in place, without a new version. Temporary tables are never captured.
_NEWS: LiteralString = """
WITH news AS (
  SELECT a.xmin FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE age(a.xmin) <= age(%(since)s::xid) AND c.relpersistence <> 't'
  UNION SELECT xmin FROM pg_class WHERE age(xmin) <= age(%(since)s::xid) AND relpersistence <> 't'
  UNION SELECT xmin FROM pg_enum WHERE age(xmin) <= age(%(since)s::xid)
  UNION SELECT xmin FROM pg_inherits WHERE age(xmin) <= age(%(since)s::xid)
  UNION SELECT xmin FROM pg_index WHERE age(xmin) <= age(%(since)s::xid)
  UNION SELECT xmin FROM pg_namespace WHERE age(xmin) <= age(%(since)s::xid)
  UNION SELECT xmin FROM pg_publication WHERE age(xmin) <= age(%(since)s::xid)
  UNION SELECT xmin FROM pg_publication_rel WHERE age(xmin) <= age(%(since)s::xid)
  {of_schemas})
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, ARRAY(SELECT xmin::text::int8 FROM news LIMIT %(most)s),
  (SELECT coalesce(sum(oid::int8), 0)::int8 FROM pg_publication_rel) + {schemas}
"""
# The sum decreases when a table leaves a publication, which deletes a row and writes none.

_OF_SCHEMAS: LiteralString = "UNION SELECT xmin FROM pg_publication_namespace WHERE age(xmin) <= age(%(since)s::xid)"
_SCHEMAS: LiteralString = "(SELECT coalesce(sum(oid::int8), 0)::int8 FROM pg_publication_namespace)"

# ATTACH PARTITION takes its strongest lock on the partition only; VACUUM and ANALYZE lock one table.
_LOCKED: LiteralString = """
SELECT unnest(ARRAY[relation::int8, objid::int8, (SELECT reltype::int8 FROM pg_class c WHERE c.oid = l.relation)])
FROM pg_locks l
WHERE granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (locktype = 'relation' AND relation >= 16384
      AND (mode = 'AccessExclusiveLock' OR mode = 'ShareUpdateExclusiveLock' AND EXISTS (
        SELECT FROM pg_locks m WHERE m.pid = l.pid AND m.locktype = 'relation' AND m.relation <> l.relation
        AND m.relation >= 16384 AND m.mode = 'AccessExclusiveLock'))
    OR locktype = 'object' AND classid IN ('pg_type'::regclass, 'pg_publication'::regclass)
      AND mode IN ('ExclusiveLock', 'AccessExclusiveLock'))
  AND NOT EXISTS (SELECT FROM pg_stat_get_activity(l.pid) s
    WHERE l.pid IS NOT NULL AND s.state LIKE 'idle in transaction%')
UNION ALL SELECT altered.oid FROM pg_locks l JOIN (
    SELECT p.xmax, p.oid::int8 FROM pg_publication p WHERE p.xmax <> '0'
    UNION ALL SELECT n.xmax, c.oid::int8 FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE n.xmax <> '0' AND c.relkind IN ('r', 'p')
  ) altered ON l.transactionid = altered.xmax
WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
  AND NOT EXISTS (SELECT FROM pg_stat_get_activity(l.pid) s
    WHERE l.pid IS NOT NULL AND s.state LIKE 'idle in transaction%')
"""
# ALTER PUBLICATION ... SET (...) and ALTER SCHEMA hold no lock until the commit. But the row that they replace has the
# id of their transaction, which locks its id until others see its commit. Not found: a savepoint that was released.


class CatalogWatch:
    """Catalog inspections of one stream. Memory: two, each bounded by the number of captured tables."""

    def __init__(
        self,
        catalog: SourceCatalog,
        registry: TableRegistry,
        past: Callable[[str, str], TopicPast],
        check: Callable[[], None],
    ) -> None:
        """`past` returns the history of a table's topic. `check` raises an error if the catalog has changed so that
        the daemon cannot continue.
        """
        self._check = check
        self._catalog = catalog
        self._connection = catalog.connection
        self._registry = registry
        self._past = past
        self._since: str | None = None
        self._known: set[int] = set()
        self._members = 0
        self._locked: set[int] = set()
        self._pending: list[Look] = []
        self._undecided: frozenset[str] = frozenset()
        """The tables for which a pending inspection may require an action."""
        self._judged: tuple[int, list[float]] = (-1, [])
        """What that was found for: a version of the registry, and inspections by their time."""
        self._wants_look = True
        self._unseen: frozenset[str] | None = None
        """All tables, published or not, if the last inspection was not possible: then any may be another one by now."""
        self.rest_s = 0.0

    def look(self) -> None:
        """Inspect the catalog before a cut becomes a state; store undecided tables in `registry.unsettled`."""
        began = time.monotonic()
        before = self._locked
        news = self._is_news()
        deadline = began + _LET_GO_S
        while self._held(self._locked - before) and time.monotonic() < deadline:
            # most likely in the middle of its commit: a new table name is not visible yet
            time.sleep(_LET_GO_S / 10)
            news |= self._is_news()
        if news or self._wants_look:
            self._check()
            look = self._survey()
            self._wants_look = look is None
            self._unseen = self._catalog.names() if look is None else None
            if look is not None:
                self.add(look)
        self._judge()
        self.rest_s = (time.monotonic() - began) * (_SHARE - 1)

    def _survey(self) -> Look | None:
        """Inspect all captured tables; None if one of them is locked: `pg_publication_tables` opens each table."""
        try:
            with self._connection.transaction():
                self._connection.execute(LOCK_BRIEFLY)
                return self._catalog.survey()
        except psycopg.errors.LockNotAvailable:
            return None

    def add(self, look: Look) -> None:
        """Add a catalog inspection, to be applied when the stream has reached its LSN."""
        # keep the oldest and the newest: with only the newest, a lagging stream might never reach one
        self._pending = [*self._pending[:1], look]

    def passed(self, lsn: int) -> None:
        """Report that the stream has delivered all commits before `lsn`, and no part of a later one."""
        if not self._pending:
            return
        while self._pending and lsn >= self._pending[0].until:
            look = self._pending.pop(0)
            pasts = {found.name: self._past(found.schema, found.table) for found in look.found}
            judged = [self._registry.judge(look, found, pasts[found.name]) for found in look.found]
            self._wants_look |= None in judged
            self._registry.settle(look, pasts, self._remedies(look, judged))
            self._wants_look |= bool(self._registry.unpublished(look))
        self._judge()

    def want_look(self) -> None:
        """Make the next inspection cover all captured tables even if the catalogs have not changed."""
        self._wants_look = True

    @property
    def wants_look(self) -> bool:
        """Whether an inspection is due although no cut is about to become a state."""
        return self._wants_look

    @property
    def waits(self) -> bool:
        """Whether the findings of an inspection wait for the stream."""
        return bool(self._pending)

    def _is_news(self) -> bool:
        # locks first: the second query sees the changes of a session that releases its lock after the first
        locked = [oid for (oid,) in self._connection.execute(_LOCKED)]
        # PostgreSQL 14 cannot publish schemas
        has_schemas = self._connection.info.server_version >= 150000
        query = _NEWS.replace("{of_schemas}", _OF_SCHEMAS if has_schemas else "")
        query = query.replace("{schemas}", _SCHEMAS if has_schemas else "0")
        row = self._connection.execute(query, {"since": self._since or "3", "most": _MOST}).fetchone()
        assert row is not None
        xmin, written, members = row
        first = self._since is None
        self._since = str(int(xmin) % 2**32)
        self._locked = set(locked) - {None, 0}
        news = first or len(written) >= _MOST or not self._known.issuperset(written) or members != self._members
        self._known, self._members = set(written), members
        return news

    def _judge(self) -> None:
        """Update the set of unsettled tables."""
        # a lagging stream asks after every read, and each answer takes as long as a hundred rows for every table
        now = (self._registry.version, [look.began for look in self._pending])
        if now != self._judged:
            self._undecided, self._judged = frozenset().union(*map(self._undecided_in, self._pending)), now
        unsettled = self._undecided | self._held(self._locked)
        if self._unseen is not None:
            # A table is locked, perhaps by a session that is idle, and something has been altered: it may be any table,
            # also one with a new name, or with one that had no table or no published one.
            unsettled |= self._unseen
            unsettled |= {name for name, state in self._registry.states.items() if state.layout is not None}
        self._registry.unsettled = frozenset(unsettled)

    def _undecided_in(self, look: Look) -> set[str]:
        """Return the tables for which an inspection may require an action."""
        registry = self._registry
        found = {found.name for found in look.found if self._is_open(look, found)}
        return found | registry.moved(look) | registry.dropped(look) | registry.unpublished(look)

    def _remedies(self, look: Look, judged: Sequence[Action | None]) -> dict[str, str]:
        """Return the statements that publish all changes of the tables of which some are not published."""
        outside = self._registry.unpublished(look)
        some = [found.name for found, action in zip(look.found, judged, strict=True) if action is Action.UNPUBLISH]
        return self._catalog.remedies(outside, some) if outside or some else {}

    def _is_open(self, look: Look, found: Found) -> bool:
        action = self._registry.judge(look, found, self._past(found.schema, found.table))
        return action not in (Action.NONE, Action.NOTE)

    def _held(self, locked: set[int]) -> set[str]:
        """Return the tables that may be altered now: `locked` has their oid or that of one of their types."""
        if not locked:
            return set()
        return {
            name
            for name, state in self._registry.states.items()
            if state.layout is not None and not locked.isdisjoint(state.layout.oids)
        }
