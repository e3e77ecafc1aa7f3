"""What is captured as of a start: publications, tables and their keys, all checked, and a topic for each."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import structlog

from cdc import catalog, publication
from cdc.capture_set import CaptureSet
from cdc.exported_snapshot import check_conditions
from cdc.keys import Keys
from cdc.publication import Publications
from cdc.refusals import make_dead_topic
from cdc.tables import make_topics
from schemas.columns import ColumnOptions
from schemas.config import Config
from schemas.relation import Relation

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Captured:
    """`partitions` are those of every topic."""

    publications: Publications
    relations: list[Relation]
    keys: Keys
    partitions: dict[str, int]

    @property
    def without_key(self) -> set[str]:
        return {relation.qualified_name for relation in self.relations if not self.keys.of(relation)}


def capture(config: Config, connection: psycopg.Connection, columns: ColumnOptions) -> Captured:
    """Make the publications and topics that are missing. TailraceError for what cannot be captured as asked."""
    source = config.source
    publications = publication.ensure(connection, source.publication, source.tables)
    captured, insert_only = publication.relations(connection, publications, CaptureSet(source.tables))
    catalog.refuse_row_security(connection, captured)
    publication.log_left_out(connection, publications, captured, insert_only)
    keys = Keys(connection, source.keys, insert_only)
    keys.check(captured)
    for relation in captured:
        columns.applied(relation, keys.of(relation))
    for key, pattern, nearest in columns.unmatched(captured):
        log.warning("no captured column matches", key=key, pattern=pattern, did_you_mean=nearest)
    check_conditions(connection, config, captured)
    partitions = make_topics(config.kafka, captured, keys)
    if source.on_table_error == "divert":
        make_dead_topic(config)
    return Captured(publications, captured, keys, partitions)
