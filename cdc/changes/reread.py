"""Fetch large values that the WAL left out from the source, by key: those that the cache lacks, or all without one.

What is fetched may be newer than the change, never older. So no cut is a state for that table until the stream has
passed the source's insert LSN as of after the fetch. A row that is gone by then needs no update: its delete follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import pq, sql

from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.relation import Relation

Texts = Sequence[bytes | bool | None]


class Reread:
    """Fetches over one connection; `count` is the number of rows asked for, `gone` of those that are deleted by now."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.count = 0
        self.gone = 0

    def row(
        self, relation: Relation, key_columns: Sequence[int], texts: Texts
    ) -> tuple[list[bytes | None] | None, int]:
        """Return the texts of the row with its missing values (False in `texts`) filled in, None if it is gone.

        The second value is the LSN that the stream must pass before the row cannot be newer than its surroundings.
        Raises psycopg.errors.UndefinedColumn when the table has been altered since.
        """
        missing = [i for i, text in enumerate(texts) if text is False]
        self.count += 1
        result = self._query(relation, key_columns, missing, [_text(texts[i]) for i in key_columns])
        fields: list[bytes | None] | None = None
        if result is not None and result.ntuples:
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
        """Ask for the missing columns of a row; None if the table is gone. It may have another name by now."""
        named = self._connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s",
            (relation.oid,),
        ).fetchone()
        if named is None:
            return None
        columns = [_quoted(relation.columns[i].name) for i in missing]
        keys = [sql.SQL("{} = %s").format(_quoted(relation.columns[i].name)) for i in key_columns]
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(columns), _quoted(*named), sql.SQL(" AND ").join(keys)
        )
        try:
            return self._connection.execute(query, key).pgresult
        except psycopg.errors.UndefinedTable:
            return self._query(relation, key_columns, missing, key)


def _quoted(*names: str) -> sql.Identifier:
    """In a query that has parameters, psycopg looks for them in names, too."""
    return sql.Identifier(*(name.replace("%", "%%") for name in names))


def _text(text: bytes | bool | None) -> str:
    raw = _bytes(text)
    assert raw is not None
    return raw.decode()


def _bytes(text: bytes | bool | None) -> bytes | None:
    assert not isinstance(text, bool)
    return text
