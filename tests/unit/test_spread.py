"""The order and the groups of the tests in several workers name files that exist."""

from __future__ import annotations

from pathlib import Path

from tests.support.spread import FIRST, PROCESSES, SECOND, rank

_TESTS = Path(__file__).parents[1]


def test_named_files_exist_and_are_in_one_group() -> None:
    assert [file for file in FIRST if not (_TESTS / file).is_file()] == []
    assert [file for file in PROCESSES | SECOND if not (_TESTS / "spark" / file).is_file()] == []
    assert not PROCESSES & SECOND


def test_files_that_start_spark_themselves_do_not_start_the_session_too() -> None:
    texts = {file: (_TESTS / "spark" / file).read_text() for file in PROCESSES}
    assert [file for file, text in texts.items() if "spark: SparkSession" in text or "bench: " in text] == []


def test_the_longest_files_come_first() -> None:
    files = ["tests/spark/test_views.py::test_x[a::b]", f"tests/{FIRST[1]}::test_y", f"tests/{FIRST[0]}::test_z"]
    assert sorted(files, key=rank) == files[::-1]
