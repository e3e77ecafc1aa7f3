"""Keys of tables, and whether the server allows updates of a table once it is published.

A table without a key is a log of events: its topic is not compacted, and its records have no key. That applies without
a replica identity that has columns (no primary key, a deferrable one, REPLICA IDENTITY NOTHING), and under REPLICA
IDENTITY FULL without a primary key, unless the configuration names a key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import psycopg

from tailrace.schemas.errors import ConfigError
from tailrace.schemas.relation import Relation, ReplicaIdentity

NOT_CAPTURED: Final = "TR-121"
"""The error code for a configured key of a table that is not captured."""


class Keys:
    """The key of each captured table; queries the catalog, because the WAL does not always name the key."""

    def __init__(
        self,
        connection: psycopg.Connection,
        configured: Mapping[str, Sequence[str]],
        insert_only: Collection[int] = (),
        *,
        known: Collection[int] = (),
        ask: Callable[[], Collection[int]] = tuple,
        logs: bool = False,
    ) -> None:
        """`configured` is ``source.keys``.

        `insert_only` are the oids of the `known` tables whose updates are not published. `ask` returns the present set
        of these, to classify new tables. With `logs`, no table has a key.
        """
        self._connection = connection
        self._configured = configured
        self._insert_only = set(insert_only)
        self._ask = ask
        self._known = set(known)
        self._logs = logs

    def of(self, relation: Relation) -> list[int]:
        """Return the indexes of the key columns in `relation`; empty if it has no key.

        ConfigError if the configuration names an invalid key.
        """
        if self._logs:
            return []
        configured = self._configured.get(relation.qualified_name)
        if configured is not None:
            return self._declared(relation, configured)
        if self._is_insert_only(relation.oid):
            return []
        if relation.replica_identity is not ReplicaIdentity.FULL:
            return [i for i, column in enumerate(relation.columns) if column.is_key]
        primary = next((names for names, is_primary in self._unique(relation) if is_primary), set())
        indexes = _indexes(relation, primary)
        return indexes if len(indexes) == len(primary) else []

    def _is_insert_only(self, oid: int) -> bool:
        if oid not in self._known:
            self._known.add(oid)
            self._insert_only.update({oid}.intersection(self._ask()))
        return oid in self._insert_only

    def is_declared(self, relation: Relation) -> bool:
        """Whether the configuration names the key."""
        return relation.qualified_name in self._configured

    def ask_again(self, oid: int) -> None:
        """Ask at the next use whether updates of a table are published; they may not have been until now."""
        self._known.discard(oid)
        self._insert_only.discard(oid)

    def errors(self, relations: Iterable[Relation]) -> list[tuple[Relation | None, ConfigError]]:
        """Return the errors in configured keys: tables that are not captured (None), and invalid keys."""
        errors: list[tuple[Relation | None, ConfigError]] = []
        captured = {relation.qualified_name: relation for relation in relations}
        for table in self._configured:
            if table not in captured:
                error = ConfigError(
                    NOT_CAPTURED,
                    f'source.keys names table "{table}", which is not captured',
                    detail=f"Captured tables: {len(captured)}.",
                    hint='Write it as "schema.table", and add it to source.tables or the publication.',
                )
                errors.append((None, error))
                continue
            try:
                self.of(captured[table])
            except ConfigError as error:
                errors.append((captured[table], error))
        return errors

    def _declared(self, relation: Relation, names: Sequence[str]) -> list[int]:
        columns = [column.name for column in relation.columns]
        if unknown := [name for name in names if name not in columns]:
            raise ConfigError(
                "TR-122",
                f'source.keys: table "{relation.qualified_name}" has no column {", ".join(_quoted(unknown))}',
                detail=f"Columns of {relation.qualified_name}: {', '.join(columns)}.",
                hint="Write the names as PostgreSQL stores them, without quotes.",
            )
        quoted = f'"{relation.schema}"."{relation.name}"'
        if relation.replica_identity is not ReplicaIdentity.FULL:
            # of an old row, the WAL has only the columns of the replica identity
            if set(names) != {column.name for column in relation.columns if column.is_key}:
                raise ConfigError(
                    "TR-123",
                    f'source.keys: table "{relation.qualified_name}" can have no key other than its replica identity',
                    detail="For an updated or deleted row, the WAL has no other old columns.",
                    hint=f"ALTER TABLE {quoted} REPLICA IDENTITY FULL;  -- or remove the table from source.keys",
                )
        elif not any(unique <= set(names) for unique, _ in self._unique(relation)):
            # otherwise UPDATE t SET k = k + 1 would delete a row's old key after the next row has taken it
            raise ConfigError(
                "TR-124",
                f'source.keys: no index makes the key of table "{relation.qualified_name}" unique',
                detail="A key needs a unique index over some or all of its columns: not partial, not deferrable, all"
                " columns NOT NULL.",
                hint=f"CREATE UNIQUE INDEX CONCURRENTLY ON {quoted} ({', '.join(_quoted(names))});"
                "  -- and ALTER COLUMN ... SET NOT NULL",
            )
        if self._is_insert_only(relation.oid):
            raise ConfigError(
                "TR-133",
                f'source.keys: updates and deletes of table "{relation.qualified_name}" are not published',
                detail="It is only in the publication for tables without a key, so its topic is a log of events.",
                hint=f"tailrace table remove {relation.qualified_name}  # or remove it from source.keys\n"
                f"       tailrace table add {relation.qualified_name}  # into the first publication",
            )
        return _indexes(relation, set(names))

    def _unique(self, relation: Relation) -> list[tuple[set[str], bool]]:
        """Return the columns of each unique index that always covers all rows, and whether it is primary."""
        rows = self._connection.execute(
            "SELECT array_agg(a.attname::text), i.indisprimary FROM pg_index i JOIN pg_attribute a"
            " ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])"
            " WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL"
            " AND i.indexprs IS NULL GROUP BY i.indexrelid, i.indisprimary HAVING bool_and(a.attnotnull)"
            " ORDER BY i.indexrelid",
            (relation.oid,),
        ).fetchall()
        return [(set(names), is_primary) for names, is_primary in rows]


def may_be_updated(connection: psycopg.Connection, relation: Relation) -> bool:
    """Whether the server allows updates and deletes of a table that is published with them.

    Each partition of a partitioned table has its own replica identity, independent of its root's.
    """
    row = connection.execute(
        "SELECT bool_and(c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid"
        "  AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))"
        " FROM pg_class c WHERE c.oid = %(oid)s"
        " OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)",
        {"oid": relation.oid},
    ).fetchone()
    return row == (True,)


def _indexes(relation: Relation, names: set[str]) -> list[int]:
    return [i for i, column in enumerate(relation.columns) if column.name in names]


def _quoted(names: Iterable[str]) -> list[str]:
    return ['"' + name.replace('"', '""') + '"' for name in names]
