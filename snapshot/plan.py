"""Which pieces a table is read in: ranges of its blocks, so that one large table is read by many, and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
import psycopg
from psycopg import sql

from schemas.relation import Relation


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks `first` to `end` (exclusive; None: to the last, however long the table grows) of a table or partition."""

    table: str
    n: int
    leaf: tuple[str, str]
    first: int
    end: int | None
    where: str | None = None

    def to_json(self, *, done: bool) -> bytes:
        """Return the value of the chunk's record on the progress topic."""
        return orjson.dumps(
            {
                "table": self.table,
                "n": self.n,
                "leaf": self.leaf,
                "first": self.first,
                "end": self.end,
                "where": self.where,
                "done": done,
            }
        )

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        schema, name = value["leaf"]
        return cls(value["table"], value["n"], (schema, name), value["first"], value["end"], value["where"])


def plan_chunks(
    connection: psycopg.Connection,
    publications: Sequence[str],
    relation: Relation,
    chunk_bytes: int,
    only: str | None = None,
) -> list[Chunk]:
    """Cut a table, or each partition of it, into chunks of `chunk_bytes`; at least one each.

    The publications' row filter holds for the snapshot, too, and so does the condition `only`.
    """
    leaves = connection.execute(
        "SELECT n.nspname, c.relname, pg_relation_size(c.oid) / current_setting('block_size')::int,"
        " current_setting('block_size')::int"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND (c.oid = %(oid)s OR"
        " c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)) ORDER BY 1, 2",
        {"oid": relation.oid},
    ).fetchall()
    where = both(_row_filter(connection, publications, relation), only)
    chunks: list[Chunk] = []
    for schema, name, blocks, block_size in leaves:
        step = max(chunk_bytes // block_size, 1)
        starts = range(0, max(blocks, 1), step)
        for first in starts:
            end = None if first == starts[-1] else first + step
            chunks.append(Chunk(relation.qualified_name, len(chunks), (schema, name), first, end, where))
    return chunks


def both(condition: str | None, other: str | None) -> str | None:
    """Return the condition that two make up; None is none."""
    # a line of its own: it may end with a comment
    parts = [f"({each}\n)" for each in (condition, other) if each]
    return " AND ".join(parts) or None


def _row_filter(connection: psycopg.Connection, publications: Sequence[str], relation: Relation) -> str | None:
    if connection.info.server_version < 150000:
        return None
    rows = connection.execute(
        "SELECT rowfilter FROM pg_publication_tables WHERE pubname = ANY (%s) AND schemaname = %s AND tablename = %s",
        (list(publications), relation.schema, relation.name),
    ).fetchall()
    # of several publications, any may let a row through
    filters = [where for (where,) in rows]
    return " OR ".join(f"({where})" for where in filters) if filters and None not in filters else None


def copy_statement(chunk: Chunk, columns: Sequence[str]) -> sql.Composed:
    """Return the COPY that reads a chunk: its columns in the order of the relation, in text."""
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({chunk.first},0)"))]
    if chunk.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({chunk.end},0)")))
    if chunk.where:
        # the server printed this expression itself, in pg_get_expr's form, or has parsed it as one
        conditions.append(sql.SQL("({})").format(sql.SQL(chunk.where)))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.Identifier(*chunk.leaf),
        sql.SQL(" AND ").join(conditions),
    )
