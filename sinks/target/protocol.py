"""What a batch hands to a target, and what a target hands back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, Self

import orjson

from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.records.position import Cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

DELETED: Final = "_tailrace_deleted"
"""Column that marks a row that is gone; of its other columns only the key's are set."""


VALID_FROM, VALID_TO = "valid_from", "valid_to"
FROM_LSN, FROM_ORDINAL = "valid_from_lsn", "valid_from_ordinal"
TO_LSN, TO_ORDINAL = "valid_to_lsn", "valid_to_ordinal"
VALIDITY: Final = (VALID_FROM, VALID_TO, FROM_LSN, FROM_ORDINAL, TO_LSN, TO_ORDINAL)
"""The columns that a view of shape `history` has behind those of its table: commit times and positions."""

FIRST: Final = "_tailrace_first"
"""Column that marks the first version of each key, where a query asks for it; no view has it."""


@dataclass(frozen=True, slots=True)
class HistoryFrom:
    """Where a view of shape `history` or `log` begins: from `lsn` and from `at_ms` (since 1970) on it is whole."""

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

    `snapshot_id` is the Iceberg snapshot that carries it. `unfinished` is the cut of a batch that was begun and not
    ended (search): the next one must go at least as far. `definition` is what the target was opened with when it wrote.
    `inputs` are the generations of the views that it was computed over, by name.
    `level_ms` is a moment, milliseconds since 1970, at which nothing was after its cut on the topics of its view.
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
        """`level_ms`; of a state that does not say it, when its cut was committed on the source."""
        return self.level_ms or self.cut.commit_ts_us // 1000


class Target(Protocol):
    """Where one view lives (`sinks.iceberg`, `sinks.opensearch`); a generation is one build of it from offset 0.

    Data and cut become visible together. Calling a method again after a crash in it ends in the same state.
    `inputs` goes into whatever is written next (`Applied.inputs`), and so does `level_ms`; None: the time of writing.
    """

    inputs: Mapping[str, int]
    level_ms: int | None

    @property
    def kind(self) -> str: ...

    def live(self) -> Applied | None:
        """Return generation and cut of what readers see."""

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Begin a new generation beside the live one; what an earlier attempt left of it is dropped."""

    def replace(self, generation: int, rows: DataFrame, key: Sequence[str], cut: Cut) -> Applied:
        """Make `rows` the whole content as of `cut`; the generation may be another one afterwards."""

    def merge(self, generation: int, changes: DataFrame, key: Sequence[str], cut: Cut, *, few: bool = False) -> Applied:
        """Apply changed and deleted rows, one per key; `few`: a task would cost more than what it does with them."""

    def unchanged(self, applied: Applied, cut: Cut) -> Applied:
        """Note that nothing changed up to `cut`."""

    def swap(self, generation: int, key: Sequence[str]) -> None:
        """Make another generation the one that readers see, at once; the one before stays until `keep` drops it."""

    def generations(self) -> dict[int, Applied]:
        """Return every generation that holds a cut, the live one among them, by number.

        Greater numbers than the live one's are staged or were rolled back from, smaller ones were live before.
        """

    def key(self, generation: int) -> tuple[str, ...]:
        """Return the key columns that a generation was written with."""

    def keep(self, numbers: Collection[int]) -> None:
        """Drop every generation but the live one and these."""

    def remove(self) -> None:
        """Drop every generation."""
