"""Fetch unchanged TOAST values, which the WAL omits, from the source by key.

With a TOAST cache, only values missing in it are fetched. A fetched value may be newer than the change, never older. So
no cut is a state for that table until the stream has passed the source's insert LSN, read after the fetch. A row that
is deleted by then needs no update: its delete follows in the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import psycopg
from psycopg import pq, sql

from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.relation import Relation

Texts = Sequence[bytes | bool | None]

# read with the lock that the query takes on the table, so these are the names that the query used
_NAMES = sql.SQL(
    "(SELECT json_agg(attname ORDER BY attnum) FROM pg_catalog.pg_attribute"
    " WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped)"
)


class Reread:
    """Fetch rows over one connection; `count` is the number of queried rows, `gone` that of missing ones."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.count = 0
        self.gone = 0

    def row(
        self, relation: Relation, key_columns: Sequence[int], texts: Texts
    ) -> tuple[list[bytes | None] | None, int]:
        """Return a row's texts with missing values (False in `texts`) filled in, None for a missing row.

        The second value is the LSN that the stream must pass until the row is no newer than the rest of the cut.
        Raises psycopg.errors.UndefinedColumn if the table has been altered since, and psycopg's other errors: of a lost
        connection, of a missing right.
        """
        missing = [i for i, text in enumerate(texts) if text is False]
        self.count += 1
        result = self._query(relation, key_columns, missing, [_text(texts[i]) for i in key_columns])
        fields: list[bytes | None] | None = None
        if result is not None and result.ntuples:
            _check_names(relation, result.get_value(0, len(missing)))
            fetched = {i: result.get_value(0, n) for n, i in enumerate(missing)}
            fields = [fetched[i] if text is False else _bytes(text) for i, text in enumerate(texts)]
        else:
            self.gone += 1
        row = self._connection.execute(f"SELECT {WAL_END}").fetchone()
        assert row is not None
        return fields, parse_lsn(row[0])

    def _query(
        self, relation: Relation, key_columns: Sequence[int], missing: Sequence[int], key: Sequence[str]
    ) -> pq.abc.PGresult | None:
        """Query the missing columns of a row; None if the table is missing. The oid finds a renamed table."""
        named = self._connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s",
            (relation.oid,),
        ).fetchone()
        if named is None:
            return None
        columns = [_quoted(relation.columns[i].name) for i in missing]
        keys = [sql.SQL("{} = %s").format(_quoted(relation.columns[i].name)) for i in key_columns]
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(columns), _NAMES.format(relation.oid), _quoted(*named), sql.SQL(" AND ").join(keys)
        )
        try:
            return self._connection.execute(query, key).pgresult
        except psycopg.errors.UndefinedTable:
            return self._query(relation, key_columns, missing, key)


def _check_names(relation: Relation, names: bytes | None) -> None:
    """Raise UndefinedColumn if columns have exchanged names: then a name may be that of a hidden column."""
    shown = [column.name for column in relation.columns]
    now = orjson.loads(names or b"[]")
    if [name for name in now if name in set(shown)] != shown:
        raise psycopg.errors.UndefinedColumn("columns have been renamed")


def _quoted(*names: str) -> sql.Identifier:
    """Return an identifier with % doubled: in queries with parameters, psycopg parses names, too."""
    return sql.Identifier(*(name.replace("%", "%%") for name in names))


def _text(text: bytes | bool | None) -> str:
    raw = _bytes(text)
    assert raw is not None
    return raw.decode()


def _bytes(text: bytes | bool | None) -> bytes | None:
    assert not isinstance(text, bool)
    return text
