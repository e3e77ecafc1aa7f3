"""How the daemon's process asks for memory: millions of small pieces, freed by other threads in large heaps."""

from __future__ import annotations

import ctypes
import gc
import sys
import traceback
from typing import Final

_M_MXFAST: Final = 1
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_MMAP_BYTES: Final = 1_048_576
_TRIM_BYTES: Final = 1_048_576
_ARENAS: Final = 2
_GENERATION_0: Final = 50_000


def settle() -> None:
    """Set malloc and Python's collector up for the stream; nothing where the C library has no `mallopt`.

    glibc keeps small freed pieces apart and joins them in sweeps over the whole heap: with librdkafka's records that
    is a third of what sending costs. https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MXFAST, 0)
        # Large rows by themselves, for else glibc learns from them to keep up to 64 MiB for the next ones.
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        # Each session's threads would else get heaps of their own until there are eight a core, full of holes; what is
        # free at the end of one stays with us up to the bound above, for `malloc_trim` leaves that alone.
        mallopt(_M_ARENA_MAX, _ARENAS)
    # What is there now stays; what comes is freed by its last reference.
    gc.freeze()
    gc.set_threshold(_GENERATION_0)


def reclaim() -> None:
    """Give back what a session has left: its parts know each other, so that references alone do not free them.

    Nor are they free while an error is on its way up, whose frames hold them: those are emptied.
    """
    error = sys.exception()
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
