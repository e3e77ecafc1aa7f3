"""Find out, on a live database, what `tailrace init` writes: tables, names, replication factor, SQL for the role."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from tailrace.cdc.postgres import catalog, publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.publication import Published
from tailrace.schemas.config.dsn import DsnError
from tailrace.schemas.config.dsn import check as check_dsn
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.relation import quoted
from tailrace.sinks.kafka.options import client_options

_ANSWER_S: Final = 3.0
_REPLICAS: Final = 3
"""Replicas of a topic if there are as many brokers."""

_CONNECTION: Final = ("host", "hostaddr", "port", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters of the given connection that the role of Tailrace uses, too; none is a secret."""

_OF_EXTENSIONS: Final = """
SELECT n.nspname::text, c.relname::text FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind IN ('r', 'p') ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The settings and statements for one database. `dsn` is that of `role`, without a password.

    `brokers` is their number, None if Kafka did not answer; `server` are statements that need a restart or a superuser.
    """

    dsn: str
    role: str
    slot: str
    publication: str
    prefix: str
    tables: tuple[str, ...]
    keyless: tuple[str, ...]
    bootstrap: str
    brokers: int | None
    server: tuple[str, ...]
    statements: tuple[str, ...]

    @property
    def replication_factor(self) -> int:
        """The replicas of new topics; -1, the broker's default, if the number of brokers is unknown."""
        return -1 if self.brokers is None else min(_REPLICAS, self.brokers)


def propose(dsn: str, bootstrap: str, role: str) -> Proposal:
    """Inspect the database and the brokers. SourceError if the database cannot be reached or is no source.

    ConfigError for a connection string that libpq does not accept.
    """
    try:
        check_dsn(dsn)
    except DsnError as error:
        raise ConfigError("TR-104", f'"--dsn" is wrong: {error}', hint=error.hint) from None
    with connect(dsn, application_name="tailrace init") as connection:
        connection.execute("SET default_transaction_read_only = on")
        server = catalog.server(connection)
        if server.version < catalog.OLDEST or server.encoding == "SQL_ASCII":
            replace(server, wal_level="logical").check()  # of the others, wal_level has a statement below
        patterns = _patterns(connection)
        name = re.sub(r"[^a-z0-9_]", "_", server.database.lower())[:40]
        slot = "tailrace" if not _has_slot(connection) else f"tailrace_{name}"
        plan = publication.planned(connection, "tailrace", CaptureSet(patterns))
        keyless = tuple(each.qualified_name for each in plan.relations if each.oid in plan.insert_only)
        return Proposal(
            _dsn_of(dsn, server.database, role),
            role,
            slot,
            "tailrace",
            name,
            tuple(patterns),
            keyless,
            bootstrap,
            _brokers(bootstrap),
            tuple(_settings(connection, server.wal_level)),
            tuple(_statements(connection, plan, role)),
        )


def _patterns(connection: psycopg.Connection) -> list[str]:
    """Return patterns for every schema with tables, without the tables of extensions."""
    schemas = sorted({schema for schema, _ in catalog.permanent_tables(connection)}) or ["public"]
    excluded = connection.execute(_OF_EXTENSIONS.encode()).fetchall()
    return [f"{_literal(schema)}.*" for schema in schemas] + [
        f"!{_literal(schema)}.{_literal(table)}" for schema, table in excluded if schema in schemas
    ]


def _literal(name: str) -> str:
    """Return a pattern that matches a name only."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _has_slot(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'tailrace'").rowcount > 0


def _dsn_of(dsn: str, database: str, role: str) -> str:
    given = conninfo.conninfo_to_dict(dsn)
    same = {name: given[name] for name in _CONNECTION if given.get(name) is not None}
    return conninfo.make_conninfo("", **{**same, "dbname": database, "user": role})


def _brokers(bootstrap: str) -> int | None:
    try:
        admin = AdminClient({**client_options(Kafka(bootstrap=bootstrap)), "log_level": 0})
        return len(admin.list_topics(timeout=_ANSWER_S).brokers)
    except KafkaException:
        return None


def _settings(connection: psycopg.Connection, wal_level: str) -> list[str]:
    """Return the statements for settings of the server that a start needs or that protect the server."""
    lines = []
    if wal_level != "logical":
        lines.append("ALTER SYSTEM SET wal_level = 'logical';  -- then restart the server")
    if connection.execute("SELECT current_setting('max_slot_wal_keep_size')").fetchone() == ("-1",):
        lines.append(
            "-- ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  -- less than the free space; then pg_reload_conf()"
        )
    return lines


def _statements(connection: psycopg.Connection, plan: Published, role: str) -> list[str]:
    """Return the statements for the role and the publications, without those that have been run already."""
    recipe = publication.recipe(connection, plan, role=role)
    known = connection.execute(
        "SELECT rolreplication OR rolsuper, rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = %s", (role,)
    ).fetchone()
    replicates, sees_all = known or (True, False)
    lines = [] if known else [recipe.create_role()]
    if not replicates:
        lines.append(f"ALTER ROLE {quoted(role)} REPLICATION;")
    if not sees_all and _has_row_security(connection, plan):
        lines.append(f"ALTER ROLE {quoted(role)} BYPASSRLS;  -- row-level security would hide rows from snapshots")
    lines += recipe.grants()
    if publication.find(connection, plan.publications.first.name) is None:
        lines += recipe.publications()
    return [*lines, recipe.monitor()]


def _has_row_security(connection: psycopg.Connection, plan: Published) -> bool:
    oids: Sequence[int] = [each.oid for each in plan.relations]
    return connection.execute("SELECT FROM pg_class WHERE relrowsecurity AND oid = ANY (%s)", (oids,)).rowcount > 0
