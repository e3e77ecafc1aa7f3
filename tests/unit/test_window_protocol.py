"""The stream's side of windows against replies of a reader that the tests write themselves."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import orjson
import pytest

from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.window import ChunkRead, Look, Outcome, Plan, Seen, VisibleXids, Window, WindowState
from tailrace.snapshot.window_protocol import WindowProtocol
from tailrace.snapshot.window_reader import EndRequest, Inspection, LookRequest, ReadRequest

RELATION = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, (Column("id", 23),))
PLAN = Plan("public.t", 1, RELATION)
CHUNK = Chunk("public.t", 0, ("public", "t"), 0, None)
ALL = VisibleXids.parse("900:900:")


class Reader:
    """The reader's interface; `replies` are what its thread would have put."""

    prefix, marks = "tailrace:s", "m"

    def __init__(self, *, read_only: bool = False) -> None:
        self.read_only = read_only
        self.requests: list[Plan | ReadRequest | LookRequest | EndRequest] = []
        self.replies: deque[Plan | ChunkRead | Inspection] = deque()

    def request(self, wanted: Plan | ReadRequest | LookRequest | EndRequest) -> None:
        self.requests.append(wanted)

    def reply(self, wait_s: float = 0.0) -> Plan | ChunkRead | Inspection | None:
        return self.replies.popleft() if self.replies else None

    def close(self) -> None:
        raise AssertionError


def read(seen: VisibleXids | None, **more: int) -> ChunkRead:
    return ChunkRead(Outcome.ROWS, RELATION, lsn=5, lines=[b"1\n"], seen=Seen(seen), until=more.get("until"))


def mark(windows: WindowProtocol, kind: str, n: int = 1, marks: str = Reader.marks) -> Window | None:
    return windows.mark(Reader.prefix, orjson.dumps([marks, kind, n]))


def outcome_of(window: Window | None) -> Outcome:
    assert window is not None
    assert window.read is not None
    return window.read.outcome


def test_keys_are_recorded_from_the_low_to_the_high_mark() -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    windows.read(PLAN, CHUNK)
    assert windows.busy
    assert reader.requests == [ReadRequest(1, PLAN, CHUNK)]
    windows.touch("public.t", b"before")
    assert mark(windows, "low") is None
    assert windows.opened is not None
    windows.touch("public.t", b"inside")
    windows.touch("public.u", b"other")
    reader.replies.append(read(ALL))
    window = mark(windows, "high")
    assert window is not None
    windows.touch("public.t", b"after")
    assert (window.state, window.keys) == (WindowState.CLOSED, {b"inside"})
    assert window.read == read(ALL)
    windows.finish()
    assert not windows.busy


def test_marks_of_other_processes_and_windows_are_ignored() -> None:
    windows = WindowProtocol(Reader())
    windows.read(PLAN, CHUNK)
    mark(windows, "low", marks="another")
    mark(windows, "low", n=2)
    windows.mark("another:s", orjson.dumps([Reader.marks, "low", 1]))
    assert windows.opened is None


@pytest.mark.parametrize(("snapshot", "outcome"), [("900:900:", Outcome.ROWS), ("10:900:10", Outcome.VOID)])
def test_a_read_without_a_delivered_transaction_is_void(snapshot: str, outcome: Outcome) -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    windows.delivered(10)
    windows.read(PLAN, CHUNK)
    reader.replies.append(read(VisibleXids.parse(snapshot)))
    windows.poll()
    mark(windows, "low")
    assert outcome_of(mark(windows, "high")) is outcome


def test_a_transaction_inside_a_window_voids_the_next_that_does_not_see_it() -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    outcomes = []
    for n, inside in ((1, [10]), (2, []), (3, [])):
        windows.read(PLAN, CHUNK)
        mark(windows, "low", n)
        for xid in inside:
            windows.delivered(xid)
        reader.replies.append(read(VisibleXids.parse("10:900:10" if n < 3 else "900:900:")))
        outcomes.append(outcome_of(mark(windows, "high", n)))
        windows.finish()
    assert outcomes == [Outcome.ROWS, Outcome.VOID, Outcome.ROWS]


def test_a_truncate_inside_voids_the_window() -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    windows.read(PLAN, CHUNK)
    mark(windows, "low")
    windows.truncated("public.u")
    windows.truncated("public.t")
    reader.replies.append(read(ALL))
    assert outcome_of(mark(windows, "high")) is Outcome.VOID


def test_without_marks_a_window_lasts_until_the_stream_has_passed_its_end() -> None:
    reader = Reader(read_only=True)
    windows = WindowProtocol(reader)
    windows.delivered(10)
    windows.read(PLAN, CHUNK)
    assert reader.requests == []  # only between two transactions
    assert windows.between(40) is None
    assert reader.requests == [ReadRequest(1, PLAN, CHUNK)]
    reader.replies.append(read(None, until=50))
    windows.poll()
    assert windows.waits
    assert windows.between(49) is None
    # On a standby, all that was streamed is visible: transaction 10 does not void it.
    assert outcome_of(windows.between(50)) is Outcome.ROWS
    windows.finish()
    # After a promotion it is not compared any more: it would take memory for ever.
    windows.read(PLAN, CHUNK)
    windows.between(60)
    reader.replies.append(read(VisibleXids.parse("10:900:10"), until=60))
    windows.poll()
    assert outcome_of(windows.between(60)) is Outcome.ROWS


WHOLE = replace(PLAN, whole=True)


def test_a_snapshot_divides_the_transactions_in_its_window() -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    windows.take_snapshot(WHOLE)
    assert reader.requests == [ReadRequest(1, WHOLE, None)]
    assert windows.is_in_snapshot("public.t", 5), "before the window"
    reader.replies.append(read(VisibleXids.parse("10:900:10")))
    mark(windows, "low")
    assert [windows.is_in_snapshot("public.t", xid) for xid in (9, 10, 11, 900)] == [True, False, True, False]
    windows.delivered(10)
    assert outcome_of(mark(windows, "high")) is Outcome.ROWS
    windows.finish()
    windows.read(WHOLE, CHUNK)
    mark(windows, "low", n=2)
    reader.replies.append(read(VisibleXids.parse("10:900:10")))
    assert outcome_of(mark(windows, "high", n=2)) is Outcome.ROWS, "the stream has sent what its rows lack"


@pytest.mark.parametrize("snapshot", ["10:900:10", None])
def test_a_snapshot_that_lacks_a_delivered_transaction_or_does_not_come_is_void(snapshot: str | None) -> None:
    reader = Reader()
    windows = WindowProtocol(reader)
    windows.delivered(10)
    windows.take_snapshot(WHOLE)
    if snapshot is not None:
        reader.replies.append(read(VisibleXids.parse(snapshot)))
    mark(windows, "low")
    assert windows.is_in_snapshot("public.t", 900), "the next snapshot will have it"
    if snapshot is None:
        reader.replies.append(read(ALL))
    assert outcome_of(mark(windows, "high")) is Outcome.VOID


@pytest.mark.parametrize(("changed", "outcome"), [("public.t", Outcome.VOID), ("public.u", Outcome.ROWS)])
def test_a_snapshot_of_a_standby_is_void_if_the_table_changes_in_its_window(changed: str, outcome: Outcome) -> None:
    reader = Reader(read_only=True)
    windows = WindowProtocol(reader)
    windows.take_snapshot(WHOLE)
    reader.replies.append(read(None, until=50))
    assert windows.between(40) is None
    assert windows.opened is not None
    assert windows.is_in_snapshot(changed, 10)
    assert outcome_of(windows.between(50)) is outcome


def test_the_catalog_is_inspected_when_nothing_was_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, clock = Reader(), [1000.0]
    monkeypatch.setattr("tailrace.snapshot.window_protocol.time.monotonic", lambda: clock[0])
    windows = WindowProtocol(reader)
    windows.look_if_due()
    assert reader.requests == []
    clock[0] += 5
    windows.look_if_due()
    assert reader.requests == [LookRequest()]
    look = Look(clock[0], 5, ())
    reader.replies.append(Inspection(look, Seen(ALL), took_s=1.0))
    assert windows.poll() is look
    assert not windows.busy
    clock[0] += 49  # a fiftieth of the time at most
    windows.look_if_due()
    assert not windows.busy
    clock[0] += 1
    windows.look_if_due()
    assert windows.busy
