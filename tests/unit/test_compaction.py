"""Which data files of a table are merged in the job's process, and when Iceberg's own procedure is needed."""

from __future__ import annotations

import random

from tailrace.sinks.iceberg.direct.compaction import chosen
from tailrace.sinks.iceberg.direct.java_table import Facts

KB, MB = 1 << 10, 1 << 20
TARGET = 128 * MB


def files(*sizes: int) -> list[Facts]:
    return [Facts(size, 1000, 0) for size in sizes]


def test_the_files_of_batches_are_merged_and_a_large_file_is_left() -> None:
    assert sorted(chosen(files(7 * MB, *[4 * KB] * 50), TARGET) or ()) == list(range(1, 51))


def test_a_file_is_merged_with_smaller_ones_that_have_its_size_together() -> None:
    sizes = [400 * KB, *[4 * KB] * 50, 300 * KB]
    assert sorted(chosen(files(*sizes), TARGET) or ()) == list(range(1, 51))
    sizes = [400 * KB, *[10 * KB] * 50, 300 * KB]
    assert len(chosen(files(*sizes), TARGET) or ()) == 52


def test_few_files_are_left_unless_many_of_their_rows_are_deleted() -> None:
    assert chosen(files(*[4 * KB] * 4), TARGET) == []
    assert chosen([*files(*[4 * KB] * 3), Facts(3 * MB, 1000, 301)], TARGET) == [3]
    assert chosen([*files(*[4 * KB] * 3), Facts(3 * MB, 1000, 299)], TARGET) == []


def test_what_is_too_large_for_this_process_is_left_to_iceberg_s_procedure() -> None:
    assert chosen([*files(*[4 * KB] * 9), Facts(9 * MB, 1000, 500)], TARGET) is None
    assert chosen(files(*[3 * MB] * 5), TARGET) is None
    assert len(chosen(files(*[3 * MB] * 4, *[4 * KB] * 9), TARGET) or ()) == 9
    assert chosen(files(*[127 * MB] * 20), TARGET) == []
    assert chosen([*files(*[4 * KB] * 9), Facts(MB, 200_000, 100_000)], TARGET) is None
    assert chosen([Facts(4 * KB, 30_000, 0)] * 9, TARGET) == [0, 1, 2, 3, 4, 5]


def test_a_row_is_rewritten_a_few_times_in_its_life() -> None:
    draw = random.Random(1)
    sizes: list[int] = []
    written = rewritten = 0
    for _ in range(2000):
        for _ in range(50):
            sizes.append(draw.randrange(2 * KB, 20 * KB))
            written += sizes[-1]
        found = chosen(files(*sizes), TARGET)
        if found is None:
            found = [place for place, size in enumerate(sizes) if size < TARGET * 3 // 4]
        merged = sum(sizes[place] for place in found)
        rewritten += merged
        sizes = [size for place, size in enumerate(sizes) if place not in set(found)] + [merged]
        assert len(sizes) < 25
    assert rewritten < 12 * written
