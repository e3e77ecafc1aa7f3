"""The interface of a kind of target: what a configuration names, from opening a target to reading it without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.schemas.config.model import Config, View
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.target.protocol import Applied, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ViewState:
    """A view at `cut`; `rows` can be iterated once."""

    cut: Cut
    generation: int
    rows: Iterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class There:
    """Every generation that has a cut, by number, and the live one; `live` is None if there is none."""

    generations: dict[int, Applied]
    live: Applied | None


class TargetKind(Protocol):
    """A kind of target; the configuration section of its name has its settings."""

    @property
    def name(self) -> str:
        """The name in `target = NAME` and of the section [NAME]."""

    @property
    def example(self) -> str:
        """Settings of the section, to paste from a hint."""

    @property
    def records_per_s(self) -> int:
        """Throughput of a rebuild with narrow rows on two cores; `tests/bench/rebuild.py` measures it."""

    @property
    def keeps_states(self) -> bool:
        """Whether earlier states can be read: queries read only such views, and only `current` needs none."""

    def configured(self, config: Config) -> bool:
        """Return whether the configuration has the section."""

    def check(self, config: Config) -> None:
        """Raise ConfigError or SinkError if the target cannot be reached or used."""

    def layout_identity(self, name: str, view: View) -> str | None:
        """Return the identity of the part of a view's layout that only a rebuild changes; None without one.

        ConfigError (TR-536) if the view sets what it cannot set.
        """

    def open(self, config: Config, session: SparkSession, view: str, definition: str | None) -> Target:
        """Return the target of a view, for batches."""

    def read(self, config: Config, view: str, record: ViewRecord | None, *, versions: bool) -> ViewState:
        """Return the live generation at its cut, without Spark.

        `record` is the view's record on the views topic. `versions`: the view has versions of rows; return those that
        are valid at the cut. StateError (TR-512) if no batch was applied yet.
        """

    def generations(self, config: Config, view: str) -> There:
        """Return the generations of a view, without Spark."""


def not_made(view: str) -> StateError:
    """Return the error for a view that no batch has been applied to."""
    return StateError(
        "TR-512",
        f'view "{view}" has not been made yet',
        detail="No batch has been applied to it.",
        hint=f"tailrace views rebuild {view}, or let `tailrace views follow` run.",
    )
