"""An Iceberg table by its Java API: its live files, and commits of rows and deletion vectors.

It is used in the driver of a Spark job. https://iceberg.apache.org/javadoc/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.sinks.iceberg.direct.deletion_vectors import Blob
from tailrace.sinks.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED: Final = (
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
)


class Refused(Exception):
    """Iceberg has refused a commit, because the table has changed since it was read. Nothing was committed."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot, and Java's object of it; `vector` is that of its deletion vector, None without one."""

    path: str
    first_row_id: int | None
    vector: Any
    file: Any


@dataclass(frozen=True, slots=True)
class Facts:
    """The size of data files in bytes, their rows, and how many of these are deleted."""

    size: int
    rows: int
    deleted: int

    def __add__(self, other: Facts) -> Facts:
        return Facts(self.size + other.size, self.rows + other.rows, self.deleted + other.deleted)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was written; `size` is in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """Files that a commit adds: a data file, and a Puffin file with the vectors of data files, by their path."""

    data: NewFile | None
    puffin: NewFile | None
    vectors: Mapping[str, Blob]
    replaced: Sequence[Any]
    """The vectors (Java's objects) in whose place the new ones come."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit: its snapshot, the one before it, the row id of its first new row, its vectors (Java's objects)."""

    snapshot: int
    parent: int | None
    first_row_id: int | None
    data_path: str | None
    vectors: Mapping[str, Any]


class JavaApi:
    """Iceberg's Java classes."""

    def __init__(self, session: SparkSession) -> None:
        self.data_files = java_class(session._jvm, "org.apache.iceberg.DataFiles")
        self.file_metadata = java_class(session._jvm, "org.apache.iceberg.FileMetadata")
        self.parquet = java_class(session._jvm, "org.apache.iceberg.parquet.ParquetUtil")
        self.metrics = java_class(session._jvm, "org.apache.iceberg.MetricsConfig")
        self.schema_parser = java_class(session._jvm, "org.apache.iceberg.SchemaParser")
        self.array_list = java_class(session._jvm, "java.util.ArrayList")
        self.expressions = java_class(session._jvm, "org.apache.iceberg.expressions.Expressions")


class JavaTable:
    """A table, as Java has just loaded it, and one of its branches."""

    def __init__(self, api: JavaApi, table: Any, branch: str) -> None:
        self._api = api
        self._table = table
        self._branch = branch

    def refresh(self) -> None:
        """Read the newest metadata."""
        self._table.refresh()

    def head(self) -> int | None:
        """Return the snapshot of the branch as of the last `refresh` or commit; None if there is none."""
        snapshot = self._table.snapshot(self._branch)
        return None if snapshot is None else int(snapshot.snapshotId())

    @property
    def location(self) -> str:
        """The table's folder."""
        return str(self._table.location())

    def schema_json(self) -> str:
        """Return the newest schema as JSON."""
        return str(self._api.schema_parser.toJson(self._table.schema()))

    def descends(self, snapshot: int, ancestor: int) -> bool:
        """Whether a snapshot was made from another one by commits that are all still known."""
        at = self._table.snapshot(snapshot)
        while at is not None:
            if int(at.snapshotId()) == ancestor:
                return True
            parent = at.parentId()
            at = None if parent is None else self._table.snapshot(parent)
        return False

    def files(self, snapshot: int) -> Iterator[LiveFile]:
        """Yield the data files of a snapshot. ValueError if rows are deleted otherwise than by deletion vectors."""
        tasks = self._table.newScan().useSnapshot(snapshot).planFiles()
        try:
            found = tasks.iterator()
            while found.hasNext():
                task = found.next()
                # not by iteration: its end is an exception in Java, which PySpark takes 20 ms to classify
                deletes = task.deletes()
                count = int(deletes.size())
                vector = deletes.get(0) if count else None
                if count > 1 or (vector is not None and str(vector.format()) != "PUFFIN"):
                    raise ValueError("rows are deleted by other files than deletion vectors")
                file = task.file()
                first = file.firstRowId()
                yield LiveFile(str(file.location()), None if first is None else int(first), vector, file)
        finally:
            tasks.close()

    def count_files(self, snapshot: int) -> int:
        """Return the number of data files of a snapshot."""
        return int(self._table.snapshot(snapshot).summary().get("total-data-files"))

    def has_defaults(self) -> bool:
        """Whether a column has a default value, which files without this column have in its place."""
        return "initial-default" in self.schema_json()

    def facts(self, file: LiveFile) -> Facts:
        """Return what decides whether a data file is rewritten."""
        deleted = 0 if file.vector is None else int(file.vector.recordCount())
        return Facts(int(file.file.fileSizeInBytes()), int(file.file.recordCount()), deleted)

    def sequence(self, file: LiveFile) -> int:
        """Return the sequence number of the commit that added a data file."""
        return int(file.file.dataSequenceNumber())

    def read_vector(self, vector: Any) -> bytes:
        """Return the bytes of a deletion vector."""
        stream = self._table.io().newInputFile(vector.location()).newStream()
        try:
            stream.seek(vector.contentOffset())
            return bytes(stream.readNBytes(int(vector.contentSizeInBytes())))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> NewFile:
        """Create a file of this name, which no other has, among the table's files."""
        path = str(self._table.locationProvider().newDataLocation(name))
        stream = self._table.io().newOutputFile(path).create()
        try:
            stream.write(content)
        finally:
            stream.close()
        return NewFile(path, len(content))

    def delete(self, path: str) -> None:
        """Delete a file that no commit has added."""
        self._table.io().deleteFile(path)

    def commit(self, written: Written, referenced: Sequence[str], properties: Mapping[str, str]) -> Committed:
        """Commit files with snapshot properties, on top of `head` or of a later snapshot that does not conflict.

        Refused if a data file in `referenced` is gone, or has another deletion vector than it had in `head`.
        """
        spec = self._table.spec()
        delta = self._table.newRowDelta()
        if written.data is not None:
            delta.addRows(self._data_file(spec, written.data))
        vectors = {}
        if written.puffin is not None:
            for path, blob in written.vectors.items():
                vectors[path] = self._vector(spec, path, blob, written.puffin)
                delta.addDeletes(vectors[path])
        for vector in written.replaced:
            delta.removeDeletes(vector)
        paths = self._api.array_list()
        for path in referenced:
            paths.add(path)
        if (head := self.head()) is not None:
            delta.validateFromSnapshot(head)
        delta.validateDataFilesExist(paths).validateDeletedFiles()
        delta.validateNoConflictingDeleteFiles().validateNoConflictingDataFiles()
        for name, value in properties.items():
            delta.set(name, value)
        if self._branch != "main":
            delta.toBranch(self._branch)
        with _refusals():
            delta.commit()
        snapshot = self._table.snapshot(self._branch)
        parent, first = snapshot.parentId(), snapshot.firstRowId()
        return Committed(
            int(snapshot.snapshotId()),
            None if parent is None else int(parent),
            None if first is None else int(first),
            None if written.data is None else written.data.path,
            vectors,
        )

    def replace(self, files: Sequence[NewFile], properties: Mapping[str, str]) -> None:
        """Commit data files, with snapshot properties, in place of all that the branch has."""
        spec = self._table.spec()
        overwrite = self._table.newOverwrite().overwriteByRowFilter(self._api.expressions.alwaysTrue())
        for file in files:
            overwrite.addFile(self._data_file(spec, file))
        for name, value in properties.items():
            overwrite.set(name, value)
        if self._branch != "main":
            overwrite.toBranch(self._branch)
        overwrite.commit()

    def rewrite(self, files: Sequence[LiveFile], new: NewFile | None, head: int) -> None:
        """Commit a data file, or none, in place of others of the snapshot `head`, which has the same live rows.

        Refused if rows of these files have been deleted since, or if they have been replaced.
        """
        rewrite = self._table.newRewrite().validateFromSnapshot(head)
        for file in files:
            rewrite.deleteFile(file.file)
            if file.vector is not None:
                rewrite.deleteFile(file.vector)
        if new is not None:
            rewrite.addFile(self._data_file(self._table.spec(), new))
        if self._branch != "main":
            rewrite.toBranch(self._branch)
        with _refusals():
            rewrite.commit()

    def _data_file(self, spec: Any, file: NewFile) -> Any:
        metrics = self._api.parquet.fileMetrics(
            self._table.io().newInputFile(file.path, file.size), self._api.metrics.forTable(self._table)
        )
        return (
            self._api.data_files.builder(spec)
            .withPath(file.path)
            .withFileSizeInBytes(file.size)
            .withFormat("PARQUET")
            .withMetrics(metrics)
            .build()
        )

    def _vector(self, spec: Any, path: str, blob: Blob, file: NewFile) -> Any:
        return (
            self._api.file_metadata.deleteFileBuilder(spec)
            .ofPositionDeletes()
            .withFormat("PUFFIN")
            .withPath(file.path)
            .withFileSizeInBytes(file.size)
            .withReferencedDataFile(path)
            .withContentOffset(blob.offset)
            .withContentSizeInBytes(blob.length)
            .withRecordCount(blob.cardinality)
            .build()
        )


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise Refused in place of Java's exceptions for a commit that conflicts with another one."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() in _REFUSED:
            raise Refused(str(error.java_exception.getMessage())) from None
        raise
