"""What the source's catalog says of the captured tables as of now: one connection, asked by all who need it."""

from __future__ import annotations

import psycopg

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import Types
from tailrace.cdc.postgres.keys import Keys
from tailrace.cdc.postgres.layouts import layout, survey
from tailrace.cdc.postgres.membership import NotCaptured, explain
from tailrace.cdc.postgres.publication import Publications
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.window import Look


class SourceCatalog:
    """`publications` are those of this start, `keys` the key of each table, `types` the types by oid."""

    def __init__(
        self,
        connection: psycopg.Connection,
        database: str,
        publications: Publications,
        capture_set: CaptureSet,
        keys: Keys,
    ) -> None:
        """`connection` is the caller's; `database` is the name of the one that it is to."""
        self.connection = connection
        self.database = database
        self.publications = publications
        self.capture_set = capture_set
        self.keys = keys
        self.types = Types(connection)

    def relations(self) -> list[Relation]:
        """Return the captured tables."""
        return publication.relations(self.connection, self.publications, self.capture_set)[0]

    def layout(self, oid: int) -> Layout | None:
        """Return how a table lies; None if it is gone, or has no columns."""
        return layout(self.connection, self.publications.names, oid)

    def survey(self) -> Look:
        """Return how all captured tables lie."""
        return survey(self.connection, self.publications.names, self.capture_set)

    def why_not_captured(self, name: str) -> NotCaptured:
        """Return why ``schema.table`` is not among the captured tables."""
        return explain(self.connection, self.publications, self.capture_set, name)
