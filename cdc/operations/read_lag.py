"""Lag of the topics, as defined in `schemas.lag`, measured by a command outside of the daemon.

A daemon on this host answers over HTTP. For a daemon elsewhere, the server knows its position. If none runs, the
waiting changes are decoded from the slot without moving it.
"""

from __future__ import annotations

import http.client
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg

from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.wal import pgoutput
from tailrace.schemas.config.model import Config
from tailrace.schemas.lag import age
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.schemas.records.position import PositionRecord

_HTTP_S: Final = 1.0
_LEVEL_S: Final = 2.0
"""A daemon reports its position every 1.5 s; changes not delivered after this time are late."""

_LOOK_S: Final = 0.1

_PEEK_BYTES: Final = 67_108_864
_PEEK_ROWS: Final = 1000
_PEEK_MS: Final = 2000
"""Limits of decoding to find the first waiting change: WAL bytes, rows, milliseconds."""


@dataclass(frozen=True, slots=True)
class Walsender:
    """The server's view of a daemon: all changes committed before `level_lsn` are in Kafka."""

    client: str | None
    level_lsn: int | None


def ask_daemon(record: DaemonRecord | None, config: Config) -> dict[str, Any] | None:
    """Return the `/status` response of the recorded daemon, None if it does not run on this host.

    Without a record, for example while Kafka is down, the configured address is used.
    """
    address = config.health.listen if record is None else record.address
    if not address or (record is not None and record.host != socket.gethostname()):
        return None
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    # not urllib, which would use the proxy of the environment
    connection = http.client.HTTPConnection(local, int(port), timeout=_HTTP_S)
    try:
        connection.request("GET", "/status")
        body = orjson.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, orjson.JSONDecodeError):
        return None
    finally:
        connection.close()
    if not isinstance(body, dict):
        return None  # the response of another program
    same = (body.get("slot"), body.get("prefix")) == (config.source.slot, config.kafka.prefix)
    return body if same and (record is None or body.get("pid") == record.pid) else None


def walsender(connection: psycopg.Connection, slot: Slot | None) -> Walsender | None:
    """Return the walsender that reads the slot, None if none does."""
    if slot is None or slot.active_pid is None:
        return None
    row = connection.execute(
        "SELECT coalesce(client_hostname, host(client_addr)), replay_lsn::text FROM pg_stat_replication WHERE pid = %s",
        (slot.active_pid,),
    ).fetchone()
    return Walsender(None, None) if row is None else Walsender(row[0], parse_lsn(row[1]) if row[1] else None)


def lag_behind_walsender(connection: psycopg.Connection, slot: Slot, wal_lsn: int, stored_s: float) -> float | None:
    """Return the lag (s) of a remote daemon from the position that it reports to the server.

    It is 0 if the daemon reaches `wal_lsn` within two seconds. Otherwise an upper bound is returned: the time since
    `stored_s`, the Kafka timestamp of the newest position. None if unknown.
    """
    deadline = time.monotonic() + _LEVEL_S
    while True:
        found = walsender(connection, slot)
        if found is None or found.level_lsn is None:
            return None
        if found.level_lsn >= wal_lsn:
            return 0.0
        if time.monotonic() > deadline:
            return age(stored_s, time.time()) if stored_s else None
        time.sleep(_LOOK_S)


class WaitingChanges:
    """The first waiting change in an inactive slot; a result is cached and not searched again."""

    def __init__(self) -> None:
        self._slot: tuple[str, int] | None = None
        self._since: float | None = None
        self._none_before = 0

    def lag(self, connection: psycopg.Connection, slot: Slot, stored: PositionRecord, wal_lsn: int) -> float | None:
        """Return the present lag (s); None if the WAL up to `wal_lsn` could not be searched within the limits."""
        where = slot.name, slot.confirmed_flush_lsn
        if self._slot != where:
            self._slot, self._since, self._none_before = where, None, 0
        if self._since is None and self._none_before < wal_lsn:
            known, self._since = _oldest_waiting(connection, slot, stored, wal_lsn)
            if not known:
                return None
            self._none_before = wal_lsn
        return age(self._since, time.time())


def _oldest_waiting(
    connection: psycopg.Connection, slot: Slot, stored: PositionRecord, wal_lsn: int
) -> tuple[bool, float | None]:
    """Return whether the first waiting change is known, and its commit time; (True, None) if none waits.

    The slot does not move, but a daemon that starts meanwhile has to wait briefly.
    """
    end = min(wal_lsn, slot.confirmed_flush_lsn + _PEEK_BYTES)
    try:
        names = connection.execute(
            "SELECT string_agg(quote_ident(pubname), ',') FROM pg_publication WHERE oid = ANY (%s)",
            ([stored.publication_oid, stored.nokey_oid],),
        ).fetchone()
        with connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = {_PEEK_MS}")
            # servers before 15 send a transaction without published changes as Begin and Commit only
            rows = connection.execute(
                "SELECT data FROM (SELECT data, get_byte(data, 0) AS kind, lead(get_byte(data, 0)) OVER () AS next"
                " FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, 'proto_version', '1',"
                " 'publication_names', %s)) AS found WHERE kind = 66 AND next IS DISTINCT FROM 67",
                (slot.name, format_lsn(end), _PEEK_ROWS, names[0] if names else ""),
            ).fetchall()
    except psycopg.Error:
        return False, None
    found = [pgoutput.begin(row[0]) for row in rows]
    waiting = [each for each in found if each.final_lsn > stored.here.position.commit_lsn]
    if waiting:
        return True, waiting[0].commit_us / 1e6
    return end >= wal_lsn and not found, None
