"""Progress of a long command, for the caller that displays it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

OnProgress = Callable[[str, int, int | None], None]
"""Progress callback: the current activity, the number of items done, and the total if known."""

T = TypeVar("T")
_EVERY_S: Final = 0.2


def no_display(what: str, done: int, total: int | None) -> None:
    """Ignore progress: the callback of a caller that displays nothing."""


def counted(items: Iterable[T], on_progress: OnProgress, what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and report how many have been consumed; a list counts as its number of elements."""
    done, at = 0, time.monotonic()
    on_progress(what, done, total)
    for item in items:
        yield item
        done += len(item) if isinstance(item, list) else 1
        if (now := time.monotonic()) - at >= _EVERY_S:
            on_progress(what, done, total)
            at = now
