"""Determine and check the captured tables at a start: publications, tables, keys and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import psycopg
import structlog

from tailrace.cdc.changes.dead_letters import make_dead_topic
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.postgres.timeline import Identity
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.decide import Found
from tailrace.cdc.startup.inspect_tables import check_patterns, inspect_tables, topic_keys
from tailrace.cdc.startup.one_table import Before, Refusals
from tailrace.cdc.tables.destinations import make_topics
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError, TailraceError
from tailrace.schemas.records.layout import TableState
from tailrace.schemas.relation import Relation

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Captured:
    """The captured tables as of a start.

    `identity` is the server's, `columns` are the column options, `partitions` the partition counts of all topics.
    `keyed` says, for each table whose topic has had records, whether these have keys. `refused` are further tables, to
    be parked for these errors.
    """

    catalog: SourceCatalog
    identity: Identity
    relations: list[Relation]
    columns: ColumnOptions
    partitions: dict[str, int]
    keyed: Mapping[str, bool]
    refused: tuple[tuple[Relation, TailraceError], ...] = ()

    @property
    def without_key(self) -> set[str]:
        return {relation.qualified_name for relation in self.relations if not self.catalog.keys.of(relation)}

    @property
    def logs(self) -> set[str]:
        """The tables without a key, unless their topics have records with keys."""
        refused = {relation.qualified_name for relation, _ in self.refused}
        without_key = self.without_key | (refused & self.keyed.keys())
        return {name for name in without_key if not self.keyed.get(name)}


def capture(
    config: Config,
    connection: psycopg.Connection,
    found: Found,
    states: Mapping[str, TableState] | None,
    cut_short: Mapping[str, StateError] = MappingProxyType({}),
) -> Captured:
    """Create missing publications and topics. TailraceError if the configured capture is impossible.

    `states` are the stored table states; None at a first start, when the topics are still empty. Later, patterns whose
    tables are missing do not stop a pipeline, and a table that the database has made impossible is only `refused`, as
    are those of `cut_short`, whose topics have lost records.
    """
    source, first = config.source, states is None
    columns, capture_set = ColumnOptions(source), CaptureSet(source.tables)
    check_patterns(connection, source.publication, capture_set, first=first)
    publications = publication.ensure(connection, source.publication, capture_set, source.publish)
    published = publication.inspect(connection, publications, capture_set)
    known_keys = {} if first else topic_keys(config, published.all_relations)
    refusals = Refusals(source, columns, None if states is None else Before(states, known_keys))
    inspected = inspect_tables(config, connection, published, refusals, known_keys, cut_short)
    publication.log_left_out(connection, publications, published.relations, published.insert_only)
    for wrong in refusals.notes:
        log.warning("configured table not captured", code=wrong.code, reason=wrong.message)
    for key, pattern, nearest in columns.unmatched(published.relations):
        log.warning("column pattern unmatched", key=key, pattern=pattern, did_you_mean=nearest)
    partitions = make_topics(config.kafka, inspected.relations, inspected.keys, inspected.keyed)
    if source.on_table_error == "divert":
        make_dead_topic(config)
    catalog = SourceCatalog(connection, found.server.database, publications, capture_set, inspected.keys)
    return Captured(catalog, found.identity, inspected.relations, columns, partitions, inspected.keyed, refusals.parked)


def check_logs(captured: Captured, config: Config) -> None:
    """Raise the error of a start if a publication does not publish what its topics without keys need.

    Such tables cannot be read again while the daemon runs.
    """
    source = config.source
    found = publication.find(captured.catalog.connection, source.publication)
    if found is not None:
        hint = recovery.copy_anew(config.kafka.prefix, source.slot)
        publication.check_publishes(found, source.publish, begun=True, hint=hint, logs_only=True)
