"""A job ends with the process that started it, however that ended: it watches a pipe of which the other end is there.

The JVM in turn ends when its standard input does, of which we have the other end.
"""

from __future__ import annotations

import os
import threading
from typing import Final

PARENT: Final = "TAILRACE_PARENT"
"""Number of the descriptor to watch; without it the job is on its own, as under spark-submit."""

_KILLED: Final = 128 + 9


def end_with_parent() -> None:
    """End this process, at once, when the one that started it has ended. What is not committed is as if never begun."""
    number = os.environ.pop(PARENT, None)
    if number is not None:
        threading.Thread(target=_watch, args=(int(number),), name="parent", daemon=True).start()


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)  # nothing is ever written: this returns when the pipe's last writer is gone
    os._exit(_KILLED)
