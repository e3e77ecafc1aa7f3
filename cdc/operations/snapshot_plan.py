"""Plan of a first copy: the tables, their reads and their order; nothing is created or changed."""

from __future__ import annotations

import psycopg

from tailrace.cdc.backfill.exported_snapshot import condition_errors
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.catalog import table_relation
from tailrace.cdc.postgres.connect import cannot_read, connect_to_read
from tailrace.cdc.postgres.keys import Keys
from tailrace.cdc.startup.inspect_tables import check_patterns, nothing_captured
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import all_of
from tailrace.snapshot.plan import TablePlan, in_order, plan_table
from tailrace.snapshot.reader import LOCK_TIMEOUT


def plan(config: Config) -> list[TablePlan]:
    """Return the plans of all captured tables; without a publication, of all that match ``source.tables``.

    Raises SourceError if the server cannot be queried, ConfigError for an invalid condition.
    """
    source = config.source
    with connect_to_read(source.dsn.get_secret_value(), application_name="tailrace plan") as connection:
        try:
            connection.execute("BEGIN READ ONLY")
            # size queries need a lock
            connection.execute(LOCK_TIMEOUT)
            found = publication.find(connection, source.publication)
            insert_only: set[int] = set()
            capture_set = CaptureSet(source.tables)
            check_patterns(connection, source.publication, capture_set, first=found is None)
            if found is not None:
                relations, insert_only = publication.relations(connection, found, capture_set)
                if not relations:
                    raise nothing_captured(connection, found, capture_set)
            else:
                named = publication.table_names(connection, None, capture_set)
                relations = [each for name in named if (each := table_relation(connection, *name)) is not None]
            if errors := condition_errors(connection, config, relations):
                raise all_of(errors)
            keys = Keys(connection, source.keys, insert_only, logs=source.publish == "insert")
            names = found.names if found is not None else []
            plans = [plan_table(connection, names, relation, config.snapshot) for relation in relations]
            return in_order(plans, {each.qualified_name for each in relations if not keys.of(each)})
        except psycopg.Error as error:
            raise cannot_read(error) from None
