"""Find tables that match `source.tables` but are not published, with the statements to publish them.

The catalog queries take no table locks, so running DDL never blocks them.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg

from tailrace.cdc.postgres.capture_set import CaptureSet, deciding
from tailrace.cdc.postgres.catalog import permanent_tables
from tailrace.cdc.postgres.publication import Publications
from tailrace.schemas.relation import quoted

_SHOWN: Final = 20
"""Maximum number of names in a log line or an error; the others are only counted."""

# Members are the objects of ALTER PUBLICATION: tables, partitioned ones as a whole; leaves belong to their root.
_MEMBERS: LiteralString = """
WITH RECURSIVE publication AS (
  SELECT oid, puballtables, pubviaroot FROM pg_publication WHERE pubname = ANY (%(names)s)),
member (relid, via_root) AS (
  SELECT r.prrelid, p.pubviaroot FROM pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
  UNION ALL SELECT c.oid, p.pubviaroot FROM publication p CROSS JOIN pg_class c
  WHERE p.puballtables AND c.relkind IN ('r', 'p')
  {schemas})
"""

_OF_SCHEMAS: LiteralString = """
  UNION ALL SELECT c.oid, p.pubviaroot FROM pg_publication_namespace s JOIN publication p ON p.oid = s.pnpubid
  JOIN pg_class c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p')
"""

# A root that is published under its partitions' names is judged by these names.
_CANDIDATES: LiteralString = """
SELECT c.oid::int8, n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN member m ON m.relid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%%'
GROUP BY 1, 2, 3, c.relkind HAVING bool_or(m.via_root) IS NULL OR (c.relkind = 'p' AND NOT bool_or(m.via_root))
ORDER BY 2, 3
"""

_PARTS: LiteralString = """
, part (root, oid, published) AS (
  SELECT o, o, EXISTS (SELECT FROM member WHERE relid = o) FROM unnest(%(oids)s::oid[]) o
  UNION ALL SELECT part.root, h.inhrelid, part.published OR EXISTS (SELECT FROM member WHERE relid = h.inhrelid)
  FROM part JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p' JOIN pg_inherits h ON h.inhparent = part.oid)
SELECT part.root::int8, n.nspname::text, c.relname::text, part.published, part.root <> part.oid,
  c.relreplident = 'f' OR EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' OR part.root = part.oid
"""


_NAMES: LiteralString = """
, name (oid) AS (
  SELECT relid FROM member UNION SELECT h.inhrelid FROM name JOIN pg_inherits h ON h.inhparent = name.oid)
SELECT n.nspname::text, c.relname::text FROM name JOIN pg_class c ON c.oid = name.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%%'
"""


@dataclass(frozen=True, slots=True)
class Missing:
    """A table that matches ``source.tables`` and is in no publication (under a name that matches).

    `publication` is the one that it belongs in, None if there is none for tables without a replica identity.
    `by_leaf`: it is published, but under the names of its partitions.
    """

    schema: str
    table: str
    publication: str | None
    by_leaf: bool = False

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"


def missing_tables(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet
) -> tuple[Missing, ...]:
    """Return the matching tables that the publications lack, sorted by name."""
    members = _members(connection)
    names = {"names": publications.names}
    candidates = {
        oid: (schema, table)
        for oid, schema, table in connection.execute(members + _CANDIDATES, names).fetchall()
        if capture_set.captures(schema, table)
    }
    if not candidates:
        return ()
    parts = connection.execute(members + _PARTS, names | {"oids": list(candidates)}).fetchall()
    found: list[Missing] = []
    for oid, (schema, table) in candidates.items():
        of_table = [row[1:] for row in parts if row[0] == oid]
        leaves = [(leaf, name, published) for leaf, name, published, is_leaf, _ in of_table if is_leaf]
        by_leaf = all(published for _, _, published in leaves or [row[:3] for row in of_table])
        if by_leaf and all(capture_set.captures(leaf, name) for leaf, name, _ in leaves):
            continue
        takes_all = not publications.first.publishes_updates
        updatable = takes_all or all(row[-1] for row in of_table)
        publication = publications.first if updatable else publications.nokey
        found.append(Missing(schema, table, publication.name if publication else None, by_leaf))
    return tuple(found)


def captures_any(connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet) -> bool:
    """Whether a published table, or one of its partitions, matches.

    Unlike `publication.table_names`, whose view opens each table, this does not wait for locks.
    """
    names = connection.execute(_members(connection) + _NAMES, {"names": publications.names})
    return any(capture_set.captures(schema, table) for schema, table in names)


def _members(connection: psycopg.Connection) -> LiteralString:
    schemas: LiteralString = _OF_SCHEMAS if connection.info.server_version >= 150000 else ""
    return _MEMBERS.format(schemas=schemas)


def statements(missing: Iterable[Missing], publications: Sequence[str]) -> list[str]:
    """Return the statements that publish `missing`; `publications` are the existing publications' names."""
    lines: list[str] = []
    added: dict[str, list[str]] = {}
    for each in missing:
        if each.by_leaf:
            lines.append(f"ALTER PUBLICATION {quoted(publications[0])} SET (publish_via_partition_root = true);")
            continue
        if each.publication is None:
            # no second publication: it could not be used for WAL from before its creation
            lines.append(f"ALTER TABLE {each.quoted} REPLICA IDENTITY FULL;")
        added.setdefault(each.publication or publications[0], []).append(each.quoted)
    lines += [f"ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(tables)};" for name, tables in added.items()]
    return list(dict.fromkeys(lines))


def remedies(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet, names: Collection[str]
) -> dict[str, str]:
    """Return, for each unpublished table of `names`, the lines to paste that publish it or leave it out."""
    missing = {each.name: each for each in missing_tables(connection, publications, capture_set)} if names else {}
    found = {name: "\n       ".join(statements([each], publications.names)) for name, each in missing.items()}
    others = connection.execute(
        "SELECT n.nspname::text, c.relname::text, (SELECT m.nspname || '.' || r.relname FROM pg_class r"
        "  JOIN pg_namespace m ON m.oid = r.relnamespace WHERE c.relispartition AND r.oid = pg_partition_root(c.oid))"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (c.relispartition OR c.relpersistence = 'u') AND n.nspname || '.' || c.relname = ANY (%s)",
        (list(names),),
    ).fetchall()
    for schema, table, root in others:
        name = f"{schema}.{table}"
        if root is not None:
            # if its root is published, its changes are on that one's topic
            found[name] = found.get(root) or f'tables = [..., "!{name}"]  # under [source]'
        else:
            found[name] = f"ALTER TABLE {quoted(schema)}.{quoted(table)} SET LOGGED;"
    return found


@dataclass(frozen=True, slots=True)
class NotCaptured:
    """The reason why a table is not captured, and a line to paste that captures it, if there is one."""

    reason: str
    hint: str = ""


def explain(
    connection: psycopg.Connection, publications: Publications, capture_set: CaptureSet, name: str
) -> NotCaptured:
    """Return the reason why ``schema.table`` is not captured."""
    pattern = deciding(name, capture_set.patterns)
    if pattern is None:
        return NotCaptured("no pattern of source.tables matches it", f'tables = [..., "{name}"]  # under [source]')
    if pattern.startswith("!"):
        return NotCaptured(f'"{pattern}" of source.tables excludes it')
    missing = [each for each in missing_tables(connection, publications, capture_set) if each.name == name]
    if missing:
        reason = "it is published under its partitions' names" if missing[0].by_leaf else "it is in no publication"
        return NotCaptured(reason, "\n       ".join(statements(missing, publications.names)))
    names = [f"{schema}.{table}" for schema, table in permanent_tables(connection)]
    close = difflib.get_close_matches(name, names, n=3)
    return NotCaptured("it does not exist", f"Did you mean {' or '.join(close)}?" if close else "")


def shown(names: Sequence[str]) -> list[str]:
    """Return at most 20 of `names`, and the number of the others."""
    more = len(names) - _SHOWN
    return [*names[:_SHOWN], f"and {more} more"] if more > 0 else list(names)
