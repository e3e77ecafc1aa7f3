"""The spool of streamed transactions: order, aborted subtransactions, bounds, and a full disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.cdc.wal.spool import Spool
from tailrace.schemas.errors import SourceError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[[int], Spool]]:
    made: list[Spool] = []

    def spool(limit_bytes: int) -> Spool:
        made.append(Spool(folder, limit_bytes))
        return made[-1]

    yield spool
    for each in made:
        each.close()
        assert (each.memory_bytes, each.disk_bytes) == (0, 0)


@pytest.mark.parametrize("limit", [0, 40, 10_000])
def test_changes_come_in_order_without_aborted_subtransactions(make: Callable[[int], Spool], limit: int) -> None:
    spool = make(limit)
    for lsn, sub_xid in enumerate([7, 8, 7, 9, 8, 10, 7]):
        spool.append(7, sub_xid, lsn, b"m%d" % lsn)
        spool.append(20, 20, lsn, b"other")
    spool.abort(7, 8)
    spool.abort(7, 10)
    spool.abort(7, 8)
    assert list(spool.take(7)) == [(0, b"m0"), (2, b"m2"), (3, b"m3"), (6, b"m6")]
    assert list(spool.take(7)) == []
    assert [lsn for lsn, _ in spool.take(20)] == list(range(7))


def test_an_aborted_transaction_is_dropped_whole(make: Callable[[int], Spool]) -> None:
    spool = make(30)
    for lsn in range(5):
        spool.append(7, 8, lsn, b"abc")
    spool.abort(7, 7)
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)
    assert list(spool.take(7)) == []


def test_an_unknown_transaction_is_no_error(make: Callable[[int], Spool]) -> None:
    spool = make(30)
    spool.abort(7, 7)
    spool.abort(7, 8)
    assert list(spool.take(7)) == []


def test_the_largest_goes_to_a_file_but_only_above_the_bound(make: Callable[[int], Spool], folder: Path) -> None:
    spool = make(1000)
    spool.append(1, 1, 1, bytes(184))
    spool.append(2, 2, 2, bytes(584))
    spool.append(1, 1, 3, bytes(184))
    assert (spool.memory_bytes, spool.disk_bytes) == (1000, 0)
    assert not folder.exists()
    spool.append(1, 1, 4, b"")
    assert (spool.memory_bytes, spool.disk_bytes) == (416, 600)
    assert [message for _, message in spool.take(2)] == [bytes(584)]
    assert [lsn for lsn, _ in spool.take(1)] == [1, 3, 4]


def test_a_message_larger_than_the_bound_goes_to_a_file(make: Callable[[int], Spool]) -> None:
    spool = make(10)
    message = os.urandom(3_000_000)
    spool.append(1, 1, 1, message)
    assert spool.memory_bytes == 0
    assert list(spool.take(1)) == [(1, message)]


def test_other_transactions_may_grow_while_one_is_taken(make: Callable[[int], Spool]) -> None:
    spool = make(100)
    for lsn in range(10):
        spool.append(1, 1, lsn, b"abc")
    taken = []
    for lsn, _ in spool.take(1):
        taken.append(lsn)
        spool.append(2, 2, lsn, b"later")
    assert taken == list(range(10)) == [lsn for lsn, _ in spool.take(2)]


def test_an_abandoned_take_deletes_its_transaction(make: Callable[[int], Spool]) -> None:
    spool = make(100)
    for lsn in range(10):
        spool.append(1, 1, lsn, b"abc")
    taken = spool.take(1)
    assert spool.disk_bytes > 0
    next(taken)
    del taken
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)


def test_memory_stays_within_the_bound(make: Callable[[int], Spool]) -> None:
    spool = make(1_000_000)
    tracemalloc.start()
    for i in range(30_000):
        spool.append(i % 3, i % 3, i, b"%01000d" % i)
    assert sum(1 for _ in spool.take(0)) == 10_000
    for i in range(100_000):
        spool.abort(1, 5 + i)
    assert sum(1 for _ in spool.take(1)) == 10_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the bound, an eighth allocated ahead, a buffer being replaced, 256 KiB to read, 400 kB of aborted xids
    assert peak < 2_900_000
    assert spool.disk_bytes + spool.memory_bytes == 10_000 * 1016


def test_a_full_disk_is_named_and_loses_nothing(
    make: Callable[[int], Spool], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwrite, []

    def short_then_full(fd: int, rest: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, rest[:5], offset)

    monkeypatch.setattr(os, "pwrite", short_then_full)
    spool = make(30)
    spool.append(1, 1, 1, b"first")
    with pytest.raises(SourceError) as error:
        spool.append(1, 1, 2, b"second")
    assert error.value.code == "TR-226"
    assert str(folder) in error.value.message
    assert "No space left on device" in error.value.detail
    assert "Free space" in error.value.hint
    monkeypatch.undo()
    spool.append(1, 1, 3, b"third")
    assert [message for _, message in spool.take(1)] == [b"first", b"second", b"third"]


def test_a_file_size_limit_is_an_error_and_leaves_no_gap(make: Callable[[int], Spool]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool, appended = make(100), list[int]()
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(SourceError, match="TR-226"):
            _append_a_hundred(spool, appended)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # the one whose append failed is complete, too
    assert [lsn for lsn, _ in spool.take(1)] == appended
    assert 5 < len(appended) < 100


def _append_a_hundred(spool: Spool, appended: list[int]) -> None:
    for lsn in range(100):
        appended.append(lsn)
        spool.append(1, 1, lsn, b"abc")


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spool = Spool(tmp_path / "file" / "folder", 10)
    with pytest.raises(SourceError, match="TR-226"):
        spool.append(1, 1, 1, b"abc")
    spool.close()


_KILLED = """
import sys
from pathlib import Path
from tailrace.cdc.wal.spool import Spool
spool = Spool(Path(sys.argv[1]), 1000)
for lsn in range(1000):
    spool.append(lsn % 3, 1, lsn, bytes(100))
print(spool.disk_bytes, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_file(folder: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 100_000
        assert list(folder.iterdir()) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert list(folder.iterdir()) == []
