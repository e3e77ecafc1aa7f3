"""Columns that may be out of line, and a mark that changes when cached values become invalid.

https://www.postgresql.org/docs/current/storage-toast.html. The sizes only decide what is worth caching: a value that is
not cached is reread. The mark must be correct, see `cdc.toast.facade`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.relation import Relation, ReplicaIdentity

_TUPLE_TARGET: Final = 2032
"""TOAST_TUPLE_THRESHOLD and TOAST_TUPLE_TARGET in bytes, with pages of 8 kB."""

_HEADER: Final = 32
_ALIGNED: Final = 7
_VARLENA: Final = 4 + _ALIGNED
_POINTER: Final = 24

_TEXTLIKE: Final = ("json", "xml", "bytea")
"""Types with values not larger than their text, like strings; we assume twice the text for others."""


@dataclass(frozen=True, slots=True)
class ToastShape:
    """Minimum sizes of out-of-line values, and the mark of a table.

    `least` has, by column, the minimum text length in bytes of an out-of-line value; `size` is the minimum total text
    length of a row with such a value. `mark` is None if it could not be determined; it is valid as of the LSN `until`.
    """

    least: dict[int, int]
    size: int
    mark: str | None
    until: int


def toast_shape(
    connection: psycopg.Connection,
    publication: str,
    relation: Relation,
    key_columns: Sequence[int],
    hidden: Sequence[int],
) -> ToastShape | None:
    """Return a table's shape; None if updates can omit no values except those of `hidden` columns.

    The table is locked during the query, so that no ALTER TABLE is committed but not yet visible. If another session
    holds a conflicting lock, there is no wait, and the mark is None.
    """
    if relation.replica_identity is ReplicaIdentity.FULL or not key_columns:
        return None
    try:
        with connection.transaction():
            table = sql.Identifier(relation.schema, relation.name)
            connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE NOWAIT").format(table))
            found = _mark(connection, publication, relation)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        found = None
    least, size = _sizes(connection, relation)
    for i in (*key_columns, *hidden):
        least.pop(i, None)  # an update that omits a key column includes the old key
    return ToastShape(least, size, *(found or (None, 0))) if least else None


def _mark(connection: psycopg.Connection, publication: str, relation: Relation) -> tuple[str, int] | None:
    """Return the mark and the LSN as of which it is valid; None if the table is missing.

    The mark changes with the table's files (rewritten, truncated), its column numbers (dropped and added again), and
    its publication membership (changes in between were not sent).
    """
    in_schema = ""
    if connection.info.server_version >= 150000:
        in_schema = (
            ", (SELECT array_agg(n.oid) FROM pg_publication_namespace n"
            " WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)"
        )
    row = connection.execute(
        "SELECT concat_ws(' ', c.relfilenode,"
        " (SELECT array_agg(l.relfilenode ORDER BY l.oid) FROM pg_partition_tree(c.oid) t JOIN pg_class l"
        "  ON l.oid = t.relid),"
        " (SELECT array_agg(a.attnum ORDER BY a.attnum) FROM pg_attribute a"
        "  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),"
        " p.oid, p.xmin, (SELECT array_agg(ROW (r.oid, r.xmin)) FROM pg_publication_rel r"
        f"  WHERE r.prpubid = p.oid AND r.prrelid = c.oid){in_schema}),"
        f" {WAL_END}"
        " FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace"
        " LEFT JOIN pg_publication p ON p.pubname = %s"
        " WHERE c.oid = %s AND c.relname = %s AND s.nspname = %s".encode(),
        (publication, relation.oid, relation.name, relation.schema),
    ).fetchone()
    return (row[0], parse_lsn(row[1])) if row else None


def _sizes(connection: psycopg.Connection, relation: Relation) -> tuple[dict[int, int], int]:
    """Return `least` and `size` of a ToastShape.

    PostgreSQL moves the largest value out of line until the tuple fits its target size. So each moved value is at least
    as large as any movable value that is still in the tuple at that time.
    """
    rows: list[Any] = connection.execute(
        "SELECT a.attname, a.attlen, a.attlen = -1 AND a.attstorage <> 'p',"
        " t.typcategory = 'S' OR t.typname = ANY (%s),"
        " (SELECT o.option_value::int FROM pg_class c, pg_options_to_table(c.reloptions) o"
        "  WHERE c.oid = a.attrelid AND o.option_name = 'toast_tuple_target')"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (list(_TEXTLIKE), relation.oid),
    ).fetchall()
    movable = {name: 1 if textlike else 2 for name, _, can_move, textlike, _ in rows if can_move}
    known = {name for name, *_ in rows}
    # dropped columns: nothing is known of them, so they may be of any type
    movable |= {column.name: 2 for column in relation.columns if column.name not in known}
    if not movable:
        return {}, 0
    target = min([_TUPLE_TARGET, *(row[4] for row in rows if row[4])])
    fixed = sum(size + _ALIGNED for _, size, can_move, *_ in rows if not can_move and size > 0)
    room = target - _HEADER - len(rows) // 8 - fixed - _VARLENA * len(movable)
    each = max(room // len(movable), _POINTER)
    least = {i: each // movable[c.name] for i, c in enumerate(relation.columns) if c.name in movable}
    return least, max(room, _POINTER) // max(movable.values())
