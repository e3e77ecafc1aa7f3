"""How far a long command is, for the caller that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

Told = Callable[[str, int, int | None], None]
"""Takes what is being done, how many of it are done, and how many there are if that is known."""

T = TypeVar("T")
_EVERY_S: Final = 0.2


def nobody(what: str, done: int, total: int | None) -> None:
    """Take it for a caller that shows nothing."""


def counted(items: Iterable[T], told: Told, what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and say how many have been taken; of lists, how many items are in them."""
    done, at = 0, time.monotonic()
    told(what, done, total)
    for item in items:
        yield item
        done += len(item) if isinstance(item, list) else 1
        if (now := time.monotonic()) - at >= _EVERY_S:
            told(what, done, total)
            at = now
