"""What a read sees: transaction ids of 32 bits against a snapshot of 64."""

from __future__ import annotations

import pytest

from snapshot.window import VisibleXids


@pytest.mark.parametrize(
    ("snapshot", "xid", "seen"),
    [
        ("100:110:103,105", 99, True),
        ("100:110:103,105", 102, True),
        ("100:110:103,105", 103, False),
        ("100:110:103,105", 109, True),
        ("100:110:103,105", 110, False),
        ("100:110:103,105", 200, False),
        ("100:100:", 99, True),
        ("100:100:", 100, False),
        # behind the first wrap of the 32-bit counter
        ("4294967296:4294967400:4294967300", 4, False),
        ("4294967296:4294967400:4294967300", 5, True),
        ("4294967296:4294967400:4294967300", 104, False),
        ("4294967290:4294967300:", 4294967295, True),
    ],
)
def test_visible(snapshot: str, xid: int, seen: bool) -> None:
    assert VisibleXids.parse(snapshot).sees(xid) is seen
