"""Compare source and topic as `tailrace verify` does, which also compares a view, and needs Spark."""

from __future__ import annotations

import psycopg

from tailrace.cdc.operations import verify
from tailrace.cdc.operations.verify_result import Result
from tailrace.cdc.operations.verify_tables import comparable
from tailrace.schemas.config.model import Config
from tailrace.snapshot.verify.comparison import COMPARED, Comparisons, Outcome
from tests.support.daemon import wait_for_state


def differing_keys(config: Config, table: str) -> int:
    """Return how many keys of a table in `public` differ."""
    return compared(config, table).outcomes[0].differing


def compared(config: Config, table: str) -> Result:
    """Return the comparison of a table in `public` with its topic, as that of a view which equals its topic."""
    name = ("public", table)
    form = verify.form_of(config, name, verify.stored_schemas(config))
    dsn = config.source.dsn.get_secret_value()
    with psycopg.connect(dsn, autocommit=True) as connection, Comparisons() as comparisons:
        side = comparisons.add()
        x = verify.read_source(config, {name: form}, comparable(config, [name]).filters, {name: side}, 30)
        cut = wait_for_state(config, connection)
        verify.add_topic(config, name, side, form, cut, x)
        outcomes = (side.outcome(COMPARED[0], 10), Outcome(COMPARED[1], 0, 0, 0, ()))
        return Result(table, f"public.{table}", tuple(form.columns), form.key, x, cut.flushed_lsn, outcomes, 0.0)
