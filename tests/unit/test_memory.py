"""What a failed session held is free before the next one begins."""

from __future__ import annotations

import weakref

import pytest

from tailrace.cdc.daemon.allocator import reclaim


class _Part:
    """Something with a cycle, as the parts of a session have."""

    def __init__(self) -> None:
        self.itself = self


def test_an_error_on_its_way_up_holds_nothing() -> None:
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
