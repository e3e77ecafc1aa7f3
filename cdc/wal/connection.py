"""WAL stream: START_REPLICATION over `psycopg.pq`, reading messages and sending status updates.

Messages are not decoded here. https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import select
import struct
import threading
import time

from psycopg import OperationalError, pq

from tailrace.cdc.postgres.connect import connect_replication, connection_lost, server_refused
from tailrace.cdc.wal import copydata
from tailrace.cdc.wal.pgoutput import POSTGRES_EPOCH_US
from tailrace.schemas.error_codes import REFILL
from tailrace.schemas.errors import DecodeError, StateError

_STATUS_INTERVAL_S = 1.5
"""A quarter of the `wal_sender_timeout` that we set, so that one late update is harmless."""

_CONNECTION = "the replication connection"

_keepalive_at = struct.Struct(">QqB").unpack_from
_status = struct.Struct(">cQQQqB").pack

_NAP_S = 0.001
_MANY = 64
"""After fewer messages than this, sleep for `_NAP_S`, so that more are read at once.

The server sends each row separately, and a wake-up costs more than a read. Sleeping after many messages would let a
Unix socket's buffer fill up.
"""

_PARALLEL = 4
"""The first protocol with ``streaming 'parallel'``, in which aborts include their LSN and time."""


def _newest_protocol(server_version: int) -> int:
    """Return the server's newest pgoutput protocol: 2 since PostgreSQL 14, 3 since 15, 4 since 16."""
    return min(server_version // 10_000 - 12, 4)


class Wal:
    """A stream that owns its slot from `__init__` to `close`.

    `server_wal_end` is the LSN up to which the server has decoded the WAL and sent all changes. `parallel` says which
    form the aborts of streamed transactions have. A separate thread sends a status update every 1.5 s, independent of
    the caller, with the flushed LSN from `confirm` and the applied LSN from `level`. Each update requests a reply,
    because a server that is busy with the WAL of others sends nothing by itself.
    """

    def __init__(self, dsn: str, slot: str, publications: list[str], *, streaming: bool = False) -> None:
        """With `streaming`, the server sends large transactions before they have committed."""
        self._pgconn = connect_replication(dsn)
        self._lock = threading.Lock()
        self._flushed_lsn = 0
        self._level_lsn = 0
        self._closed = threading.Event()
        self._few = True
        self._left_out: StateError | None = None
        self._pgconn.notice_handler = self._look_at_notice
        self.server_wal_end = 0
        names = ",".join('"' + name.replace('"', '""') + '"' for name in publications).replace("'", "''")
        protocol = _newest_protocol(self._pgconn.server_version)
        self.parallel = streaming and protocol >= _PARALLEL
        options = f"proto_version '{protocol}', publication_names '{names}', messages 'true'"
        if streaming:
            options += f", streaming '{'parallel' if self.parallel else 'on'}'"
        result = self._pgconn.exec_(f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({options})'.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._pgconn.finish()
            raise server_refused("START_REPLICATION", result)
        self._thread = threading.Thread(target=self._keep_alive, name="wal-status", daemon=True)
        self._thread.start()

    def read(self, limit: int, messages: list[bytes]) -> bool:
        """Append up to `limit` received XLogData messages; False if there are no more for now. Never waits.

        SourceError if the connection is lost, StateError if the server has left out changes.
        """
        before = len(messages)
        with self._lock:
            try:
                found = copydata.read(self._pgconn, limit, messages, self._keepalive)
                self._few = len(messages) - before < _MANY
                if self._left_out is not None:
                    raise self._left_out
                if found == copydata.ENDED:
                    result = self._pgconn.get_result()
                    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                        raise server_refused("to continue streaming", result)
                    raise connection_lost("The server ended the stream.", _CONNECTION)
                return bool(found == copydata.MORE)
            except OperationalError as error:
                raise connection_lost(str(error), _CONNECTION) from None

    def _look_at_notice(self, notice: pq.abc.PGresult) -> None:
        """Note that a publication was missing at the time of a change, which the stream therefore lacks.

        The publication had been dropped or renamed. From PostgreSQL 18 on, the server warns of this and continues. The
        message is localized; its source function, which is checked here, is not.
        """
        if notice.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == b"LoadPublications":
            words = (notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
            self._left_out = StateError(
                "TR-404",
                "changes are missing from the stream: a publication was temporarily dropped or renamed",
                detail=f"PostgreSQL left them out: {words}.",
                hint=REFILL,
            )

    def _keepalive(self, raw: bytes) -> None:
        if len(raw) < 18:
            raise DecodeError("keepalive", 0, 18, len(raw))
        wal_end, _clock, reply = _keepalive_at(raw, 1)
        self.server_wal_end = max(self.server_wal_end, wal_end)
        if reply:
            self._send_status()

    def wait(self, seconds: float) -> None:
        """Wait for data, at most `seconds`."""
        ready, _, _ = select.select([self._pgconn.socket], [], [], seconds)
        if ready and self._few:
            time.sleep(_NAP_S)

    def confirm(self, flushed_lsn: int) -> None:
        """Confirm to the server that everything before `flushed_lsn` is safe, so that it may remove that WAL."""
        with self._lock:
            if flushed_lsn > self._flushed_lsn:
                self._flushed_lsn = flushed_lsn
                self._send_status()

    def level(self, lsn: int) -> None:
        """Report in pg_stat_replication.replay_lsn that every change committed before `lsn` is in Kafka.

        It may be after the confirmed LSN if the WAL between has no captured changes. `tailrace status` reads it.
        """
        if lsn <= self._level_lsn:
            return
        with self._lock:
            self._level_lsn = lsn
            try:
                self._send_status()
            except OperationalError as error:
                raise connection_lost(str(error), _CONNECTION) from None

    def ask(self) -> None:
        """Request the server's sent LSN at once; its reply updates `server_wal_end`."""
        with self._lock:
            try:
                self._send_status(reply=True)
            except OperationalError as error:
                raise connection_lost(str(error), _CONNECTION) from None

    def _keep_alive(self) -> None:
        while not self._closed.wait(_STATUS_INTERVAL_S):
            with self._lock:
                if self._closed.is_set():
                    return
                try:
                    self._send_status(reply=True)
                except OperationalError:
                    return  # the reader gets the same error and reports it

    def _send_status(self, *, reply: bool = False) -> None:
        clock = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        received = max(self.server_wal_end, self._flushed_lsn)
        applied = max(self._level_lsn, self._flushed_lsn)
        self._pgconn.put_copy_data(_status(b"r", received, self._flushed_lsn, applied, clock, reply))
        self._pgconn.flush()

    def close(self) -> None:
        """End the stream and release the slot; a CopyDone makes the server read the last status update."""
        self._closed.set()
        with self._lock:
            try:
                if self._pgconn.status == pq.ConnStatus.OK:
                    self._send_status()
                    self._pgconn.put_copy_end()
                    self._pgconn.flush()
                    self._drain(time.monotonic() + 1.0)
            except OperationalError:
                pass
            self._pgconn.finish()

    def _drain(self, deadline: float) -> None:
        """Read until the server has ended its side: then it has also read the last status update."""
        while (left := deadline - time.monotonic()) > 0:
            size, _ = self._pgconn.get_copy_data(1)
            if size < 0:
                return
            if size == 0:
                select.select([self._pgconn.socket], [], [], left)
                self._pgconn.consume_input()
