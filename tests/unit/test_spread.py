"""The distribution of test files over workers: it names files that exist, and shares out the Spark sessions."""

from __future__ import annotations

from pathlib import Path

from tests.support.spread import FIRST, PROCESSES, SESSIONS, next_file, rank, shares_session

_TESTS = Path(__file__).parents[1]


def test_named_files_exist() -> None:
    assert [file for file in FIRST if not (_TESTS / file).is_file()] == []
    assert [file for file in PROCESSES if not (_TESTS / "spark" / file).is_file()] == []


def test_files_that_start_spark_themselves_do_not_start_the_session_too() -> None:
    texts = {file: (_TESTS / "spark" / file).read_text() for file in PROCESSES}
    assert [file for file, text in texts.items() if "spark: SparkSession" in text or "bench: " in text] == []


def test_the_longest_files_come_first() -> None:
    files = ["tests/spark/test_views.py::test_x[a::b]", f"tests/{FIRST[1]}::test_y", f"tests/{FIRST[0]}::test_z"]
    assert sorted(files, key=rank) == files[::-1]


def test_spark_sessions_are_opened_on_some_workers_and_used_to_the_end() -> None:
    """Workers ask for files in turn, until none is given any."""
    shared = [f"tests/spark/test_{name}.py" for name in "abcdefg"]
    others = ["tests/spark/test_upgrade.py", *(f"tests/integration/test_{name}.py" for name in "ab")]
    queue = sorted([*shared, *others])
    given: dict[int, list[str]] = {worker: [] for worker in range(4)}
    asking = list(given)
    while asking:
        worker = asking.pop(0)
        sessions = {each for each, files in given.items() if any(map(shares_session, files))}
        file = next_file(queue, has_session=worker in sessions, sessions=len(sessions))
        if file is not None:
            queue.remove(file)
            given[worker].append(file)
            asking.append(worker)
    assert queue == []
    with_session = [files for files in given.values() if any(map(shares_session, files))]
    assert len(with_session) == SESSIONS
    assert {len(list(filter(shares_session, files))) for files in with_session} == {3, 4}
    assert sorted(file for files in given.values() for file in files) == sorted([*shared, *others])


def test_a_worker_with_a_session_takes_other_files_at_the_end() -> None:
    queue = ["tests/unit/test_a.py", "tests/spark/test_b.py"]
    assert next_file(queue, has_session=True, sessions=SESSIONS) == queue[1]
    assert next_file(queue[:1], has_session=True, sessions=SESSIONS) == queue[0]
    assert next_file(queue[1:], has_session=False, sessions=SESSIONS) is None
    assert next_file([], has_session=True, sessions=SESSIONS) is None
