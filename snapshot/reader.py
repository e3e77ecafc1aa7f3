"""The first copy's workers: each holds the exported snapshot open and COPYs chunks into one bounded queue.

https://www.postgresql.org/docs/current/sql-set-transaction.html (SET TRANSACTION SNAPSHOT)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import psycopg
from psycopg import sql

from schemas.relation import Relation
from snapshot.plan import Chunk, copy_statement

BATCH_BYTES = 262_144
_QUEUED_BATCHES = 32
"""With `BATCH_BYTES` this bounds what is read ahead: 8 MiB, and a row more for each worker."""

Lines = list[bytes]


def read_lines(connection: psycopg.Connection, chunk: Chunk, relation: Relation) -> Iterator[Lines]:
    """Yield the chunk's rows as lines of COPY's text format, some 256 KiB at a time."""
    batch: Lines = []
    size = 0
    with connection.cursor().copy(copy_statement(chunk, [column.name for column in relation.columns])) as copy:
        for line in copy:
            batch.append(bytes(line))
            size += len(line)
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def import_snapshot(connection: psycopg.Connection, snapshot_name: str, relations: Sequence[Relation]) -> None:
    """Open a transaction that sees the exported snapshot, and lock the tables against being rewritten."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name)))
    lock_tables(connection, relations)


def lock_tables(connection: psycopg.Connection, relations: Sequence[Relation]) -> None:
    """Take ACCESS SHARE on all tables: a table that is rewritten shows an older snapshot no rows at all."""
    names = sql.SQL(", ").join(sql.Identifier(relation.schema, relation.name) for relation in relations)
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))


class SnapshotWorkers:
    """Threads that read chunks. Iterate to get (chunk, lines), and (chunk, None) when one is finished."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        count: int,
        snapshot_name: str,
        relations: Mapping[str, Relation],
        chunks: Sequence[Chunk],
    ) -> None:
        """Return once every worker sees the snapshot: the exporting transaction may end then."""
        self._relations = relations
        self._todo: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        for chunk in chunks:
            self._todo.put(chunk)
        self._left = len(chunks)
        self._results: queue.Queue[tuple[Chunk, Lines | None] | Exception] = queue.Queue(_QUEUED_BATCHES)
        self._stop = threading.Event()
        self._connections: list[psycopg.Connection] = []
        try:
            for _ in range(min(count, max(len(chunks), 1))):
                connection = connect()
                self._connections.append(connection)
                import_snapshot(connection, snapshot_name, list(relations.values()))
        except BaseException:
            self.close()
            raise
        self._threads = [
            threading.Thread(target=self._work, args=(connection,), name=f"snapshot-{n}", daemon=True)
            for n, connection in enumerate(self._connections)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[tuple[Chunk, Lines | None]]:
        """Raise what a worker met, as it was."""
        while self._left:
            result = self._results.get()
            if isinstance(result, Exception):
                raise result
            if result[1] is None:
                self._left -= 1
            yield result

    def _work(self, connection: psycopg.Connection) -> None:
        try:
            while not self._stop.is_set():
                chunk = self._todo.get_nowait()
                for lines in read_lines(connection, chunk, self._relations[chunk.table]):
                    self._put((chunk, lines))
                self._put((chunk, None))
        except queue.Empty:
            return
        except Exception as error:
            self._put(error)

    def _put(self, result: tuple[Chunk, Lines | None] | Exception) -> None:
        while not self._stop.is_set():
            try:
                self._results.put(result, timeout=0.2)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        """End the workers, also in the middle of a chunk."""
        self._stop.set()
        for connection in self._connections:
            connection.close()
