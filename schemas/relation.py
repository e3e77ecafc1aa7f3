"""The shape of a table at one point of the WAL, as in pgoutput's Relation message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.schemas.types import Column


class ReplicaIdentity(StrEnum):
    """The old row's columns in the WAL for an update or delete (`pg_class.relreplident`)."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's shape; `columns` are in the order of the tuples."""

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]

    @property
    def qualified_name(self) -> str:
        """``schema.table`` for messages and the configuration; not quoted, so not for SQL."""
        return f"{self.schema}.{self.name}"


def quoted(name: str) -> str:
    """Return an identifier quoted for SQL, with any characters."""
    return '"' + name.replace('"', '""') + '"'
