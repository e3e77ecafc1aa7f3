"""The memory of a failed session is free before the next one starts."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest

from tailrace.cdc.daemon.allocator import reclaim


class _Part:
    """An object with a reference cycle, as the parts of a session have."""

    def __init__(self) -> None:
        self.itself = self


def test_reclaim_frees_the_objects_of_a_raised_errors_frames() -> None:
    held: list[weakref.ref[_Part]] = []

    def fail() -> None:
        part = _Part()
        held.append(weakref.ref(part))
        raise ValueError("first")

    def session() -> None:
        part = _Part()
        held.append(weakref.ref(part))
        try:
            fail()
        except ValueError as error:
            raise OSError("second") from error

    def run() -> None:
        try:
            session()
        finally:
            reclaim()
            assert [part() for part in held] == [None, None]

    with pytest.raises(OSError, match="second"):
        run()


def test_the_garbage_collector_runs_while_the_daemon_does() -> None:
    """`tailrace run` turns it off while it imports; in a process of its own, whose allocator is changed."""
    code = "import gc; gc.disable(); from tailrace.cdc.daemon.allocator import settle; settle(); assert gc.isenabled()"
    subprocess.run([sys.executable, "-c", code], check=True)
