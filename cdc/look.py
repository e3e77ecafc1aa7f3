"""What there is at a start, asked of PostgreSQL and of Kafka; nothing is changed. `cdc.start` decides on it."""

from __future__ import annotations

import psycopg

from cdc import catalog, publication, slot
from cdc.capture_set import CaptureSet
from cdc.start import Found
from cdc.timeline import identify
from schemas.config import Config
from schemas.topics import Topics
from sinks.bounds import topic_bounds
from sinks.progress import read_position


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
