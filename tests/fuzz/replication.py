"""A real libpq connection in COPY_BOTH, with us as its server: we can send any bytes."""

from __future__ import annotations

import socket
import struct
import tempfile

from psycopg import pq

_PORT = 5432


class ReplicationStream:
    """Both ends of the connection. `send` frames messages as CopyData, as a walsender does."""

    def __init__(self) -> None:
        """Connect both ends in one thread: libpq is only called for what it can do without waiting."""
        # a new folder with a short path, for the path of a socket is limited to some 100 bytes
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/.s.PGSQL.{_PORT}")
            listener.listen()
            dsn = f"host={folder} port={_PORT} user=fuzz dbname=fuzz gssencmode=disable sslmode=disable"
            self.connection = connection = pq.PGconn.connect_start(dsn.encode())
            while connection.connect_poll() == pq.PollingStatus.WRITING:
                pass
            self._peer, _ = listener.accept()
        self._answer(b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I")
        while connection.connect_poll() != pq.PollingStatus.OK:
            assert connection.status != pq.ConnStatus.BAD, connection.get_error_message()
        connection.send_query(b"START_REPLICATION")
        self._answer(b"W\0\0\0\x07\0\0\0")
        connection.consume_input()
        result = connection.get_result()
        assert result is not None
        assert result.status == pq.ExecStatus.COPY_BOTH

    def _answer(self, raw: bytes) -> None:
        self._peer.recv(10_000)
        self._peer.sendall(raw)

    def send(self, messages: list[bytes]) -> None:
        self._peer.sendall(b"".join(b"d" + struct.pack(">I", 4 + len(each)) + each for each in messages))

    def drain(self) -> None:
        """Discard what a reader that gave up has left."""
        self.connection.consume_input()
        while self.connection.get_copy_data(1)[0] > 0:
            pass

    def close(self) -> None:
        self._peer.close()
        self.connection.finish()
