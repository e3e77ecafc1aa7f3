"""The interface between a batch and a view's target: `Target`, and the state that it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, Self

import orjson

from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.records.position import Cut
from tailrace.sinks.target.comparison import Pair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from tailrace.sinks.target.few_rows import FewRows
    from tailrace.sinks.target.spooled_rows import SpooledRows
    from tailrace.sinks.target.tables import Tables

DELETED: Final = "_tailrace_deleted"
"""Column that marks a deleted row; of its other columns only the key columns are set."""


DELETED_AT: Final = "_deleted_at"
"""Column of a view with soft deletes: the commit time of a row's deletion, NULL for a live row."""

VALID_FROM, VALID_TO = "valid_from", "valid_to"
FROM_LSN, FROM_ORDINAL = "valid_from_lsn", "valid_from_ordinal"
TO_LSN, TO_ORDINAL = "valid_to_lsn", "valid_to_ordinal"
VALIDITY: Final = (VALID_FROM, VALID_TO, FROM_LSN, FROM_ORDINAL, TO_LSN, TO_ORDINAL)
"""The columns that a view of shape `history` has after those of its table: commit times and positions."""

FIRST: Final = "_tailrace_first"
"""Column that marks the first version of each key, in queries that need it; no view has it."""


@dataclass(frozen=True, slots=True)
class HistoryFrom:
    """Begin of a `history` or `log` view, which is complete from `lsn` and `at_ms` (ms since 1970) on."""

    lsn: int
    at_ms: int

    def to_json(self) -> str:
        return orjson.dumps({"lsn": format_lsn(self.lsn), "at_ms": self.at_ms}).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        value = orjson.loads(text)
        return cls(parse_lsn(value["lsn"]), value["at_ms"])


@dataclass(frozen=True, slots=True)
class Applied:
    """The state of a generation: it *is* the source as of `cut`.

    `snapshot_id` is the Iceberg snapshot that carries it. `unfinished` is the cut of a batch that was begun but not
    finished (search): the next batch must go at least as far. `definition` is the target's definition at that write.
    `inputs` are the generations of the views that it was computed from, by name. `level_ms` is a time, in milliseconds
    since 1970, at which the topics of its view had nothing after its cut.
    """

    generation: int
    cut: Cut
    snapshot_id: int | None = None
    unfinished: Cut | None = None
    definition: str | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    level_ms: int = 0
    history_from: HistoryFrom | None = None

    @property
    def level_since_ms(self) -> int:
        """`level_ms`, else (not recorded) the cut's commit time on the source; milliseconds since 1970."""
        return self.level_ms or self.cut.commit_ts_us // 1000


@dataclass(frozen=True, slots=True)
class Commit:
    """Facts that a write stores with its rows: attributes of `Applied`. `level_ms` None means the time of writing."""

    cut: Cut
    level_ms: int | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    history_from: HistoryFrom | None = None


class Target(Protocol):
    """The storage of one view (`sinks.iceberg`, `sinks.opensearch`).

    A generation is one build of it from offset 0. Data and cut become visible together. Every method can be repeated: a
    second call after a crash ends in the same state.
    """

    @property
    def kind(self) -> str: ...

    def live(self) -> Applied | None:
        """Return the state of the generation that readers see."""

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Begin a new generation, return its number, and drop the remains of earlier attempts at it."""

    @property
    def takes_spooled(self) -> bool:
        """Whether `replace` takes spooled rows."""

    def replace(self, generation: int, rows: DataFrame | SpooledRows, key: Sequence[str], commit: Commit) -> Applied:
        """Replace the whole content by `rows`; the generation's number may change."""

    def merge(self, generation: int, changes: DataFrame | FewRows, key: Sequence[str], commit: Commit) -> Applied:
        """Apply changed and deleted rows, one per key."""

    def unchanged(self, applied: Applied, commit: Commit) -> Applied:
        """Record that no row changed up to the cut."""

    def swap(self, generation: int, key: Sequence[str]) -> None:
        """Switch readers to another generation atomically; the old one stays until `keep` drops it."""

    def generations(self) -> dict[int, Applied]:
        """Return every generation that has a cut, including the live one, by number.

        A number above the live one's is staged or was rolled back; a smaller one was live before.
        """

    def key(self, generation: int) -> tuple[str, ...]:
        """Return the key columns that a generation was written with."""

    def pair(self, live: int, staged: int, key: tuple[str, ...], pins: ExitStack) -> Pair:
        """Pin two generations that have the same key, until `pins` closes, so that they can be compared."""

    def pair_with(self, generation: int, rows: DataFrame, key: Sequence[str], pins: ExitStack) -> Tables:
        """Pin a generation, until `pins` closes, so that it can be compared with rows, which take the staged side."""

    def mend(self, generation: int, pair: Tables, rows: DataFrame, key: Sequence[str], commit: Commit) -> Applied:
        """Give the keys that differ in `pair` (`pair_with` of `rows`) their rows of the other side, in one commit.

        The cut of `commit` is that of the generation: nothing is brought forward. No key may be there twice.
        """

    def keep(self, numbers: Collection[int]) -> None:
        """Drop every generation except the live one and these."""

    def remove(self) -> None:
        """Drop every generation."""
