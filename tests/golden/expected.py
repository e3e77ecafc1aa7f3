"""The messages that the scenario must produce, derived from its SQL.

They are in `protocol1.txt` to `protocol3.txt`, for PostgreSQL 18. Protocol 4 differs from 3 only in a field of Stream
Abort that no line shows.
"""

from __future__ import annotations

from pathlib import Path

# 18 is the first version that publishes generated columns
_GENERATED = [(", twice int4 -1", ""), ("N('21', '42')", "N('21')"), ("K('21', -) N('22', '44')", "K('21') N('22')")]

# 14 also sends transactions in which nothing is published; there are two, around the origin
_EMPTY = "B (nothing published)\nC\n"


def expected(version: int, protocol: int) -> list[str]:
    """Return the lines that `describe` must give."""
    text = Path(__file__).with_name(f"protocol{min(protocol, 3)}.txt").read_text(encoding="utf-8")
    if version < 18:
        for new, old in _GENERATED:
            assert new in text
            text = text.replace(new, old)
    if version == 14:
        text = text.replace("B origin ", _EMPTY + "B origin ")
        text = text.replace("C at the origin's time\n", "C at the origin's time\n" + _EMPTY)
    return text.splitlines()
