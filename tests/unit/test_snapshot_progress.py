"""Progress of reads: counted by the daemon, and again from the records that it stores."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.cdc.daemon.metrics import HealthCollector
from tailrace.cdc.health.health import Health
from tailrace.sinks.serving.families import Metrics
from tailrace.snapshot.pace import Pace
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.progress import Counted, ReadProgress, seconds_left, stored_progress


def _chunk(table: str, n: int, size: int) -> Chunk:
    return Chunk(table, n, ("public", "t"), n, n + 1, None, size, planned_ms=1000)


def _record(chunk: Chunk, counted: Counted | None) -> dict[str, Any]:
    return chunk.to_dict() | {"done": counted is not None} | (counted.to_dict() if counted else {})


_CHUNKS = [_chunk("a", 0, 100), _chunk("a", 1, 300), _chunk("b", 0, 600)]


def _counted() -> ReadProgress:
    reads = ReadProgress()
    for chunk in _CHUNKS:
        reads.planned(chunk, 1)
    reads.read(_CHUNKS[1], 1, Counted(30, 900, 3000))
    return reads


def test_counted_and_stored_progress_agree() -> None:
    stored = [(1, _record(_CHUNKS[2], None)), (1, _record(_CHUNKS[1], Counted(30, 900, 3000)))]
    assert stored_progress([*stored, (1, _record(_CHUNKS[0], None))]) == _counted()
    a = _counted()["a"]
    assert (a.chunks, a.chunks_done, a.size, a.size_done, a.rows, a.done) == (2, 1, 400, 300, 30, False)
    assert a.rows_per_s() == 15
    # during a read, the pauses of a limit count; at its end the last one has not been waited for
    assert a.rows_per_s(now_ms=11_000) == 3
    assert a.rows_per_s(limit=4) == 4


def test_the_time_left_is_estimated_by_bytes() -> None:
    assert seconds_left(_counted().values(), 4000) == pytest.approx(7.0)  # 300 of 1000 bytes took 3 s
    assert seconds_left(ReadProgress().values(), 4000) == 0
    reads = ReadProgress()
    reads.planned(_CHUNKS[0], 1)
    assert seconds_left(reads.values(), 4000) is None


def test_a_later_run_starts_from_zero() -> None:
    reads = _counted()
    reads.planned(_CHUNKS[0], 2)
    reads.read(_CHUNKS[1], 1, Counted(5, 5, 9000))  # of the run that was given up
    assert (reads["a"].run, reads["a"].chunks, reads["a"].chunks_done, reads["a"].rows) == (2, 1, 0, 0)
    old_and_new = [(2, _record(_CHUNKS[0], None)), (1, _record(_CHUNKS[1], Counted(5, 5, 9000)))]
    assert stored_progress(old_and_new)["a"] == reads["a"]


def test_progress_is_in_the_metrics() -> None:
    health = Health("s")
    health.reads = _counted()
    text = Metrics(HealthCollector(health)).text().decode()
    assert 'tailrace_snapshot_chunks{state="left",table="a"} 1.0' in text
    assert 'tailrace_snapshot_bytes{state="done",table="a"} 300.0' in text
    assert 'tailrace_snapshot_rows{table="a"} 30.0' in text


def test_a_pace_rests_only_above_its_rate() -> None:
    free = Pace(None)
    free.read(10**9)
    assert free.rest() == 0
    slow = Pace(1000)
    slow.read(100)  # what the last half second has left
    assert slow.rest() == 0
    slow.read(2400)
    assert 1.5 < slow.rest() < 2.1
