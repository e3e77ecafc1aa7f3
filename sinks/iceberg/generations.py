"""List and drop the generations of a view in the warehouse.

A generation that is not live is a branch ``g{n}`` of the table, or a table ``{view}__g{n}`` if it is staged with other
columns. A number above the live one's is staged or was rolled back; a smaller one was live before. Dropping removes
snapshots and files at once, because no other tool has a reason to read them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.direct.writers import DirectWriters
from tailrace.sinks.iceberg.place import Place
from tailrace.sinks.iceberg.unreachable import Listed, unreachable
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import Applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GENERATION: Final = "tailrace.generation"

_NUMBERED: Final = re.compile(r"g(\d+)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the live generation; `cut` is None for a rewrite."""

    id: int
    timestamp_ms: int
    cut: Cut | None
    rewrite: bool


class Generations(ABC):
    """The part of `sinks.iceberg.target.IcebergTarget` that manages several generations."""

    _session: SparkSession
    _warehouse: Warehouse
    _view: str
    _places: dict[int, Place]
    _direct: DirectWriters

    @abstractmethod
    def live(self) -> Applied | None: ...

    @abstractmethod
    def _applied(self, place: Place) -> Applied | None: ...

    @abstractmethod
    def _ancestors(self, place: Place) -> Iterator[Any]: ...

    @abstractmethod
    def _loaded(self, table: str) -> Any: ...

    @abstractmethod
    def _table(self, table: str) -> str: ...

    def generations(self) -> dict[int, Applied]:
        """Return every generation that has a cut, including the live one, by number."""
        live = self.live()
        if live is None:
            return {}
        found = {live.generation: live}
        for number, place in self._beside():
            applied = self._applied(place)
            # A branch without writes shows the generation that it was created from.
            if number not in found and applied is not None and applied.generation == number:
                found[number], self._places[number] = applied, place
        return found

    def keep(self, numbers: Collection[int]) -> None:
        """Drop every generation except the live one and these, including remains of interrupted attempts."""
        live = self.live()
        if live is None:
            return
        for number, place in self._beside():
            if number in numbers and number != live.generation:
                continue
            self._drop(place)
            if number != live.generation:
                self._places.pop(number, None)
        self._expire({live.generation, *numbers})

    def remove(self) -> None:
        """Drop the view's table and the tables of its other generations."""
        for _, place in self._beside():
            if place.table != self._view:
                self._drop(place)
        self._direct.drop(Place(self._view))
        self._session.sql(f"DROP TABLE IF EXISTS {self._table(self._view)} PURGE")
        self._places.clear()

    def stored_rows(self, generation: int) -> DataFrame:
        """Return a generation's present rows, with soft-deleted ones; later batches do not change them."""
        return self._session.sql(f"SELECT * FROM {self._head(self._places[generation])}")

    def _head(self, place: Place) -> str:
        """Return the FROM expression for the newest snapshot of a place, with the columns of its schema."""
        return f"{self._table(place.table)} VERSION AS OF {next(self._ancestors(place)).snapshotId()}"

    def _drop(self, place: Place) -> None:
        self._direct.drop(place)
        if place.table != self._view:
            self._session.sql(f"DROP TABLE IF EXISTS {self._table(place.table)} PURGE")
            return
        kind = "BRANCH" if self._loaded(self._view).refs().get(place.ref).isBranch() else "TAG"
        self._session.sql(f"ALTER TABLE {self._table(self._view)} DROP {kind} IF EXISTS {place.ref}")

    def _beside(self) -> list[tuple[int, Place]]:
        table = self._loaded(self._view)
        refs = [] if table is None else [str(name) for name in table.refs().keySet()]
        found = [(name, Place(self._view, name)) for name in refs]
        namespace = f"{quote(self._warehouse.catalog)}.{quote(self._warehouse.namespace)}"
        for row in self._session.sql(f"SHOW TABLES IN {namespace} LIKE '{self._view}__g*'").toLocalIterator():
            name = row["tableName"]
            if name.startswith(f"{self._view}__"):
                found.append((name.removeprefix(f"{self._view}__"), Place(name)))
        numbered = ((_NUMBERED.fullmatch(name), place) for name, place in found)
        return [(int(match[1]), place) for match, place in numbered if match]

    def _expire(self, kept: Collection[int]) -> None:
        """Expire the snapshots of dropped generations, except those that a branch or a tag points to.

        They are ancestors of the kept generations, so without this the table would keep their files forever. Memory:
        the table's own list of snapshots.
        """
        table = self._loaded(self._view)
        heads = {int(ref.snapshotId()) for ref in table.refs().values()}
        parents: dict[int, int | None] = {}
        owners: dict[int, int | None] = {}
        for snapshot in table.snapshots():
            number, parent = snapshot.summary().get(GENERATION), snapshot.parentId()
            parents[int(snapshot.snapshotId())] = None if parent is None else int(parent)
            owners[int(snapshot.snapshotId())] = None if number is None else int(number)
        reached: set[int] = set()
        for head in heads:
            at: int | None = head
            while at is not None and at in parents and at not in reached:
                reached.add(at)
                at = parents[at]
        dead = []
        for at in parents:
            owner = _owner(at, owners, parents)
            if at not in heads and (at not in reached or (owner is not None and owner not in kept)):
                dead.append(at)
        if dead:
            self.take_out(dead)()

    def take_out(self, snapshots: Sequence[int]) -> Callable[[], int]:
        """Take snapshots out of the table's metadata, and no others; return what deletes the files of these alone.

        To be called once; it returns the number of files, and needs no lease. If it is not called, they stay.
        """
        table = self._loaded(self._view)
        rows = self._session.sql(
            f"SELECT snapshot_id, parent_id, manifest_list FROM {self._table(self._view)}.snapshots"
        ).collect()
        before = {row.snapshot_id: Listed(row.parent_id, row.manifest_list) for row in rows}
        # An explicit time overrides the default, which would expire other snapshots by age.
        expiry = table.expireSnapshots().expireOlderThan(0).cleanExpiredFiles(False)
        for each in snapshots:
            expiry = expiry.expireSnapshotId(each)
        expiry.commit()
        files = table.io()

        def read(path: str) -> bytes:
            stream = files.newInputFile(path).newStream()
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        def delete() -> int:
            found = unreachable(before, snapshots, read)
            for path in found:
                files.deleteFile(path)
            return len(found)

        return delete

    def call(self, procedure: str, arguments: str) -> dict[str, Any]:
        """Run one of Iceberg's procedures on the view's table; return its result row."""
        catalog, table = quote(self._warehouse.catalog), f"{self._warehouse.namespace}.{self._view}"
        sql = f"CALL {catalog}.system.{procedure}(table => '{table}', {arguments})"
        found: dict[str, Any] = self._session.sql(sql).collect()[0].asDict()
        return found


def _owner(snapshot: int, owners: dict[int, int | None], parents: dict[int, int | None]) -> int | None:
    """Return the generation of a snapshot; a rewrite records none and belongs to the one that it rewrote."""
    at: int | None = snapshot
    while at is not None and owners.get(at) is None:
        at = parents.get(at)
    return None if at is None else owners[at]
