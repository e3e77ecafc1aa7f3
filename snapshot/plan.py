"""Which pieces a table is read in: ranges of its blocks, so that one large table is read by many, and resumed."""

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
    """Blocks `first` to `end` (exclusive; None: to the last, however long the table grows) of a table or partition.

    `size` is about how many bytes they have, with the large values that lie elsewhere; `planned_ms` is since 1970.
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
    """A table's chunks; `rows` is what the server's statistics let expect, None where it has none."""

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
    """Cut a table, or each partition of it, into chunks of `chunk_bytes`; at least one each.

    The publications' row filter holds for the snapshot, too, and with it the condition of the configuration, and
    `only`. A table that others inherit from is read without them: each has a topic of its own.
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
    """Return the chunks of `plan_table` alone."""
    return list(plan_table(connection, publications, relation, snapshot, only).chunks)


def check_condition(connection: psycopg.Connection, relation: Relation, condition: str) -> None:
    """Raise psycopg.Error unless it is a condition on the rows of that table; nothing is run."""
    statement = sql.SQL("SELECT FROM {} WHERE ({}\n)").format(
        sql.Identifier(relation.schema, relation.name), sql.SQL(condition)
    )
    result = connection.pgconn.prepare(b"", statement.as_bytes(connection))
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)


def in_order(plans: Iterable[TablePlan], keyless: Iterable[str]) -> list[TablePlan]:
    """Return the plans in the order of reading: tables without a key first, and the small before the large.

    Without a key, a snapshot that is cut short cannot be gone on with; and many tables are done early.
    """
    first = set(keyless)
    return sorted(plans, key=lambda plan: (plan.relation.qualified_name not in first, plan.size))


def _all_of(*conditions: str | None) -> str | None:
    # a comment at the end of what a person wrote ends with the line
    parts = [f"({each}\n)" for each in conditions if each]
    return " AND ".join(parts) or None


def row_filter(
    connection: psycopg.Connection, publications: Sequence[str], schema: str, table: str
) -> str | None:
    """Return the condition that the publications put on the rows of a table, None if all are published."""
    if connection.info.server_version < 150000:
        return None
    rows = connection.execute(
        "SELECT rowfilter FROM pg_publication_tables WHERE pubname = ANY (%s) AND schemaname = %s AND tablename = %s",
        (list(publications), schema, table),
    ).fetchall()
    # of several publications, any may let a row through
    filters = [where for (where,) in rows]
    return " OR ".join(f"({where})" for where in filters) if filters and None not in filters else None


def copy_statement(chunk: Chunk, relation: Relation) -> sql.Composed:
    """Return the COPY that reads a chunk: its columns in the order of the relation, in text."""
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({chunk.first},0)"))]
    if chunk.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({chunk.end},0)")))
    if chunk.where:
        # the server printed this expression itself, in pg_get_expr's form, or a person has written it
        conditions.append(sql.SQL("({})").format(sql.SQL(chunk.where)))
    return sql.SQL("COPY (SELECT {} FROM ONLY {} AS {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
        sql.Identifier(*chunk.leaf),
        # what a person has written may name the table, which a partition is not
        sql.Identifier(relation.name),
        sql.SQL(" AND ").join(conditions),
    )
