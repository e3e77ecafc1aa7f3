"""Query layouts, keys and types of the captured tables over one shared connection to the source."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import psycopg

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import Types
from tailrace.cdc.postgres.keys import Keys
from tailrace.cdc.postgres.layouts import layout, names, survey
from tailrace.cdc.postgres.membership import NotCaptured, explain, remedies
from tailrace.cdc.postgres.publication import Publications
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.window import Look


class SourceCatalog:
    """The source's catalog as seen by one daemon start.

    `publications` are those of this start, `keys` has the key of each table, `types` the types by oid.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        database: str,
        publications: Publications,
        capture_set: CaptureSet,
        keys: Keys,
    ) -> None:
        """`connection` belongs to the caller; `database` is the name of its database."""
        self.connection = connection
        self.database = database
        self.publications = publications
        self.capture_set = capture_set
        self.keys = keys
        self.types = Types(connection)

    def relations(self) -> list[Relation]:
        """Return the captured tables, those that are published without a part of their key included."""
        found = publication.inspect(self.connection, self.publications, self.capture_set)
        return sorted(found.all_relations, key=lambda each: each.qualified_name)

    def layout(self, oid: int) -> Layout | None:
        """Return a table's layout; None if the table is missing or has no columns."""
        return layout(self.connection, self.publications.names, oid)

    def survey(self) -> Look:
        """Return the layouts of all captured tables."""
        return survey(self.connection, self.publications.names, self.capture_set)

    def names(self) -> frozenset[str]:
        """Return the names of all tables that match the patterns, published or not, even while they are locked."""
        return names(self.connection, self.capture_set)

    def remedies(self, outside: Collection[str], some: Iterable[str]) -> dict[str, str]:
        """Return the lines that publish the changes of tables: of those `outside` all, of `some` those left out."""
        found = remedies(self.connection, self.publications, self.capture_set, outside)
        statement = publication.publish_all(self.publications.first.name)
        return {**found, **dict.fromkeys(some, statement)}

    def why_not_captured(self, name: str) -> NotCaptured:
        """Return the reason why ``schema.table`` is not captured."""
        return explain(self.connection, self.publications, self.capture_set, name)
