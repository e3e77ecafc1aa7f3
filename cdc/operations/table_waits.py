"""Views that wait for incomplete tables, and the progress of those tables' reads. No I/O here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates, parts_of, qualified
from tailrace.sinks.control.views_topic import ViewRecord


@dataclass(frozen=True, slots=True)
class TableWait:
    """An incomplete table: until it is complete, no newer cut is a state of the views that read it.

    `share` is the fraction that has been read, by bytes of the table; None before its read is planned. A table of which
    only single values were fetched from the source has no read: it is complete once the topics are past `complete_lsn`.
    """

    table: str
    share: float | None = None
    complete_lsn: int | None = None
    parked: bool = False
    unpublished: bool = False

    def __str__(self) -> str:
        if self.parked:
            return f"{self.table}: parked, see tailrace table list"
        if self.unpublished:
            return f"{self.table}: its changes are not published, see tailrace table list"
        if self.complete_lsn is not None:
            return f"{self.table}: values were fetched from the source, complete at {format_lsn(self.complete_lsn)}"
        return f"{self.table}: being read" + ("" if self.share is None else f", {self.share:.0%}")


def incomplete_tables(
    record: PositionRecord | None, shares: Mapping[str, float], unpublished: Collection[str] = ()
) -> tuple[TableWait, ...]:
    """Return the incomplete tables of a position record; `shares` is the fraction read of each."""
    if record is None:
        return ()
    return tuple(
        TableWait(
            table,
            shares.get(table),
            None if table in shares else record.reread.get(table),
            parked=table in record.parked,
            unpublished=table in unpublished,
        )
        for table in record.incomplete_tables
    )


def waited_for(
    config: Config, name: str, record: ViewRecord | None, tables: tuple[TableWait, ...]
) -> tuple[TableWait, ...]:
    """Return those of `tables` that a view reads, according to its declaration or its applied cut.

    For a query view that has applied nothing, only the job knows the tables; it names them in the record's error.
    """
    topics, view = Topics(config.kafka.prefix), config.views[name]
    read = set(record.cut.offsets) if record is not None and record.cut is not None else set()
    declared = [qualified(view.table)] if view.table else []
    if view.queries:
        declared.append(".".join(parts_of(view.queries)[:-1]))
    return tuple(
        each
        for each in tables
        if each.table in declared or any(topics.table(*names) in read for names in candidates(each.table))
    )


def sentence(tables: tuple[TableWait, ...]) -> str:
    """Return a clause for the user, e.g. "waits for table ..."; empty without waiting tables."""
    return f"waits for table {'; '.join(map(str, tables))}" if tables else ""
