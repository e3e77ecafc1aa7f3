"""The comparison of `verify`: each case is a way in which two sides can differ, or seem to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tailrace.schemas.lsn import Position
from tailrace.snapshot.verify.comparison import COMPARED, Comparison, Comparisons, Outcome
from tests.support.daemon import ROOT

SOURCE_TOPIC, TOPIC_VIEW = COMPARED


@pytest.fixture
def sides() -> Iterator[Comparison]:
    with Comparisons() as comparisons:
        yield comparisons.add()


def record(key: bytes, lsn: int, row: bytes | None, *, x: int = 100, partition: int = 0) -> Any:
    return key, partition, Position(1, lsn, 0).to_bytes(), row, lsn < x


def found(sides: Comparison, compared: str, limit: int = 20) -> Outcome:
    return sides.outcome(compared, limit)


def differing(sides: Comparison, compared: str) -> list[tuple[bytes, bytes | None, bytes | None]]:
    return [(each.key, each.left, each.right) for each in found(sides, compared).differences]


def test_equal_sides_do_not_differ(sides: Comparison) -> None:
    sides.add_source([(b"1", b"a"), (b"2", b"b")])
    sides.add_records([record(b"1", 10, b"a"), record(b"2", 20, b"b")])
    sides.add_view([(b"2", b"b"), (b"1", b"a")])
    for compared in COMPARED:
        outcome = found(sides, compared)
        assert (outcome.left_rows, outcome.right_rows, outcome.differing) == (2, 2, 0)


def test_changes_after_the_source_was_read_count_only_for_the_view(sides: Comparison) -> None:
    sides.add_source([(b"1", b"old"), (b"2", b"b")])
    records = [record(b"1", 10, b"old"), record(b"2", 20, b"b"), record(b"1", 100, b"new")]
    sides.add_records([*records, record(b"2", 101, None), record(b"3", 102, b"c")])
    sides.add_view([(b"1", b"new"), (b"3", b"c")])
    assert [found(sides, compared).differing for compared in COMPARED] == [0, 0]


def test_changed_missing_and_surplus_rows_are_found(sides: Comparison) -> None:
    sides.add_source([(b"1", b"a"), (b"2", b"b")])
    sides.add_records([record(b"1", 10, b"A"), record(b"3", 20, b"c")])
    sides.add_view([(b"1", b"A"), (b"4", b"d")])
    assert differing(sides, SOURCE_TOPIC) == [(b"1", b"a", b"A"), (b"2", b"b", None), (b"3", None, b"c")]
    assert differing(sides, TOPIC_VIEW) == [(b"3", b"c", None), (b"4", None, b"d")]


def test_a_deleted_row_that_a_view_still_shows_is_found(sides: Comparison) -> None:
    sides.add_records([record(b"1", 10, b"a"), record(b"1", 20, None)])
    sides.add_view([(b"1", b"a")])
    assert differing(sides, SOURCE_TOPIC) == []
    assert differing(sides, TOPIC_VIEW) == [(b"1", None, b"a")]


def test_a_key_that_a_view_shows_twice_is_found(sides: Comparison) -> None:
    sides.add_records([record(b"1", 10, b"a")])
    sides.add_view([(b"1", b"a"), (b"1", b"a")])
    (difference,) = found(sides, TOPIC_VIEW).differences
    assert (difference.left_copies, difference.right_copies) == (1, 2)
    assert found(sides, TOPIC_VIEW).right_rows == 2


def test_a_key_that_only_a_view_shows_twice_is_found(sides: Comparison) -> None:
    sides.add_view([(b"1", b"a"), (b"1", b"a")])
    (difference,) = found(sides, TOPIC_VIEW).differences
    assert (difference.left, difference.right_copies) == (None, 2)


def test_the_record_with_the_greatest_position_counts(sides: Comparison) -> None:
    sides.add_records([record(b"1", 20, b"new"), record(b"1", 10, b"old")])
    sides.add_view([(b"1", b"new")])
    assert differing(sides, TOPIC_VIEW) == []


@pytest.mark.parametrize(("lsn", "rows_at_x"), [(50, []), (150, [(b"1", b"a"), (b"2", b"b")])])
def test_a_truncate_empties_only_its_partition(
    sides: Comparison, lsn: int, rows_at_x: Iterable[tuple[bytes, bytes]]
) -> None:
    sides.add_source([*rows_at_x, (b"9", b"other partition")])
    other = record(b"9", 30, b"other partition", partition=1)
    sides.add_records([record(b"1", 10, b"a"), record(b"2", 20, b"b"), other])
    sides.truncate(0, before_x=lsn < 100)
    sides.add_records([record(b"2", 160, b"again")])
    sides.add_view([(b"2", b"again"), (b"9", b"other partition")])
    assert [differing(sides, compared) for compared in COMPARED] == [[], []]


def test_differences_beyond_the_limit_are_counted(sides: Comparison) -> None:
    sides.add_source([(bytes([n]), b"a") for n in range(50)])
    outcome = found(sides, SOURCE_TOPIC, limit=20)
    assert (outcome.differing, len(outcome.differences)) == (50, 20)
    assert found(sides, SOURCE_TOPIC, limit=0).differing == 50


def test_the_next_view_starts_without_the_records_of_the_last(sides: Comparison) -> None:
    sides.add_source([(b"1", b"a")])
    sides.add_records([record(b"1", 10, b"a"), record(b"2", 10, b"b")])
    sides.add_view([(b"2", b"b")])
    sides.start_view()
    sides.add_records([record(b"1", 10, b"a")])
    sides.add_view([(b"1", b"a")])
    assert [found(sides, compared).differing for compared in COMPARED] == [0, 0]


def test_comparisons_of_one_database_do_not_see_each_other() -> None:
    with Comparisons() as comparisons:
        first, second = comparisons.add(), comparisons.add()
        for side, row in ((first, b"a"), (second, b"b")):
            side.add_source([(b"1", row)])
            side.add_records([record(b"1", 10, row)])
            side.add_view([(b"1", row)])
        first.start_view()
        first.truncate(0, before_x=True)
        assert differing(first, SOURCE_TOPIC) == [(b"1", b"a", None)]
        for compared in COMPARED:
            assert (found(second, compared).left_rows, found(second, compared).differing) == (1, 0)


_LOAD = """
import psutil
from tailrace.snapshot.verify.comparison import Comparisons

rows = 80_000
with Comparisons() as comparisons:
    before = psutil.Process().memory_info().rss
    for side in [comparisons.add() for _ in range(3)]:
        side.add_source((number.to_bytes(8, "big"), bytes(900)) for number in range(rows))
    print(psutil.Process().memory_info().rss - before)
"""
"""Fill three comparisons, each with more than the cache; print by how much the process grew."""


def test_the_memory_of_many_comparisons_is_that_of_one() -> None:
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout) < 100 * 2**20
