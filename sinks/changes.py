"""What a batch hands to a target, and what a target hands back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from schemas.progress import Cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

DELETED: Final = "_tailrace_deleted"
"""Column that marks a row that is gone; of its other columns only the key's are set."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The state of a generation: it *is* the source as of `cut`.

    `snapshot_id` is the Iceberg snapshot that carries it. `unfinished` is the cut of a batch that was begun and not
    ended (search): the next one must go at least as far. `definition` is what the target was opened with when it wrote.
    `level_ms` is when it was written, milliseconds since 1970: it was level with the topics then.
    """

    generation: int
    cut: Cut
    snapshot_id: int | None = None
    unfinished: Cut | None = None
    definition: str | None = None
    level_ms: int = 0


class Target(Protocol):
    """Where one view lives (`sinks.iceberg`, `sinks.opensearch`); a generation is one build of it from offset 0.

    Data and cut become visible together. Calling a method again after a crash in it ends in the same state.
    """

    @property
    def kind(self) -> str: ...

    def live(self) -> Applied | None:
        """Return generation and cut of what readers see."""

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Begin a new generation beside the live one; what an earlier attempt left of it is dropped."""

    def replace(self, generation: int, rows: DataFrame, key: Sequence[str], cut: Cut) -> Applied:
        """Make `rows` the whole content as of `cut`; the generation may be another one afterwards."""

    def merge(self, generation: int, changes: DataFrame, key: Sequence[str], cut: Cut) -> Applied:
        """Apply changed and deleted rows, one per key."""

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
