"""What there is at a start, asked of PostgreSQL and of Kafka; nothing is changed. `cdc.startup.decide` decides."""

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
    """Ask for all that a start is decided by. `owned`: the slot is ours, and whoever wrote before is fenced.

    What is asked for later may be newer, so that nothing looks lost that is only on its way: the slot first, for what
    it was told is on the topics; then the position; then what that is held against.
    """
    source, kafka = config.source, config.kafka
    topics = Topics(kafka.prefix)
    server = catalog.server(connection)
    server.check()  # what follows is not in the catalogs of older versions
    found = slot.inspect(connection, source.slot)
    stored = read_position(kafka, topics, source.slot)
    if found is None and stored is not None:
        # another daemon may have made it since
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
