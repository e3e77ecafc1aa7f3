"""Make the next items of a sequence in other threads, while the caller uses one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def made_ahead(make: Callable[[T], R], items: Iterable[T], threads: int, most: int) -> Iterator[R]:
    """Yield what `make` returns for each item, in order; at most `most` are made and not yet used."""
    with ThreadPoolExecutor(threads) as pool:
        making: deque[Future[R]] = deque()
        for item in items:
            making.append(pool.submit(make, item))
            if len(making) == most:
                yield making.popleft().result()
        while making:
            yield making.popleft().result()
