"""Allocator settings of the daemon: millions of small objects, freed by other threads, in large heaps."""

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
    """Tune malloc and Python's garbage collector for the stream; leave malloc alone without `mallopt`.

    glibc holds small freed chunks in fastbins and consolidates them in sweeps over the whole heap. With librdkafka's
    records, that is a third of the cost of sending. https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MXFAST, 0)
        # Map large rows separately: otherwise glibc adapts to them and retains up to 64 MiB for the next ones.
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        # By default, each session's threads get their own arenas, up to eight per core, all fragmented. Free memory at
        # the end of an arena stays allocated up to the trim threshold above: `malloc_trim` does not release it.
        mallopt(_M_ARENA_MAX, _ARENAS)
    # Objects that exist now are permanent; later ones are freed by reference counting.
    gc.freeze()
    gc.set_threshold(_GENERATION_0)
    gc.enable()


def reclaim() -> None:
    """Release the memory of a closed session.

    Its objects form reference cycles, so only the garbage collector frees them. The frames of an error that is being
    raised also hold them and are therefore cleared.
    """
    error = sys.exception()
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
