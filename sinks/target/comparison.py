"""The result of comparing two generations of a view, and the interface of a pair that can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

What = Literal["only live", "only staged", "different"]


@dataclass(slots=True)
class Counts:
    """Numbers of rows per generation, and of keys per difference; `repeated` keys occur more than once."""

    live: int = 0
    staged: int = 0
    only_live: int = 0
    only_staged: int = 0
    changed: int = 0
    repeated: int = 0

    @property
    def total(self) -> int:
        return self.only_live + self.only_staged + self.changed + self.repeated

    def add(self, other: Counts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that differs, and the columns that differ."""

    key: dict[str, Any]
    what: What
    columns: tuple[str, ...] = ()


class Pair(Protocol):
    """Two generations at one cut, which later batches do not change."""

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of the live and of the staged generation."""

    def compare(self, session: SparkSession, limit: int) -> tuple[Counts, list[Difference]]:
        """Compare them key by key; list at least `limit` differing keys, if there are so many."""
