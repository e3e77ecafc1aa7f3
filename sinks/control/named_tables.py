"""Find the tables of views whose names have several readings: ``freight.v2.orders`` without quotes."""

from __future__ import annotations

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates, resolve, split_name, written
from tailrace.sinks.control.positions import read_schemas

_SURE = 2
"""Readings of a name with one dot: that dot separates schema and table, as documented."""


def with_found_tables(config: Config) -> Config:
    """Return the configuration with quotes in such views' `table`, as the topics with records tell.

    Kafka is only asked if there is such a name. If it does not answer, or has no such topic, the configuration stays
    as it is: the command that needs the table reports that.
    """
    unsure = {
        name: view.table
        for name, view in config.views.items()
        if view.table is not None and len(candidates(view.table)) > _SURE
    }
    if not unsure:
        return config
    topics = Topics(config.kafka.prefix)
    try:
        subjects = {stored.subject for stored in read_schemas(config.kafka, topics)}
    except SinkError:
        return config

    def has_records(schema: str, table: str) -> bool:
        return f"{topics.table(schema, table)}-value" in subjects

    views = dict(config.views)
    for name, table in unsure.items():
        found = resolve(table, has_records)
        if found != split_name(table):
            views[name] = views[name].model_copy(update={"table": written(*found)})
    return config.model_copy(update={"views": views})
