"""Many rows in this process, in files of chunks: the whole content of a view that needs no Spark to be computed."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from tailrace.sinks.target.few_rows import FewRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class SpooledRows:
    """Chunks of rows in unnamed files, from which rows can be taken out afterwards. Memory: one chunk at a time."""

    def __init__(self, session: SparkSession, schema: StructType) -> None:
        self.schema = schema
        self._session = session
        self._chunks: list[IO[bytes]] = []
        self._gone: Sequence[bytes | bytearray] = ()
        self.rows = 0
        """Number of rows so far, without those left out."""
        self.given = 0
        """How many of them the last iteration has given."""

    def add(self, chunk: Any) -> None:
        """Append an Arrow table with the columns of `schema`."""
        import pyarrow as pa  # type: ignore[import-untyped]

        file = tempfile.TemporaryFile(prefix="tailrace-rows-")  # noqa: SIM115  closed by `close`
        self._chunks.append(file)
        with pa.ipc.new_file(file, chunk.schema) as writer:
            writer.write_table(chunk)
        file.flush()
        self.rows += len(chunk)

    def leave_out(self, gone: Sequence[bytes | bytearray]) -> None:
        """Leave rows out: a bitmap for each chunk, the least bit first."""
        self._gone = gone
        self.rows -= sum(int.from_bytes(bits, "little").bit_count() for bits in gone)

    def tables(self) -> Iterator[Any]:
        """Yield the rows, as an Arrow table for each chunk that has some; any number of times, in any thread."""
        self.given = 0
        for table in self._filtered():
            yield table
            self.given += len(table)

    def few(self, most_bytes: int) -> Iterator[FewRows]:
        """Yield the rows in slices of about `most_bytes`."""
        self.given = 0
        for table in self._filtered():
            rows = max(1, len(table) * most_bytes // max(1, table.nbytes))
            for start in range(0, len(table), rows):
                part = table.slice(start, rows)
                yield FewRows.collected(self._session, part, self.schema)
                self.given += len(part)

    def close(self) -> None:
        """Give the files' space back."""
        for file in self._chunks:
            file.close()

    def _filtered(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        for number, file in enumerate(self._chunks):
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
            bits = self._gone[number] if self._gone else b""
            if any(bits):
                gone = pa.Array.from_buffers(pa.bool_(), len(table), [None, pa.py_buffer(bits)])
                table = table.filter(pc.invert(gone))
            if len(table):
                yield table
