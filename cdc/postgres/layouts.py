"""Query the present table layouts from the catalogs.

A single layout needs no locks, so running DDL never blocks us. `survey` needs them on all captured tables for a moment:
`pg_publication_tables` opens each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, LiteralString

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_fixed

from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import table_relation
from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.window import Found, Look

_VISIBLE_S: Final = 0.2
_ASK_AGAIN_S: Final = 0.01

# A partitioned table has no file of its own. Those of its leaves are found without pg_partition_tree, which locks them.
# A partition created as such gets its entry in pg_inherits in the command that creates its columns (three steps of the
# command counter in PostgreSQL 18). An attached one gets it in a later command, perhaps of the same transaction.
# The entries on the path to a leaf are added up, so that an entry recreated at any level changes the sum.
# System types contain no types that can be altered.
_LAYOUT: LiteralString = """
SELECT (
WITH RECURSIVE inside (number, type) AS (
  SELECT a.attnum, a.atttypid FROM pg_attribute a
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
  UNION
  SELECT i.number, part.type FROM inside i JOIN pg_type t ON t.oid = i.type, LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT m.atttypid FROM pg_attribute m
      WHERE t.typtype = 'c' AND m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r
      WHERE t.typtype IN ('r', 'm') AND t.oid IN (r.rngtypid, r.rngmultitypid)
  ) part (type) WHERE part.type >= 16384)
SELECT json_build_object(
  'oid', c.oid::int8,
  'member', coalesce((
    SELECT max(r.oid::int8) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE r.prrelid = c.oid AND p.pubname = ANY (%(publications)s)), (
    SELECT max(r.oid::int8::numeric * 4294967296 + h.xmin::text::int8)
    FROM pg_inherits h CROSS JOIN pg_partition_ancestors(c.oid) a JOIN pg_publication_rel r ON r.prrelid = a.relid
    JOIN pg_publication p ON p.oid = r.prpubid
    WHERE c.relispartition AND h.inhrelid = c.oid AND p.pubname = ANY (%(publications)s)), {of_schema}, 0),
  'toast', c.reltoastrelid::int8,
  'published', (
    SELECT coalesce(json_agg(json_build_array(p.oid::int8, p.xmin::text::int8) ORDER BY p.oid), '[]') {of_table}),
  'publishes_all', (
    SELECT bool_or(p.pubname = (%(publications)s::text[])[1]) IS NOT TRUE
      OR bool_or(p.pubinsert) AND bool_or(p.pubupdate) AND bool_or(p.pubdelete) AND bool_or(p.pubtruncate) {of_table}),
  'files', (
    WITH RECURSIVE part AS (
      SELECT c.oid AS oid, c.relkind AS kind, c.relfilenode AS file, 0::int8 AS entry
      UNION ALL SELECT p.oid, p.relkind, p.relfilenode, part.entry
        + CASE WHEN h.xmin <> a.xmin OR h.cmin::text::int - a.cmin::text::int > 4 THEN h.xmin::text::int8 ELSE 0 END
      FROM part JOIN pg_inherits h ON h.inhparent = part.oid JOIN pg_class p ON p.oid = h.inhrelid
      JOIN pg_attribute a ON a.attrelid = p.oid AND a.attname = 'ctid' WHERE part.kind = 'p')
    SELECT coalesce(json_agg(json_build_array(oid::int8, file::int8, entry) ORDER BY oid), '[]')
    FROM part WHERE kind = 'r'),
  'key', (
    SELECT coalesce(json_agg(k ORDER BY k), '[]') FROM pg_index i, unnest(i.indkey::int2[]) k
    WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
  'types', (
    SELECT coalesce(json_agg(json_build_object('oid', t.oid::int8, 'is_enum', t.typtype = 'e', 'parts', CASE t.typtype
      WHEN 'e' THEN (SELECT coalesce(json_agg(json_build_array(e.oid::int8, e.enumlabel) ORDER BY e.oid), '[]')
        FROM pg_enum e WHERE e.enumtypid = t.oid)
      ELSE (SELECT coalesce(json_agg(json_build_array(m.attnum, m.atttypid::text) ORDER BY m.attnum), '[]')
        FROM pg_attribute m WHERE m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped) END)
      ORDER BY t.oid), '[]')
    FROM pg_type t WHERE t.typtype IN ('c', 'e') AND t.oid IN (SELECT i.type FROM inside i)),
  'attributes', (
    SELECT json_agg(json_build_object(
      'number', a.attnum, 'name', a.attname, 'type_oid', a.atttypid::int8, 'typmod', a.atttypmod,
      'filled', a.atthasmissing OR a.atthasdef OR a.attidentity <> '', 'version', a.xmin::text::int8,
      'inside', (SELECT coalesce(json_agg(i.type::int8 ORDER BY i.type), '[]') FROM inside i
        JOIN pg_type t ON t.oid = i.type WHERE i.number = a.attnum AND t.typtype IN ('c', 'e'))
      ) ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)))
FROM pg_class c
"""

# The pg_depend row that binds a table to its schema is rewritten when the schema changes, so also when it changes back.
_OF_SCHEMA: LiteralString = """(
    SELECT max(s.oid::int8::numeric * 4294967296 + d.xmin::text::int8)
    FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
      AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = s.pnnspid
    WHERE s.pnnspid = c.relnamespace AND p.pubname = ANY (%(publications)s))"""


_OF_TABLE: LiteralString = """
FROM pg_publication p WHERE p.pubname = ANY (%(publications)s) AND (p.puballtables OR EXISTS (
  SELECT FROM (SELECT c.oid UNION ALL SELECT a.relid FROM pg_partition_ancestors(c.oid) a WHERE c.relispartition)
    self (oid)
  WHERE EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = self.oid) OR {by_schema}))"""

_BY_SCHEMA: LiteralString = """EXISTS (
      SELECT FROM pg_publication_namespace s JOIN pg_class m ON m.relnamespace = s.pnnspid
      WHERE s.pnpubid = p.oid AND m.oid = self.oid)"""

_FROM_TABLES: LiteralString = """
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%%'
"""


def _layout_query(connection: psycopg.Connection) -> LiteralString:
    # PostgreSQL 14 cannot publish schemas
    of_schema, by_schema = (_OF_SCHEMA, _BY_SCHEMA) if connection.info.server_version >= 150000 else ("0", "false")
    of_table = _OF_TABLE.replace("{by_schema}", by_schema)
    return _LAYOUT.replace("{of_schema}", of_schema).replace("{of_table}", of_table)


def layout(connection: psycopg.Connection, publications: Sequence[str], oid: int) -> Layout | None:
    """Return a table's layout in the database; None if the table is missing or has no columns."""
    row = connection.execute(
        f"{_layout_query(connection)} WHERE c.oid = %(oid)s", {"oid": oid, "publications": list(publications)}
    ).fetchone()
    return Layout.from_dict(row[0]) if row and row[0]["attributes"] else None


def when_visible(ask: Callable[[], Layout | None], relation: Relation) -> Layout | None:
    """Return the layout from `ask` for a table that the stream has shown as `relation`.

    A commit is in the WAL before it is visible to others, so a layout without the columns of `relation` is queried
    again for a short time. After that it is returned as it is, because the catalog may also be newer than `relation`.
    """

    def last(state: RetryCallState) -> Layout | None:
        assert state.outcome is not None
        answer: Layout | None = state.outcome.result()
        return answer

    behind = retry_if_result(lambda now: now is not None and not now.has(relation))
    retrying = Retrying(
        retry=behind, wait=wait_fixed(_ASK_AGAIN_S), stop=stop_after_delay(_VISIBLE_S), retry_error_callback=last
    )
    return retrying(ask)


def describe(
    connection: psycopg.Connection, publications: Sequence[str], schema: str, table: str
) -> tuple[Relation, Layout] | None:
    """Return the shape and the layout of a published table; None if it is missing or no longer published.

    The caller holds a lock on the table, so that both are consistent.
    """
    # PostgreSQL 14 has no column lists
    columns: LiteralString = "attnames" if connection.info.server_version >= 150000 else "NULL::name[]"
    published = connection.execute(
        f"SELECT {columns} FROM pg_publication_tables"
        " WHERE pubname = ANY (%s) AND (schemaname, tablename) = (%s, %s) LIMIT 1",
        (list(publications), schema, table),
    ).fetchone()
    relation = table_relation(connection, schema, table, published[0], publications) if published else None
    found = layout(connection, publications, relation.oid) if relation else None
    return (relation, found) if relation and found else None


def names(connection: psycopg.Connection, capture_set: CaptureSet) -> frozenset[str]:
    """Return the names of all tables that match the patterns, published or not; needs no lock on them."""
    rows = connection.execute(f"SELECT n.nspname, c.relname{_FROM_TABLES}").fetchall()
    return frozenset(f"{schema}.{table}" for schema, table in rows if capture_set.captures(schema, table))


def survey(connection: psycopg.Connection, publications: Sequence[str], capture_set: CaptureSet) -> Look:
    """Return the layouts of all tables that are captured and published."""
    began = time.monotonic()
    columns: LiteralString = "p.attnames"
    if connection.info.server_version < 150000:
        columns = (
            "ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = t.oid AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '')"
        )
    query = _layout_query(connection)
    rows = connection.execute(
        f"(SELECT DISTINCT ON (p.schemaname, p.tablename) p.schemaname, p.tablename, {columns}, l.layout"
        " FROM pg_publication_tables p"
        " JOIN pg_namespace n ON n.nspname = p.schemaname"
        " JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = p.tablename"
        f" CROSS JOIN LATERAL ({query} WHERE c.oid = t.oid) l (layout)"
        f" WHERE p.pubname = ANY (%(publications)s)) UNION ALL SELECT n.nspname, c.relname, NULL, NULL{_FROM_TABLES}",
        {"publications": list(publications)},
    ).fetchall()
    # queried after the layouts, so that they contain nothing committed after this LSN
    row = connection.execute(f"SELECT {WAL_END}").fetchone()
    assert row is not None
    captured = [each for each in rows if capture_set.captures(*each[:2])]
    published = {(schema, table) for schema, table, _, found in captured if found is not None}
    return Look(
        began,
        parse_lsn(row[0]),
        tuple(
            Found(schema, table, tuple(names), Layout.from_dict(found))
            for schema, table, names, found in captured
            if found is not None and found["attributes"]
        ),
        frozenset(
            f"{schema}.{table}"
            for schema, table, _, found in captured
            if found is None and (schema, table) not in published
        ),
    )
