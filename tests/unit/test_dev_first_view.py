"""What `tailrace dev up` says of the first view."""

from __future__ import annotations

import pytest

from tailrace.cdc.dev.first_view import sentence
from tailrace.cdc.operations.verify_result import Result
from tailrace.snapshot.verify.comparison import COMPARED, Outcome


@pytest.mark.parametrize(
    ("differing", "said"),
    [
        ((0, 0), "verified v: 1,200 rows of the source at 0/1C8 are those of the topic, and 1,201 of the view"),
        ((1, 0), "v differs from the source: tailrace verify v"),
        ((0, 1), "v differs from the source: tailrace verify v"),
    ],
)
def test_the_first_view_is_said_to_be_equal_or_not(differing: tuple[int, int], said: str) -> None:
    rows = ((1200, 1200), (1201, 1201))
    outcomes = tuple(
        Outcome(compared, *count, found, ()) for compared, count, found in zip(COMPARED, rows, differing, strict=True)
    )
    assert sentence(Result("v", "public.v", ("id",), (0,), 456, 500, outcomes, 0.1)) == said
