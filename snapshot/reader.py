"""Workers of the first copy: each holds the exported snapshot open and COPYs chunk after chunk.

They are connections, not threads: the server does the reading. Rows wait in the socket buffers until they are read, so
the server is never further ahead than these buffers allow.
https://www.postgresql.org/docs/current/sql-set-transaction.html (SET TRANSACTION SNAPSHOT)
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import psycopg
from psycopg import pq, sql

from tailrace.schemas.relation import Relation
from tailrace.snapshot.copystream import DRAINED, ENDED, read_lines
from tailrace.snapshot.plan import Chunk, copy_statement

BATCH_BYTES = 262_144
"""Maximum bytes of a COPY read at once; exceeded by at most one row."""

_NAP_S = 0.001
"""Pause after a wait: the server sends about 50 rows at a time; a wakeup costs more than reading them."""

LOCK_BRIEFLY: Final = "SET LOCAL lock_timeout = '200ms'"
"""For lock requests that can be repeated: less than deadlock_timeout, so that no other session becomes its victim."""

LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '2s'"
"""Longest wait for a table lock: meanwhile, conflicting lock requests queue up after this session."""

Lines = list[bytes]


class Copy:
    """The COPY of a chunk on a connection. Raises psycopg's errors."""

    def __init__(self, connection: psycopg.Connection, chunk: Chunk, relation: Relation) -> None:
        self.chunk = chunk
        self._pgconn = connection.pgconn
        statement = copy_statement(chunk, relation)
        self._pgconn.send_query(statement.as_bytes(connection))
        self._began = False

    @property
    def socket(self) -> int:
        return self._pgconn.socket

    def read(self, lines: Lines) -> int:
        """Append received rows, about 256 KiB at most; return MORE, DRAINED or ENDED. Never waits."""
        if not self._began:
            self._pgconn.consume_input()
            if self._pgconn.is_busy():
                return DRAINED
            self._result(pq.ExecStatus.COPY_OUT)
            self._began = True
        found = read_lines(self._pgconn, BATCH_BYTES, lines)
        if found == ENDED:
            self._result(pq.ExecStatus.COMMAND_OK)
            while self._pgconn.get_result() is not None:
                pass
        return found

    def _result(self, wanted: pq.ExecStatus) -> None:
        result = self._pgconn.get_result()
        if result is None or result.status != wanted:
            error = psycopg.errors.error_from_result(result) if result else None
            while self._pgconn.status == pq.ConnStatus.OK and self._pgconn.get_result() is not None:
                pass
            raise error or psycopg.OperationalError("the connection is closed")


def read_chunk(connection: psycopg.Connection, chunk: Chunk, relation: Relation) -> Iterator[Lines]:
    """Yield the chunk's rows as lines of COPY's text format, about 256 KiB at a time; wait for them."""
    copy = Copy(connection, chunk, relation)
    found = DRAINED
    while found != ENDED:
        lines: Lines = []
        found = copy.read(lines)
        if lines:
            yield lines
        if found == DRAINED:
            _wait([copy.socket], None)


def _wait(sockets: Sequence[int], seconds: float | None) -> None:
    select.select(sockets, [], [], seconds)
    time.sleep(_NAP_S)


def lock_tables(connection: psycopg.Connection, relations: Iterable[Relation]) -> None:
    """Lock all tables in ACCESS SHARE mode: a rewritten table would show no rows to an older snapshot.

    Raises LockNotAvailable if another session holds a conflicting lock for longer than the lock timeout.
    """
    # SET and LOCK only: a query would take a snapshot
    connection.execute(LOCK_TIMEOUT)
    names = sql.SQL(", ").join(sql.Identifier(relation.schema, relation.name) for relation in relations)
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))


class SnapshotWorkers:
    """Connections that read chunks of tables as of one exported snapshot.

    Memory: the buffers of libpq and of the sockets, and the batches that one `poll` returns.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection], count: int) -> None:
        self.connections: list[psycopg.Connection] = []
        self._todo: Iterator[Chunk] = iter(())
        self._relations: Mapping[str, Relation] = {}
        self._copies: dict[psycopg.Connection, Copy] = {}
        self._few = False
        try:
            for _ in range(count):
                connection = connect()
                self.connections.append(connection)
        except BaseException:
            self.close()
            raise

    def lock(self, relations: Sequence[Relation]) -> None:
        """Begin transactions that hold ACCESS SHARE locks on all tables and have no snapshot yet.

        LOCK is the one statement that a transaction may run before it sets its snapshot. So no conflicting lock can be
        granted between the creation of the slot and its workers.
        """
        for connection in self.connections:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            lock_tables(connection, relations)

    def see(self, snapshot_name: str) -> None:
        """Set the exported snapshot in all transactions; after that, the exporting transaction may end."""
        for connection in self.connections:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name)))

    def read(self, chunks: Iterable[Chunk], relations: Mapping[str, Relation]) -> None:
        """Begin to read the chunks in their order, with the columns of `relations`, which is by table name."""
        self._todo = iter(chunks)
        self._relations = relations
        for connection in self.connections:
            self._next(connection)

    @property
    def busy(self) -> bool:
        """Whether chunks are left to read."""
        return bool(self._copies)

    def poll(self, seconds: float) -> list[tuple[Chunk, Lines | None]]:
        """Return received rows, and (chunk, None) after a chunk's last ones; wait at most `seconds` for them."""
        if self._few:
            _wait([copy.socket for copy in self._copies.values()], seconds)
        results: list[tuple[Chunk, Lines | None]] = []
        self._few = True
        for connection, copy in list(self._copies.items()):
            lines: Lines = []
            found = copy.read(lines)
            if lines:
                results.append((copy.chunk, lines))
            if found == ENDED:
                results.append((copy.chunk, None))
                self._next(connection)
            self._few = self._few and found == DRAINED
        return results

    def _next(self, connection: psycopg.Connection) -> None:
        chunk = next(self._todo, None)
        if chunk is None:
            self._copies.pop(connection, None)
        else:
            self._copies[connection] = Copy(connection, chunk, self._relations[chunk.table])

    def close(self) -> None:
        """Close the connections and release the snapshot, even in the middle of a chunk."""
        for connection in self.connections:
            connection.close()
