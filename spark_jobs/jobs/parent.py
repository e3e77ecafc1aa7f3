"""End a job when its parent process ends in any way: watch a pipe whose other end the parent holds.

The JVM in turn ends when its standard input closes, whose other end this process holds.
"""

from __future__ import annotations

import os
import threading
from typing import Final

PARENT: Final = "TAILRACE_PARENT"
"""Environment variable with the descriptor to watch; without it, no parent is watched, as under spark-submit."""

_KILLED: Final = 128 + 9


def end_with_parent() -> None:
    """End this process at once when its parent has ended. Uncommitted work then has no effect."""
    number = os.environ.pop(PARENT, None)
    if number is not None:
        threading.Thread(target=_watch, args=(int(number),), name="parent", daemon=True).start()


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)  # nothing is ever written: this returns when the pipe's last writer has ended
    os._exit(_KILLED)
