"""What the daemon asks PostgreSQL's catalogs: types, publications, tables, keys, the server itself."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from schemas.errors import ConfigError, SourceError
from schemas.relation import Column, Relation, ReplicaIdentity
from schemas.types import TypeInfo


@dataclass(frozen=True, slots=True)
class Server:
    """The server at the other end; `system_identifier` is a decimal number as text."""

    version: int
    system_identifier: str
    timeline: int
    database: str


def server(connection: psycopg.Connection) -> Server:
    """Ask who the server is. SourceError if it cannot decode its WAL."""
    row = connection.execute(
        "SELECT current_setting('server_version_num')::int, system_identifier::text, timeline_id, current_database(),"
        " current_setting('wal_level') FROM pg_control_system(), pg_control_checkpoint()"
    ).fetchone()
    assert row is not None
    version, system_identifier, timeline, database, wal_level = row
    if wal_level != "logical":
        raise SourceError(
            "TR-202",
            f'wal_level is "{wal_level}", not "logical"',
            detail="Changes cannot be decoded from a WAL that does not hold them.",
            hint="ALTER SYSTEM SET wal_level = 'logical';  -- then restart the server",
        )
    return Server(version, system_identifier, timeline, database)


class Types(dict[int, TypeInfo]):
    """`pg_type` by oid, asked for when a type is first seen; bounded by the number of types in the database."""

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
        # a type that is gone by now: its values are still text, which is exact
        info = TypeInfo(*row) if row else TypeInfo(oid, f"oid {oid}", "b")
        self[oid] = info
        return info


def matching_tables(connection: psycopg.Connection, patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return (schema, table) of every permanent table that `patterns` take, in their order by name.

    Patterns are ``schema.table`` with ``*`` and ``?``; ``!`` in front takes out. Partitions belong to their root.
    """
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2"
    ).fetchall()
    return [(schema, table) for schema, table in rows if _taken(f"{schema}.{table}", patterns)]


def _taken(name: str, patterns: Iterable[str]) -> bool:
    taken = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            taken = not pattern.startswith("!")
    return taken


def relations_to_capture(connection: psycopg.Connection, publication: str, patterns: Sequence[str]) -> list[Relation]:
    """Return the shape of every table of the publication, or, if there is none yet, of those that `patterns` take.

    ConfigError if that is no table at all, SourceError for a table without a key.
    """
    if _publication_oid(connection, publication) is not None:
        relations = _published_relations(connection, publication)
    else:
        tables = matching_tables(connection, patterns)
        relations = [found for schema, table in tables if (found := table_relation(connection, schema, table))]
    if not relations:
        raise ConfigError(
            "TR-120",
            f"no table matches source.tables = {list(patterns)}",
            hint='Patterns are "schema.table", for example tables = ["public.*"].',
        )
    for relation in relations:
        key_columns(connection, relation)
    _refuse_row_security(connection, relations)
    return relations


def _refuse_row_security(connection: psycopg.Connection, relations: Sequence[Relation]) -> None:
    """Policies do not hold for the WAL, but for what we select: the first copy would lack rows that the stream has."""
    row = connection.execute(
        "SELECT c.oid::regclass::text, current_user FROM pg_class c WHERE row_security_active(c.oid) AND"
        " (c.oid = ANY (%(oids)s::oid[]) OR c.oid IN"
        "  (SELECT tree.relid FROM unnest(%(oids)s::oid[]) o, pg_partition_tree(o::regclass) tree)) ORDER BY 1 LIMIT 1",
        {"oids": [relation.oid for relation in relations]},
    ).fetchone()
    if row is not None:
        table, role = row
        raise SourceError(
            "TR-213",
            f'row-level security of table "{table}" hides rows from role "{role}"',
            detail="The stream has all rows, but the first copy and rereads would have only those that policies show.",
            hint=f'ALTER ROLE "{role}" BYPASSRLS;  -- or leave the table out of source.tables',
        )


def ensure_publication(connection: psycopg.Connection, name: str, relations: Sequence[Relation]) -> int:
    """Return the oid of the publication, made for `relations` if it is not there."""
    found = _publication_oid(connection, name)
    if found is not None:
        return found
    statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
        sql.Identifier(name), sql.SQL(", ").join(sql.Identifier(r.schema, r.name) for r in relations)
    )
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        raise SourceError(
            "TR-207",
            f'cannot create publication "{name}"',
            detail=(error.diag.message_primary or str(error)) + ".",
            hint=f"Have the owner of the tables run: {statement.as_string(connection)};",
        ) from None
    oid = _publication_oid(connection, name)
    assert oid is not None
    return oid


def _publication_oid(connection: psycopg.Connection, name: str) -> int | None:
    row = connection.execute("SELECT oid::int8 FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    return row[0] if row else None


def _published_relations(connection: psycopg.Connection, publication: str) -> list[Relation]:
    """Return the shape of every table of the publication, as its Relation message has it."""
    # 14 publishes whole tables only
    columns = "attnames" if connection.info.server_version >= 150000 else "NULL"
    rows = connection.execute(
        f"SELECT schemaname, tablename, {columns} FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2".encode(),
        (publication,),
    ).fetchall()
    relations = (table_relation(connection, schema, table, published) for schema, table, published in rows)
    return [relation for relation in relations if relation]


def table_relation(
    connection: psycopg.Connection, schema: str, table: str, columns: Sequence[str] | None = None
) -> Relation | None:
    """Return the shape of a table as the catalog has it now, with the published `columns` only; None if it is gone."""
    rows = connection.execute(
        "SELECT c.oid::int8, c.relreplident::text, a.attname, a.atttypid::int8, a.atttypmod,"
        " c.relreplident = 'f' OR coalesce(a.attnum = ANY (i.indkey), false) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
        " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
        " ORDER BY a.attnum",
        (schema, table),
    ).fetchall()
    if not rows:
        return None
    return Relation(
        oid=rows[0][0],
        schema=schema,
        name=table,
        replica_identity=ReplicaIdentity(rows[0][1]),
        columns=tuple(
            Column(name, type_oid, typmod, is_key)
            for _, _, name, type_oid, typmod, is_key in rows
            if columns is None or name in columns
        ),
    )


def key_columns(connection: psycopg.Connection, relation: Relation) -> list[int]:
    """Return the indexes of the key's columns in `relation`.

    The key is the replica identity's; under FULL, where the identity names every column, it is the primary key. A table
    that has none is refused with the statement that gives it one.
    """
    if relation.replica_identity is ReplicaIdentity.FULL:
        names = {
            name
            for (name,) in connection.execute(
                "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
                " AND a.attnum = ANY (i.indkey) WHERE i.indrelid = %s AND i.indisprimary AND i.indimmediate",
                (relation.oid,),
            )
        }
        indexes = [i for i, column in enumerate(relation.columns) if column.name in names]
    else:
        indexes = [i for i, column in enumerate(relation.columns) if column.is_key]
    if not indexes:
        raise SourceError(
            "TR-205",
            f'table "{relation.qualified_name}" has no replica identity that gives its rows a key',
            detail="Without a key, updates and deletes cannot be told to the row that they belong to.",
            hint=f'ALTER TABLE "{relation.schema}"."{relation.name}" ADD PRIMARY KEY (...);'
            f'  -- or leave it out: tables = [..., "!{relation.qualified_name}"]',
        )
    return indexes
