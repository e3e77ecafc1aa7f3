"""SQL statements for the minimum rights on the source, as in the README and in errors about rights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.schemas.config.model import Publish
from tailrace.schemas.relation import quoted

_GENERATED: Final = 180000
"""The first server version that publishes generated columns."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Parameters of the statements; `tables` and `keyless`, of the two publications, are (schema, table).

    `owners` are the (role, schema) pairs that will create future tables and partitions.
    """

    role: str
    publication: str
    nokey: str
    tables: Sequence[tuple[str, str]]
    keyless: Sequence[tuple[str, str]]
    owners: Sequence[tuple[str, str]]
    version: int
    publish: Publish = "all"

    def create_role(self) -> str:
        return f"CREATE ROLE {quoted(self.role)} LOGIN REPLICATION;"

    def grants(self) -> list[str]:
        """Return the statements that let the role read existing and future tables."""
        schemas = sorted({schema for schema, _ in (*self.tables, *self.keyless)})
        lines = []
        for schema in schemas:
            lines.append(f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(self.role)};")
            lines.append(f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} TO {quoted(self.role)};")
        return [*lines, *default_privileges(self.role, self.owners)]

    def publications(self) -> list[str]:
        """Return the statements that create both publications.

        Both are needed from the start, because WAL from before a publication's creation cannot be decoded with it. With
        `publish` = "insert" there is only one, which also has the tables without a key.
        """
        options = ["publish_via_partition_root = true"]
        if self.version >= _GENERATED:
            options.append("publish_generated_columns = stored")
        if self.publish == "insert":
            return [_publication(self.publication, [*self.tables, *self.keyless], ["publish = 'insert'", *options])]
        return [
            _publication(self.publication, self.tables, options),
            _publication(self.nokey, self.keyless, ["publish = 'insert, truncate'", *options]),
        ]

    def monitor(self) -> str:
        """Return the optional statement, which the owner of the tables may not run."""
        return (
            f"GRANT pg_monitor TO {quoted(self.role)};"
            "  -- optional, as a superuser: shows whose transaction holds the slot"
        )

    def statements(self) -> list[str]:
        """Return all statements in order; the optional one is last, so that an error in it prevents none."""
        return [self.create_role(), *self.grants(), *self.publications(), self.monitor()]


def default_privileges(role: str, owners: Iterable[tuple[str, str]]) -> list[str]:
    """Return the statements that let the role read future tables of `owners`, (role, schema) pairs."""
    return [
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {quoted(owner)} IN SCHEMA {quoted(schema)}"
        f" GRANT SELECT ON TABLES TO {quoted(role)};"
        for owner, schema in sorted(set(owners))
    ]


def _publication(name: str, tables: Sequence[tuple[str, str]], options: Sequence[str]) -> str:
    names = ", ".join(f"{quoted(schema)}.{quoted(table)}" for schema, table in tables)
    return f"CREATE PUBLICATION {quoted(name)}{' FOR TABLE ' if names else ''}{names} WITH ({', '.join(options)});"
