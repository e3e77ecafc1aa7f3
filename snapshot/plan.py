"""Split tables into chunks, ranges of blocks, so that a large table is read in parallel and resumable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import pq, sql

from tailrace.schemas.config.model import Snapshot
from tailrace.schemas.relation import Relation


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks `first` to `end` of a table or partition; `end` is exclusive, None means the table's end.

    A chunk without `end` includes blocks that are added later. `size` is the approximate number of bytes, including
    large values that are stored out of line. `planned_ms` is in milliseconds since 1970.
    """

    table: str
    n: int
    leaf: tuple[str, str]
    first: int
    end: int | None
    where: str | None = None
    size: int = 0
    planned_ms: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "n": self.n,
            "leaf": self.leaf,
            "first": self.first,
            "end": self.end,
            "where": self.where,
            "bytes": self.size,
            "planned_ms": self.planned_ms,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        schema, name = value["leaf"]
        return cls(
            value["table"],
            value["n"],
            (schema, name),
            value["first"],
            value["end"],
            value["where"],
            value.get("bytes", 0),
            value.get("planned_ms", 0),
        )


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table's chunks; `rows` is the estimate from the server's statistics, None without statistics."""

    relation: Relation
    chunks: tuple[Chunk, ...]
    rows: int | None

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


def plan_table(
    connection: psycopg.Connection,
    publications: Sequence[str],
    relation: Relation,
    snapshot: Snapshot,
    only: str | None = None,
) -> TablePlan:
    """Split a table, or each of its partitions, into chunks of `chunk_bytes`; at least one each.

    The snapshot reads the rows that match the publications' row filter, the condition of the configuration, and `only`.
    A parent table is read without the tables that inherit from it: each has its own topic.
    """
    leaves = connection.execute(
        "SELECT n.nspname, c.relname, pg_relation_size(c.oid), pg_table_size(c.oid), c.relpages, c.reltuples,"
        " current_setting('block_size')::int"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND (c.oid = %(oid)s OR"
        " c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)) ORDER BY 1, 2",
        {"oid": relation.oid},
    ).fetchall()
    published = row_filter(connection, publications, relation.schema, relation.name)
    where = _all_of(published, snapshot.where.get(relation.qualified_name), only)
    now_ms = time.time_ns() // 1_000_000
    chunks: list[Chunk] = []
    estimates: list[float | None] = []
    for schema, name, main_bytes, all_bytes, pages, tuples, block_size in leaves:
        blocks = main_bytes // block_size
        block_bytes = all_bytes // blocks if blocks else block_size
        estimates.append(0.0 if not blocks else None if tuples < 0 or not pages else tuples * blocks / pages)
        step = max(snapshot.chunk_bytes // block_bytes, 1)
        starts = range(0, max(blocks, 1), step)
        for first in starts:
            end = None if first == starts[-1] else first + step
            size = (min(first + step, blocks) - first) * block_bytes
            chunks.append(Chunk(relation.qualified_name, len(chunks), (schema, name), first, end, where, size, now_ms))
    known = [estimate for estimate in estimates if estimate is not None]
    return TablePlan(relation, tuple(chunks), round(sum(known)) if len(known) == len(estimates) else None)


def plan_chunks(
    connection: psycopg.Connection,
    publications: Sequence[str],
    relation: Relation,
    snapshot: Snapshot,
    only: str | None = None,
) -> list[Chunk]:
    """Return only the chunks of `plan_table`."""
    return list(plan_table(connection, publications, relation, snapshot, only).chunks)


def check_condition(connection: psycopg.Connection, relation: Relation, condition: str) -> None:
    """Raise psycopg.Error unless `condition` is valid for the rows of that table; it is not executed."""
    statement = sql.SQL("SELECT FROM {} WHERE ({}\n)").format(
        sql.Identifier(relation.schema, relation.name), sql.SQL(condition)
    )
    result = connection.pgconn.prepare(b"", statement.as_bytes(connection))
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)


def in_order(plans: Iterable[TablePlan], keyless: Iterable[str]) -> list[TablePlan]:
    """Return the plans in the order of reading: tables without a key first, and small before large ones.

    An interrupted snapshot of a table without a key cannot be resumed. With small tables first, many are done early.
    """
    first = set(keyless)
    return sorted(plans, key=lambda plan: (plan.relation.qualified_name not in first, plan.size))


def _all_of(*conditions: str | None) -> str | None:
    # a newline, because a user's condition may end with a comment
    parts = [f"({each}\n)" for each in conditions if each]
    return " AND ".join(parts) or None


def row_filter(connection: psycopg.Connection, publications: Sequence[str], schema: str, table: str) -> str | None:
    """Return the publications' row filter of a table, None if all rows are published."""
    if connection.info.server_version < 150000:
        return None
    rows = connection.execute(
        "SELECT rowfilter FROM pg_publication_tables WHERE pubname = ANY (%s) AND schemaname = %s AND tablename = %s",
        (list(publications), schema, table),
    ).fetchall()
    # with several publications, a row is published if any of them includes it
    filters = [where for (where,) in rows]
    return " OR ".join(f"({where})" for where in filters) if filters and None not in filters else None


def copy_statement(chunk: Chunk, relation: Relation) -> sql.Composed:
    """Return the COPY that reads a chunk: its columns in the order of the relation, in text format."""
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({chunk.first},0)"))]
    if chunk.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({chunk.end},0)")))
    if chunk.where:
        # raw SQL: the server's own pg_get_expr output, or a condition by the user
        conditions.append(sql.SQL("({})").format(sql.SQL(chunk.where)))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} AS {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
        sql.Identifier(*chunk.leaf),
        # a user's condition may contain the table's name, so a partition gets it as alias
        sql.Identifier(relation.name),
        sql.SQL(" AND ").join(conditions),
    )
