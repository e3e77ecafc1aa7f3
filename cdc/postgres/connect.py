"""Connections to PostgreSQL, with all settings pinned that affect the text form of values."""

from __future__ import annotations

import re

import psycopg
from psycopg import conninfo, pq

from tailrace.cdc.postgres.lock_policy import TABLES_LOCKED
from tailrace.schemas.errors import ConfigError, SourceError
from tailrace.schemas.types import RENDERING

_WHOLE_TABLES = {
    # an error if policies would hide rows from us; normally the catalog check has reported it before
    "row_security": "off",
}

_ALWAYS_OPEN = {
    # a session that waits for its next query is not abandoned
    "idle_session_timeout": "0",
}

_REPLICATION_SETTINGS = {
    # a standby daemon waits for the slot: the server must detect soon that we have disconnected
    "wal_sender_timeout": "6s",
}

_SERVER_KEEPALIVES = {
    # so that locks and snapshots of a failed host do not remain. No tcp_user_timeout: it would also end the
    # connection of a reader that pauses while Kafka is slow.
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "4",
}

_KEEPALIVES = {
    # on our side, to detect a failed server: libpq's own defaults are hours
    "keepalives_idle": "4",
    "keepalives_interval": "1",
    "keepalives_count": "4",
    "tcp_user_timeout": "10000",
}


def conninfo_for(dsn: str, *, replication: bool = False, application_name: str = "tailrace") -> str:
    """Return `dsn` with the pinned settings, optionally for a logical replication connection.

    Either end detects within 10 s that the other host has failed.
    """
    settings = RENDERING | _WHOLE_TABLES | _ALWAYS_OPEN | _SERVER_KEEPALIVES
    del settings["client_encoding"]
    if replication:
        settings |= _REPLICATION_SETTINGS
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())
    given = conninfo.conninfo_to_dict(dsn)
    extra: dict[str, str | int] = {
        "client_encoding": RENDERING["client_encoding"],
        "options": f"{given['options']} {options}" if given.get("options") else options,
        "application_name": application_name,
        "connect_timeout": given.get("connect_timeout") or 10,
        **{name: given.get(name) or value for name, value in _KEEPALIVES.items()},
    }
    if replication:
        extra["replication"] = "database"
    return conninfo.make_conninfo(dsn, **extra)


def connect(dsn: str, *, application_name: str = "tailrace") -> psycopg.Connection:
    """Return an autocommit connection for SQL. SourceError if the server cannot be reached or refuses us."""
    try:
        return psycopg.connect(conninfo_for(dsn, application_name=application_name), autocommit=True)
    except psycopg.Error as error:
        raise cannot_connect(dsn, str(error)) from None


def connect_to_read(dsn: str, *, application_name: str) -> psycopg.Connection:
    """Return a connection like `connect`'s for reading tables, without role or database timeouts.

    Lock waits are short nevertheless: see `snapshot.reader`.
    """
    connection = connect(dsn, application_name=application_name)
    connection.execute(
        "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout',"
        " 'transaction_timeout', 'idle_in_transaction_session_timeout')"
    )
    return connection


def connect_replication(dsn: str) -> pq.abc.PGconn:
    """Return a logical replication connection of libpq. Raises SourceError like `connect`."""
    pgconn = pq.PGconn.connect(conninfo_for(dsn, replication=True).encode())
    if pgconn.status != pq.ConnStatus.OK:
        reason = pgconn.get_error_message()
        pgconn.finish()
        raise cannot_connect(dsn, reason)
    return pgconn


def command(pgconn: pq.abc.PGconn, text: str) -> list[tuple[bytes | None, ...]]:
    """Run a replication protocol command and return its rows. SourceError with the server's message."""
    result = pgconn.exec_(text.encode())
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise server_refused(text.split()[0], result)
    return [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


DECODING_FAILED = "TR-212"
"""The error code for an internal error of the server; while streaming, this is its logical decoding."""

SLOT_IN_USE = "TR-206"
"""The error code for a slot that another process reads, or is about to read."""


def server_refused(what: str, result: pq.abc.PGresult) -> SourceError:
    """Return an error for a failed result, with PostgreSQL's own message, detail and hint."""

    def field(code: pq.DiagnosticField) -> str:
        return (result.error_field(code) or b"").decode(errors="replace")

    sqlstate = field(pq.DiagnosticField.SQLSTATE)
    message = field(pq.DiagnosticField.MESSAGE_PRIMARY)
    hint = field(pq.DiagnosticField.MESSAGE_HINT)
    if sqlstate in ("55006", "42710"):  # object_in_use; duplicate_object: another process has just created it
        return SourceError(
            SLOT_IN_USE, message, hint=hint or "Stop the other consumer, or give this one a slot of its own."
        )
    return SourceError(
        DECODING_FAILED if sqlstate == "XX000" else "TR-209",
        f"PostgreSQL refused {what}: {message}",
        detail=field(pq.DiagnosticField.MESSAGE_DETAIL) or f"SQLSTATE {sqlstate}.",
        hint=hint,
    )


def connection_lost(reason: str, which: str = "a connection to PostgreSQL") -> SourceError:
    """Return the error for a connection lost while running; `reason` is the client's or server's text."""
    return SourceError(
        "TR-211",
        f"{which} was lost",
        detail=" ".join(reason.split()),
        hint="Nothing is lost: the slot retains the WAL, and the daemon resumes from the progress topic.",
    )


_WRONG_VALUE = re.compile(
    r'invalid (?:integer value ".*" for connection option "(?P<option>\w+)"|"?(?P<name>[a-z_ ]+?)"?(?: value)?: ")',
    re.S,
)
"""libpq's messages for values refused before connecting; never shown, as they contain the value."""


def cannot_connect(dsn: str, reason: str) -> SourceError | ConfigError:
    """Return the error for a failed connection, with its address and reason but without the password."""
    if "connection to server" not in reason and (wrong := _WRONG_VALUE.search(reason)):
        name = wrong["option"] or wrong["name"]
        return ConfigError(
            "TR-104",
            f'"source.dsn" is wrong: libpq does not accept the value of {name}',
            detail=f"If source.dsn does not set {name}, the value may be from the environment, such as PGSSLMODE.",
            hint="Accepted values: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS",
        )
    given = conninfo.conninfo_to_dict(dsn)
    where = f"{given.get('host') or 'localhost'}:{given.get('port') or 5432}"
    text = " ".join(reason.split())
    if "must be superuser or replication role" in text or "permission denied to start WAL sender" in text:
        user = given.get("user") or "the user"
        return SourceError(
            "TR-203",
            f'role "{user}" may not use replication',
            detail=text,
            hint=f'ALTER ROLE "{user}" REPLICATION;',
        )
    return SourceError(
        "TR-201",
        f"cannot connect to PostgreSQL at {where}",
        detail=text,
        hint=_hint(text, where),
    )


def _hint(reason: str, where: str) -> str:
    if "certificate verify failed" in reason:
        return f"openssl s_client -starttls postgres -connect {where} -CAfile FILE </dev/null  # shows what is wrong"
    if "password" in reason:
        return "The password is taken from source.dsn, else from PGPASSWORD, else from ~/.pgpass."
    return "Check that the server runs and that source.dsn names its host, port, database and user."


def cannot_read(error: psycopg.Error) -> SourceError:
    """Return the error for a failed read, with the server's message and a code of its own if transient."""
    reason = error.diag.message_primary or str(error)
    if isinstance(error, psycopg.errors.SerializationFailure):
        return SourceError(
            TABLES_LOCKED,
            "the standby cancelled a read that conflicted with WAL replay",
            detail=" ".join(reason.split()) + ".",
            hint="The read is retried. max_standby_streaming_delay sets how long the standby waits for reads.",
        )
    # without an SQLSTATE, or with one of a server shutdown or a lost connection
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "57P")[:3] in ("57P", "080"):
        return connection_lost(reason, "the connection that reads tables")
    return SourceError(
        "TR-227",
        "PostgreSQL refused to read a table",
        detail=" ".join(reason.split()) + ".",
        hint=error.diag.message_hint or "tailrace explain TR-227  # possible causes and their remedies",
    )
