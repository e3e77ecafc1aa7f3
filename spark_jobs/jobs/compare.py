"""Compare the live generation of a view with the staged one, key by key, both as of the same cut.

Both are brought to one cut under the lease and pinned there (a snapshot, a point in time); `follow` continues during
the comparison. The driver receives only counts and the keys to list.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.target.comparison import Counts, Difference, Pair
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.swap import advance, alone, catch_up, held, live_of, staged_of
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared

_SAME_CUT_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison; columns that only one generation has are listed, but not compared."""

    view: str
    lsn: str
    live: int
    staged: int
    only_live_columns: tuple[str, ...]
    only_staged_columns: tuple[str, ...]
    counts: Counts
    keys: tuple[Difference, ...]

    @property
    def different(self) -> bool:
        return bool(self.counts.total or self.only_live_columns or self.only_staged_columns)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different}

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        counts = self.counts
        yield f"{self.view}: generation {self.live} (live) and {self.staged} (staged), both at {self.lsn}"
        yield f"rows             {counts.live} and {counts.staged}"
        yield f"only live        {counts.only_live}"
        yield f"only staged      {counts.only_staged}"
        yield f"different        {counts.changed}"
        if counts.repeated:
            yield f"more than once   {counts.repeated}"
        for which, columns in (("live", self.only_live_columns), ("staged", self.only_staged_columns)):
            if columns:
                yield f"columns that only the {which} one has: {', '.join(columns)}"
        for each in self.keys:
            key = ", ".join(f"{name}={value}" for name, value in each.key.items())
            yield f"  {key}  {each.what}" + (f": {', '.join(each.columns)}" if each.columns else "")


def compare(shared: Shared, view: KeptView, limit: int) -> Comparison:
    """Compare the live generation with the staged one; list up to `limit` differing keys.

    StateError if none is staged (TR-571), or if they cannot be compared at one cut and by one key (TR-574).
    """
    target = view.batch.target
    with alone(shared, view), ExitStack() as pins:
        live = live_of(view)
        staged = staged_of(view, target.generations(), live)
        _check_begin(view, live, staged)
        view.check_tombstones(staged, staged.level_since_ms, shared.cuts.wait(view.declared))
        staged = catch_up(shared, view, staged)
        deadline = time.monotonic() + _SAME_CUT_WAIT_S
        while True:
            with held(view):
                live, staged = _level(shared, view, staged)
                if live.cut.offsets == staged.cut.offsets:
                    pair = _pin(view, (live.generation, staged.generation), pins)
                    break
            if time.monotonic() > deadline:
                raise _apart(view, live, staged)
            time.sleep(1.0)
        counts, keys = pair.compare(shared.session, limit)
        columns = pair.columns
        return Comparison(
            view.declared.name,
            format_lsn(staged.cut.flushed_lsn),
            live.generation,
            staged.generation,
            _lacking(*columns),
            _lacking(*reversed(columns)),
            counts,
            tuple(keys[:limit]),
        )


def _level(shared: Shared, view: KeptView, staged: Applied) -> tuple[Applied, Applied]:
    """Bring both generations to the newest cut; the live one only if it is of the configured definition."""
    live, level_ms = view.load()
    assert live is not None
    seen = shared.cuts.wait(view.declared)
    if live.definition == view.declared.definition:
        view.check_tombstones(live, level_ms, seen)
        live = advance(shared, view, live, seen, live.generation)
        view.publish(live, max(level_ms, seen.level_ms))
    while seen.cut.order < live.cut.order:
        seen = shared.cuts.newest(view.declared, wait=1.0) or seen
    return live, advance(shared, view, staged, seen, staged.generation)


def _apart(view: KeptView, live: Applied, staged: Applied) -> StateError:
    return _incomparable(
        view,
        f"The live one was built from another query and stands at {format_lsn(live.cut.flushed_lsn)}, the staged one"
        f" at {format_lsn(staged.cut.flushed_lsn)}.",
        "Only a `tailrace views follow` that was started with the former query brings the live one forward.",
    )


def _check_begin(view: KeptView, live: Applied, staged: Applied) -> None:
    """Raise StateError (TR-574) if the two histories begin at different LSNs.

    Rows from before the later beginning are not differences.
    """
    if live.history_from != staged.history_from:
        both = (format_lsn(each.history_from.lsn) if each.history_from else "none" for each in (live, staged))
        detail = f"Their histories begin at different LSNs: {' and '.join(both)}."
        raise _incomparable(view, detail, f"tailrace views swap {view.declared.name}")


def _incomparable(view: KeptView, detail: str, hint: str) -> StateError:
    name = view.declared.name
    return StateError("TR-574", f'the generations of view "{name}" cannot be compared', detail=detail, hint=hint)


def _pin(view: KeptView, numbers: tuple[int, int], pins: ExitStack) -> Pair:
    target = view.batch.target
    keys = [target.key(number) for number in numbers]
    if keys[0] != keys[1]:
        texts = (f"({', '.join(key)})" for key in keys)
        raise _incomparable(view, f"Their keys are {' and '.join(texts)}.", f"tailrace views swap {view.declared.name}")
    return target.pair(*numbers, keys[0], pins)


def _lacking(columns: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in columns if name not in others)
