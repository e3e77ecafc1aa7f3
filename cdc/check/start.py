"""Check the table of starts (`cdc.startup.decide`) as the owner of the slot would, without owning it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.postgres import catalog, publication, slot
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.settled import settled
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.layout import TableState


@dataclass(frozen=True, slots=True)
class Begun:
    """What earlier starts have left: `states` of tables, None before a first start; `lost`, errors of lost topics."""

    states: Mapping[str, TableState] | None = None
    lost: Mapping[str, StateError] = field(default_factory=dict)


def check_start(
    config: Config, connection: psycopg.Connection, findings: Findings, found: Slot | None, *, inside: bool = False
) -> Begun:
    """Report the row of the table of starts that refuses this start; return what earlier starts have left.

    While a process reads the slot, or may do so at any moment (`inside`), what only its owner can know is not decided.
    """
    lost: Mapping[str, StateError] = {}
    with findings.probing("start"):
        owned = found is not None and found.active_pid is None and not inside
        try:
            _, start = settled(config, connection, owned=owned)
            lost = start.lost
            for note in start.notes:
                findings.advise("TR-924", Severity.NOTE, "start", f"{note[:1].upper()}{note[1:]}.".replace("..", "."))
        except StateError as error:
            if not recovery.is_mended(config, error):
                raise
            findings.advise(
                "TR-921", Severity.NOTE, "start", f"{error.message} ({error.code}): a recovery is requested."
            )
    if found is None:
        return Begun()
    with findings.probing("kafka"):
        return Begun(stored_reads(config).states, lost)
    return Begun({}, lost)


def check_slot(
    config: Config, connection: psycopg.Connection, findings: Findings, *, inside: bool = False
) -> Slot | None:
    """Report a slot that cannot be used, is in use (unless `inside` its reader) or close to its limit; return it."""
    found = slot.inspect(connection, config.source.slot)
    if found is None:
        return None
    with findings.probing("source"):
        found.check(catalog.server(connection).database)
    if found.active_pid is not None and not inside:
        seen = f'Slot "{found.name}" is read by server process {found.active_pid}.'
        findings.advise("TR-913", Severity.NOTE, "source", seen)
    if found.wal_status in ("extended", "unreserved") and found.safe_wal_size is not None:
        seen = f'Slot "{found.name}" is lost after another {found.safe_wal_size} bytes of WAL.'
        findings.advise("TR-912", Severity.WARN, "source", seen, "tailrace run")
    return found


def check_publications(config: Config, connection: psycopg.Connection, findings: Findings) -> None:
    """Report publications that leave out an operation: a part of the table of starts that needs no Kafka."""
    source = config.source
    with findings.probing("source"):
        found = publication.find(connection, source.publication)
        if found is not None:
            publication.check_publishes(found, source.publish, begun=False, hint="")
