"""Check the role's rights on captured tables in the catalogs, and list the missing GRANTs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog

from tailrace.cdc.postgres.catalog import row_security_errors
from tailrace.cdc.postgres.connect import cannot_read, connect
from tailrace.cdc.postgres.membership import shown
from tailrace.cdc.postgres.recipe import default_privileges
from tailrace.schemas.errors import SourceError, TailraceError, all_of
from tailrace.schemas.relation import Relation, quoted

log = structlog.get_logger()

NO_RIGHT: Final = "TR-227"
"""The error code for tables that the role may not read."""

_LOG_AGAIN_S: Final = 600.0

# Rows are read from the leaves, which have rights of their own; the lock is taken on the table itself.
_LACKING = """
WITH RECURSIVE part (oid, is_leaf) AS (
  SELECT o, false FROM unnest(%(oids)s::oid[]) o
  UNION SELECT h.inhrelid, true FROM part JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p'
  JOIN pg_inherits h ON h.inhparent = part.oid)
SELECT current_user::text, n.nspname::text, c.relname::text, pg_get_userbyid(c.relowner)::text,
  has_schema_privilege(n.oid, 'USAGE'),
  has_table_privilege(c.oid, 'SELECT') OR (is_leaf AND has_any_column_privilege(c.oid, 'SELECT'))
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT (is_leaf AND c.relkind = 'p') ORDER BY 2, 3
"""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Rights that `role` lacks: USAGE on `schemas`, SELECT on `tables`, which are (schema, table, owner)."""

    role: str
    schemas: tuple[str, ...]
    tables: tuple[tuple[str, str, str], ...]

    def statements(self) -> list[str]:
        """Return the statements that grant these rights, also for future tables and partitions."""
        lines = [f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(self.role)};" for schema in self.schemas]
        if self.tables:
            names = ", ".join(f"{quoted(schema)}.{quoted(table)}" for schema, table, _ in self.tables)
            lines.append(f"GRANT SELECT ON {names} TO {quoted(self.role)};")
            lines += default_privileges(self.role, [(owner, schema) for schema, _, owner in self.tables])
        return lines

    def error(self) -> SourceError:
        details = []
        if self.schemas:
            details.append(f"No USAGE on the schemas: {', '.join(self.schemas)}.")
        if self.tables:
            names = [f"{schema}.{table}" for schema, table, _ in self.tables]
            details.append(f"No SELECT on: {', '.join(shown(names))}.")
        return SourceError(
            NO_RIGHT,
            f'role "{self.role}" may not read all captured tables',
            detail=" ".join(details),
            hint="\n       ".join(self.statements()),
        )


def lacking_rights(connection: psycopg.Connection, relations: Sequence[Relation]) -> Lacking | None:
    """Return the rights that the role lacks to read tables and their partitions; None if it may read all."""
    rows = connection.execute(_LACKING.encode(), {"oids": [relation.oid for relation in relations]}).fetchall()
    schemas = tuple(dict.fromkeys(schema for _, schema, _, _, usage, _ in rows if not usage))
    tables = tuple((schema, table, owner) for _, schema, table, owner, _, select in rows if not select)
    return Lacking(rows[0][0], schemas, tables) if schemas or tables else None


def lacking_grants(connection: psycopg.Connection, relation: Relation) -> tuple[str, ...]:
    """Return the statements that the role needs to read a table and its partitions, all rows of them, or none."""
    lacking = lacking_rights(connection, [relation])
    hidden = [error.hint for error in row_security_errors(connection, [relation])]
    return (*(lacking.statements() if lacking is not None else ()), *hidden)


def cannot_read_tables(error: psycopg.Error, dsn: str, relations: Sequence[Relation]) -> TailraceError:
    """Return the error for a failed read of tables. If the role may not read them, it has the statements to run."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        # the connection of the failed read is in an aborted transaction
        with suppress(TailraceError, psycopg.Error), connect(dsn) as connection:
            lacking = lacking_rights(connection, relations)
            found = [lacking.error()] if lacking is not None else []
            if found := [*found, *row_security_errors(connection, relations)]:
                return all_of(found)
    return cannot_read(error)


class Denials:
    """Log tables that the role may not read, at once and every 10 minutes. Bounded by their number."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}

    def log(self, table: str, statements: Sequence[str]) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(table, -_LOG_AGAIN_S) >= _LOG_AGAIN_S:
            self._logged_at[table] = now
            log.error("table not readable: the role lacks privileges", table=table, statements=list(statements))
