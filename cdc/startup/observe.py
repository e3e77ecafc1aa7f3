"""Collect the facts for a start from PostgreSQL and Kafka, without changes, for `cdc.startup.decide`."""

from __future__ import annotations

import psycopg

from tailrace.cdc.postgres import catalog, publication, slot
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.timeline import identify
from tailrace.cdc.startup.decide import Found
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position
from tailrace.sinks.kafka.offsets import topic_bounds


def look(config: Config, connection: psycopg.Connection, *, owned: bool) -> Found:
    """Return the facts for a start. `owned`: the slot is ours, and the previous producer is fenced.

    Facts queried later may be newer. The order ensures that data in transit never looks lost: first the slot, because
    everything confirmed to it is on the topics; then the position; then the facts that the position is compared with.
    """
    source, kafka = config.source, config.kafka
    topics = Topics(kafka.prefix)
    server = catalog.server(connection)
    server.check()  # the next queries need catalogs that older versions lack
    found = slot.inspect(connection, source.slot)
    stored = read_position(kafka, topics, source.slot)
    if found is None and stored is not None:
        # another daemon may have created it since
        found = slot.inspect(connection, source.slot)
    publications = publication.find(connection, source.publication)
    tables = {
        topics.table(schema, table): f"{schema}.{table}"
        for schema, table in publication.table_names(connection, publications, CaptureSet(source.tables))
    }
    cut = stored.here if stored is not None else None
    seen = topic_bounds(kafka, {topics.schemas, topics.tables, *tables, *(cut.offsets if cut else ())})
    return Found(
        slot_name=source.slot,
        publication_name=source.publication,
        bootstrap=kafka.bootstrap,
        prefix=kafka.prefix,
        owned=owned,
        server=server,
        identity=identify(source.dsn.get_secret_value(), cut.timeline if cut else None),
        slot=found,
        stored=stored,
        publications=publications,
        tables=tables,
        topics=seen.topics,
        brokers=seen.brokers,
        publish=source.publish,
    )
