"""Check the captured tables with the code of a start, on a connection that cannot write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.publication import Published
from tailrace.cdc.postgres.rights import NO_RIGHT
from tailrace.cdc.startup.inspect_tables import NO_TABLE, Inspected, inspect_tables, topic_keys, unmatched_patterns
from tailrace.cdc.startup.one_table import Before, Refusals
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError, TailraceError
from tailrace.schemas.records.layout import TableState


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a start: published, or to be published by it; `inspected` are those that can be captured."""

    published: Published
    inspected: Inspected
    are_planned: bool


def check_tables(
    config: Config,
    connection: psycopg.Connection,
    findings: Findings,
    states: Mapping[str, TableState] | None,
    lost: Mapping[str, StateError],
) -> Tables:
    """Report everything about publications and tables that refuses a start or parks a table.

    `states` are the stored table states, None for a first start; `lost` the tables whose topics have lost records.
    """
    source, first = config.source, states is None
    capture_set, columns = CaptureSet(source.tables), ColumnOptions(source)
    is_refused = True
    with findings.probing("source"):
        for pattern in unmatched_patterns(connection, source.publication, capture_set, first=first):
            seen = f'The pattern "{pattern}" of source.tables matches no table.'
            findings.advise("TR-909", Severity.NOTE if pattern.startswith("!") else Severity.WARN, "source", seen)
        is_refused = False
    found = publication.find(connection, source.publication)
    cannot_create = None
    if found is None:
        published = publication.planned(connection, source.publication, capture_set, source.publish)
        cannot_create = publication.creation_error(connection, published, source.publish)
        if cannot_create is not None:
            findings.add("source", cannot_create)
    else:
        published = publication.inspect(connection, found, capture_set)
    known: Mapping[str, list[str]] = {}
    if not first:
        with findings.probing("kafka"):
            known = topic_keys(config, published.all_relations)
    before = None if states is None else Before(states, known)
    refusals = Refusals(source, columns, before, collects=True)
    inspected = inspect_tables(config, connection, published, refusals, known, lost)
    for error in refusals.errors:
        # a pattern without a table has been reported by its name; who creates the publications grants the rights, too
        is_part = (error.code == NO_TABLE and is_refused) or (error.code == NO_RIGHT and cannot_create)
        if not is_part:
            findings.add("source", error)
    for parked in (*refusals.refused, *refusals.notes):
        findings.add("source", _named(parked, refusals), Severity.WARN)
    return Tables(published, inspected, found is None)


def _named(error: TailraceError, refusals: Refusals) -> TailraceError:
    """Return the error of a table that a start would park, saying so."""
    if error in refusals.notes:
        return error
    detail = f"{error.detail} The table would be parked.".lstrip()
    return TailraceError(error.code, error.message, detail=detail, hint=error.hint)
