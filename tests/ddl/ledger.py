"""Ledger of a source: contents of all published tables, and the LSN, between any two statements.

Statements run one at a time, so the tables change only inside the interval of a statement. A cut outside of all
intervals therefore has exactly one right content: no time travel is needed to know it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from tailrace.cdc.postgres.connect import conninfo_for
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics

Key = tuple[str | None, ...]
Texts = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """A table with a key, as PostgreSQL prints it.

    `published` is False if its changes, or some kinds of them, are in no publication: its topic may be incomplete.
    `rows` are by the texts of `key`; `oid` is the table's. `left` are keys of partitions that were detached or dropped:
    their rows may stay on the topic.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: dict[Key, Texts]
    left: frozenset[Key] = frozenset()
    oid: int = 0
    published: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A statement or a transaction, and the contents of all tables after it, by topic.

    Its changes were committed between the LSNs `before` and `after`; `began_ms` is its start in ms since 1970.
    """

    what: str
    before: int
    after: int
    began_ms: float
    tables: dict[str, Contents]


class Ledger:
    """Runs statements and records the tables after each; uses memory for statements times table sizes."""

    def __init__(self, dsn: str, prefix: str, publications: Sequence[str] = ("tailrace", "tailrace_nokey")) -> None:
        # no prepared statements: types of columns change between two executions
        connection = psycopg.connect(conninfo_for(dsn), autocommit=True, prepare_threshold=None)
        self.connection: psycopg.Connection[Any] = connection
        self._topics = Topics(prefix)
        self._publications = list(publications)
        self._left: dict[str, frozenset[Key]] = {}
        self._truncated: dict[str, frozenset[Key]] = {}
        self._prefix = prefix
        self._within: str | None = None
        self.entries: list[Entry] = []

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def statement(self, what: str) -> Iterator[psycopg.Connection[Any]]:
        """Record all that is committed inside the block, whether or not it fails."""
        before, began_ms = self._lsn(), time.time() * 1000
        try:
            yield self.connection
        finally:
            after = self._lsn()
            self.entries.append(Entry(what, before, after, began_ms, self._contents()))

    def run(
        self, *statements: str, rolled_back: bool = False, before_each: Callable[[str], None] | None = None
    ) -> None:
        """Run one statement, or several in a transaction; raise the psycopg.Error of the statement.

        `before_each` is called with each statement before it runs, inside the transaction.
        """
        with self.statement("; ".join(statements) + ("; ROLLBACK" if rolled_back else "")) as connection:
            alone = len(statements) == 1 and not rolled_back
            with nullcontext() if alone else connection.transaction(force_rollback=rolled_back):
                for statement in statements:
                    if before_each is not None:
                        before_each(statement)
                    connection.execute(statement.encode())

    def within(self, schema: str) -> None:
        """Promise that later statements change only tables of this schema, or of one named "schema__...".

        Only these tables are read after a statement, so its cost does not grow with the number of tables.
        """
        self._within = schema

    def truncate(self, table: str, part: str) -> None:
        """Note the present rows of `part`, a partition of `table`, before a TRUNCATE.

        If it is then detached, before the daemon has seen either, its rows may stay on the topic (`leave`).
        """
        contents = self.entries[-1].tables.get(self._topics.table(*table.split(".")))
        if contents is not None:
            self._truncated[part] = self._truncated.get(part, frozenset()) | self._keys(contents, part)

    def seen(self) -> None:
        """Promise that the daemon has seen the catalog as it is now."""
        self._truncated.clear()

    def leave(self, table: str, part: str) -> None:
        """Allow present rows of `part` to stay on the topic of `table` ("schema.name") from the next entry on.

        Does nothing if the table is not published.
        """
        topic = self._topics.table(*table.split("."))
        contents = self.entries[-1].tables.get(topic)
        if contents is None or not contents.published:
            return
        gone = self._keys(contents, part) | self._truncated.get(part, frozenset())
        self._left[topic] = self._left.get(topic, frozenset()) | gone

    def _keys(self, contents: Contents, part: str) -> frozenset[Key]:
        names = ", ".join(f'"{name}"' for name in contents.key)
        return frozenset(self._texts(f"SELECT {names} FROM {part}"))

    def now(self) -> dict[str, Contents]:
        """Return the newest contents."""
        return self.entries[-1].tables

    def _lsn(self) -> int:
        row = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def _contents(self) -> dict[str, Contents]:
        known = self.entries[-1].tables if self.entries else {}
        found = {topic: each for topic, each in known.items() if not self._is_read(topic)}
        given = {"publications": self._publications, "within": self._within}
        for schema, table, oid, names, row_filter, published, key in self.connection.execute(_TABLES, given):
            if not key:
                continue
            topic = self._topics.table(schema, table)
            columns = ", ".join(f'"{name}"' for name in names)
            where = f" WHERE {row_filter}" if row_filter else ""
            rows = self._texts(f'SELECT {columns} FROM "{schema}"."{table}"{where}')
            if not set(key) <= set(names):
                # the publication's column list lacks a new key: the source refuses updates and deletes
                found[topic] = Contents(tuple(names), (), {}, frozenset(), oid, published=False)
                continue
            places = [names.index(name) for name in key]
            contents = Contents(
                tuple(names),
                tuple(key),
                {tuple(row[place] for place in places): row for row in rows},
                self._left.get(topic, frozenset()),
                oid,
                published,
            )
            assert len(contents.rows) == len(rows), f"{table}: the key is none"
            # equal contents are one object, so that comparisons can be cached by identity
            found[topic] = known[topic] if known.get(topic) == contents else contents
        return found

    def _is_read(self, topic: str) -> bool:
        """Return whether the table of a topic is read after each statement."""
        schema = f"{self._prefix}.{self._within}"
        return self._within is None or topic.startswith((f"{schema}.", f"{schema}__"))

    def _texts(self, query: str) -> list[Texts]:
        result = self.connection.execute(query.encode()).pgresult
        assert result is not None
        values = ((result.get_value(n, i) for i in range(result.nfields)) for n in range(result.ntuples))
        return [tuple(None if value is None else value.decode() for value in row) for row in values]


_TABLES = """
WITH published AS MATERIALIZED (
  SELECT schemaname, tablename, min(attnames) AS names, min(rowfilter) AS filter,
    bool_or(pubinsert) AND bool_or(pubupdate) AND bool_or(pubdelete) AND bool_or(pubtruncate) AS whole
  FROM pg_publication_tables JOIN pg_publication USING (pubname) WHERE pubname = ANY (%(publications)s) GROUP BY 1, 2)
SELECT n.nspname, c.relname, c.oid, coalesce(p.names, array(
    SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attgenerated = '' ORDER BY a.attnum)),
  p.filter, coalesce(p.whole, false), array(
  SELECT a.attname FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (n, place)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
  WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indimmediate
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
  ORDER BY k.place)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN published p ON (p.schemaname, p.tablename) = (n.nspname, c.relname)
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname <> 'information_schema'
AND n.nspname NOT LIKE 'pg\\_%%'
  AND (%(within)s::text IS NULL OR n.nspname = %(within)s OR starts_with(n.nspname, %(within)s || '__'))
"""


def without_left(contents: Contents) -> Contents:
    """Return the same contents, but allow no row of a removed partition to be left on the topic."""
    return replace(contents, left=frozenset())
