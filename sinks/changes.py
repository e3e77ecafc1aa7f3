"""What a batch hands to a target, and what a target hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    `inputs` are the generations of the views that it was computed over, by name.
    """

    generation: int
    cut: Cut
    snapshot_id: int | None = None
    unfinished: Cut | None = None
    definition: str | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)


class Target(Protocol):
    """Where one view lives (`sinks.iceberg`, `sinks.opensearch`); a generation is one build of it from offset 0.

    Data and cut become visible together. Calling a method again after a crash in it ends in the same state.
    `inputs` goes into whatever is written next (`Applied.inputs`).
    """

    inputs: Mapping[str, int]

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
        """Make a staged generation the one that readers see, at once."""
