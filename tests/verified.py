"""What `tailrace verify` finds between source and topic; the command itself compares a view, too, which needs Spark."""

from __future__ import annotations

import psycopg

from cdc.ops import verify
from cdc.ops.verify_tables import comparable
from schemas.config import Config
from snapshot.comparison import COMPARED, Comparison
from tests.daemon import wait_for_state


def differing_keys(config: Config, table: str) -> int:
    """Return how many keys of a table in `public` differ."""
    name = ("public", table)
    form = verify._form(config, name, verify._schemas(config))
    with psycopg.connect(config.source.dsn.get_secret_value(), autocommit=True) as connection, Comparison() as side:
        x = verify._read_source(config, {name: form}, comparable(config, [name]).filters, {name: side}, 30)
        cut = wait_for_state(config, connection)
        verify._load_topic(config, name, side, form, cut, x)
        return side.outcome(COMPARED[0], 10).differing
