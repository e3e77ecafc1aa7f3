"""Queries of PostgreSQL's catalogs for types, tables and the server's properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tailrace.schemas.errors import SourceError
from tailrace.schemas.relation import Relation, ReplicaIdentity, quoted
from tailrace.schemas.types import Column, TypeInfo

OLDEST = 140000
"""The first supported server version."""


@dataclass(frozen=True, slots=True)
class Server:
    """Properties of the source server; `version` is PostgreSQL's server_version_num, for example 180006."""

    version: int
    database: str
    wal_level: str
    encoding: str
    in_recovery: bool

    def check(self) -> None:
        """Raise SourceError (TR-231, TR-202, TR-214) if the server cannot be a source."""
        if self.version < OLDEST:
            raise SourceError(
                "TR-231",
                f"PostgreSQL {self.version // 10_000} is too old",
                detail=f"server_version_num is {self.version}; the minimum is {OLDEST}.",
                hint="Upgrade to PostgreSQL 14 or later: pg_upgrade --check lists the obstacles.",
            )
        if self.wal_level != "logical":
            raise SourceError(
                "TR-202",
                f'wal_level is "{self.wal_level}", not "logical"',
                detail="At a lower wal_level, the WAL lacks the data for logical decoding.",
                hint="ALTER SYSTEM SET wal_level = 'logical';  -- then restart the server",
            )
        if self.encoding == "SQL_ASCII":
            raise SourceError(
                "TR-214",
                f'database "{self.database}" is encoded as SQL_ASCII',
                detail="Such a database accepts any bytes as text; the topics need UTF-8.",
                hint="Copy it into a database with ENCODING 'UTF8' (pg_dump --encoding).",
            )


def server(connection: psycopg.Connection) -> Server:
    """Query the server's properties."""
    row = connection.execute(
        "SELECT current_setting('server_version_num')::int, current_database(), current_setting('wal_level'),"
        " current_setting('server_encoding'), pg_is_in_recovery()"
    ).fetchone()
    assert row is not None
    return Server(*row)


class Types(dict[int, TypeInfo]):
    """`pg_type` by oid, queried on first use. Memory is bounded by the number of types in the database."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection

    def __missing__(self, oid: int) -> TypeInfo:
        row = self._connection.execute(
            "SELECT oid::int8, typname, typtype::text, typbasetype::int8, typtypmod,"
            " CASE WHEN typlen = -1 AND typcategory = 'A' AND typdelim = ',' THEN typelem::int8 ELSE 0 END"
            " FROM pg_type WHERE oid = %s",
            (oid,),
        ).fetchone()
        # a type that has been dropped: its values are still text, which is exact
        info = TypeInfo(*row) if row else TypeInfo(oid, f"oid {oid}", "b")
        self[oid] = info
        return info


def permanent_tables(connection: psycopg.Connection) -> list[tuple[str, str]]:
    """Return (schema, table) of all permanent tables, sorted by name, without partitions."""
    return connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2"
    ).fetchall()


def row_security_errors(connection: psycopg.Connection, relations: Sequence[Relation]) -> list[SourceError]:
    """Return an error for tables with active row-level security.

    Policies apply to our SELECTs but not to the WAL, so the first copy would lack rows that the stream has.
    """
    rows = connection.execute(
        "SELECT c.oid::regclass::text, current_user FROM pg_class c WHERE row_security_active(c.oid) AND"
        " (c.oid = ANY (%(oids)s::oid[]) OR c.oid IN"
        "  (SELECT tree.relid FROM unnest(%(oids)s::oid[]) o, pg_partition_tree(o::regclass) tree)) ORDER BY 1",
        {"oids": [relation.oid for relation in relations]},
    ).fetchall()
    if not rows:
        return []
    role, tables = rows[0][1], ", ".join(f'"{table}"' for table, _ in rows)
    several = len(rows) > 1
    those = "them" if several else "the table"
    return [
        SourceError(
            "TR-213",
            f'row-level security of table{"s" * several} {tables} hides rows from role "{role}"',
            detail="The stream has all rows, but snapshots would have only the rows that the policies show.",
            hint=f'ALTER ROLE "{role}" BYPASSRLS;  -- or leave {those} out of source.tables',
        )
    ]


class PartOfKey(SourceError):
    """A table that is published without a part of its key; `relation` has the published columns."""

    def __init__(self, relation: Relation, left_out: Sequence[str], remedy: Sequence[str]) -> None:
        """`remedy` are the lines of SQL that publish all columns of the key."""
        super().__init__(
            "TR-205",
            f'table "{relation.qualified_name}" is published without a part of its key',
            detail=f"The column list of the publication leaves out: {', '.join(left_out)}.",
            hint="\n       ".join(remedy),
        )
        self.relation = relation


def table_relation(
    connection: psycopg.Connection,
    schema: str,
    table: str,
    columns: Sequence[str] | None = None,
    publications: Sequence[str] = (),
) -> Relation | None:
    """Return a table's present shape, limited to the `columns` that `publications` have; None if it is missing.

    Without `columns`, generated columns are left out, as always before PostgreSQL 18. PartOfKey (TR-205) if `columns`
    have only a part of the key.
    """
    rows = connection.execute(
        "SELECT c.oid::int8, c.relreplident::text, a.attname, a.atttypid::int8, a.atttypmod,"
        " c.relreplident = 'f' OR coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
        " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped"
        " AND (a.attgenerated = '' OR (%s AND a.attgenerated = 's')) ORDER BY a.attnum",
        (schema, table, columns is not None and connection.info.server_version >= 180000),
    ).fetchall()
    if not rows:
        return None
    identity = ReplicaIdentity(rows[0][1])
    found = [Column(name, type_oid, typmod, is_key) for _, _, name, type_oid, typmod, is_key in rows]
    published = [column for column in found if columns is None or column.name in columns]
    relation = Relation(rows[0][0], schema, table, identity, tuple(published))
    keys = [column.name for column in found if column.is_key]
    left_out = [name for name in keys if columns is not None and name not in columns]
    if left_out and len(left_out) < len(keys) and identity is not ReplicaIdentity.FULL:
        whole = [column.name for column in found if column in published or column.name in left_out]
        raise PartOfKey(relation, left_out, _with_columns(connection, publications, relation, whole))
    return relation


def _with_columns(
    connection: psycopg.Connection, publications: Sequence[str], relation: Relation, columns: Sequence[str]
) -> list[str]:
    """Return a line for each publication that replaces a table's column list.

    SET TABLE would remove all other tables from the publication.
    """
    rows = connection.execute(
        "SELECT pubname::text, rowfilter FROM pg_publication_tables"
        " WHERE pubname = ANY (%s) AND (schemaname, tablename) = (%s, %s) ORDER BY 1",
        (list(publications), relation.schema, relation.name),
    ).fetchall()
    named, listed = f"{quoted(relation.schema)}.{quoted(relation.name)}", ", ".join(map(quoted, columns))
    return [
        f"BEGIN; ALTER PUBLICATION {quoted(name)} DROP TABLE {named};"
        f" ALTER PUBLICATION {quoted(name)} ADD TABLE {named} ({listed}){f' WHERE ({where})' if where else ''}; COMMIT;"
        for name, where in rows
    ]
