"""Compare the publications with ``source.tables`` while the daemon runs, and log differences."""

from __future__ import annotations

import time
from typing import Final

import psycopg
import structlog

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.membership import Missing, missing_tables, shown, statements
from tailrace.schemas.config.model import Source

log = structlog.get_logger()

_REST: Final = 50
"""Pause after a comparison, in multiples of its duration: it takes at most a fiftieth of the time."""


class MembershipWatch:
    """Watch for `missing`: captured tables in no publication; bounded by the number of tables."""

    def __init__(self, source: Source) -> None:
        self.missing: tuple[Missing, ...] = ()
        self._publication = source.publication
        self._capture_set = CaptureSet(source.tables)
        self._outside_logged = False
        self._ready_at = 0.0

    def look(self, connection: psycopg.Connection) -> None:
        """Compare, if the pause is over. Raises psycopg.Error."""
        began = time.monotonic()
        if began < self._ready_at:
            return
        publications = publication.find(connection, self._publication)
        if publications is None:
            return
        if not self._outside_logged:
            self._log_outside(connection, publications)
        found = missing_tables(connection, publications, self._capture_set)
        new = set(found) - set(self.missing)
        if new:
            log.warning(
                "tables match source.tables but are in no publication",
                count=len(found),
                tables=shown([each.name for each in found if each in new]),
                statements=statements([each for each in found if each in new], publications.names),
            )
        elif self.missing and not found:
            log.info("all tables that match source.tables are in a publication")
        self.missing = found
        self._ready_at = began + (time.monotonic() - began) * _REST

    def _log_outside(self, connection: psycopg.Connection, publications: publication.Publications) -> None:
        """Log once the published tables that are not captured."""
        published = publication.published(connection, publications)
        names = [f"{schema}.{table}" for schema, table in published if not self._capture_set.captures(schema, table)]
        if names:
            log.info("published tables outside source.tables are not captured", count=len(names), tables=shown(names))
        self._outside_logged = True
