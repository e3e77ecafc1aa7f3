"""A recording as text: a line per message with all its fields, and names for what differs by run.

LSNs and times cannot be predicted; they are left out of the lines and checked here, against what the recorder has seen.
TupleData is decoded independently here, so that the recording also defines what the daemon's row path must find.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.cdc.wal import pgoutput, pgoutput_stream

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("pg*_protocol*.json"))

_ORIGIN_US = 1_767_323_045_000_000
"""2026-01-02 03:04:05 UTC: a replicated transaction has the commit time of its origin."""

_BUILTIN = {23: "int4", 25: "text", 1700: "numeric", 16: "bool", 1043: "varchar"}


@dataclass(frozen=True, slots=True)
class Recording:
    version: int
    protocol: int
    parallel: bool
    start: dict[str, int]
    end: dict[str, int]
    xids: dict[int, str]
    oids: dict[int, str]
    messages: list[tuple[int, bytes]]


def load(path: Path) -> Recording:
    return parse(json.loads(path.read_text(encoding="utf-8")))


def parse(kept: dict[str, Any]) -> Recording:
    """Return the recording from the output of `tests.golden.record.record`."""
    return Recording(
        int(kept["server"].split(".")[0]),
        kept["protocol"],
        kept["options"].get("streaming") == "parallel",
        kept["start"],
        kept["end"],
        {xid: name for name, xid in kept["xids"].items()},
        {oid: name for name, oid in kept["oids"].items()},
        [(_lsn(lsn), bytes.fromhex(raw)) for lsn, raw in kept["messages"]],
    )


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def describe(recording: Recording) -> Iterator[str]:
    """Yield the lines; those of a streamed block are indented and begin with the xid's name."""
    reader = _Describer(recording)
    for _, message in recording.messages:
        yield reader.line(message)


class _Describer:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._streaming = False
        self._begin: pgoutput.Begin | None = None
        self._prepared: pgoutput_stream.Prepared | None = None

    def line(self, message: bytes) -> str:
        kind = chr(message[0])
        if self._streaming and kind not in "OE":
            xid, pos = pgoutput_stream.streamed(message)
            return f"    [{self._xid(xid)}] {self._body(kind, message, pos)}"
        if kind in "IUDRYTMO":
            return ("    " if self._streaming else "") + self._body(kind, message, 1)
        return f"{kind} {self._control(kind, message)}".rstrip()

    def _control(self, kind: str, message: bytes) -> str:
        if kind == "B":
            self._begin = begin = pgoutput.begin(message)
            elsewhere = begin.commit_us == _ORIGIN_US
            self._check(begin.final_lsn, us=None if elsewhere else begin.commit_us)
            return self._xid(begin.xid) + (" at the origin's time" if elsewhere else "")
        if kind == "C":
            commit = pgoutput.commit(message)
            assert self._begin is not None
            assert (self._begin.final_lsn, self._begin.commit_us) == (commit.commit_lsn, commit.commit_us)
            elsewhere = commit.commit_us == _ORIGIN_US
            self._check(commit.commit_lsn, commit.end_lsn, us=None if elsewhere else commit.commit_us)
            return "at the origin's time" if elsewhere else ""
        if kind == "S":
            start = pgoutput_stream.stream_start(message)
            self._streaming = True
            return self._xid(start.xid) + (" first" if start.first_segment else "")
        if kind == "E":
            self._streaming = False
            assert pgoutput_stream.stream_stop(message) == pgoutput_stream.StreamStop()
            return ""
        if kind == "c":
            ended = pgoutput_stream.stream_commit(message)
            self._check(ended.commit_lsn, ended.end_lsn, us=ended.commit_us)
            return self._xid(ended.xid)
        if kind == "A":
            return self._aborted(message)
        return self._two_phase(kind, message)

    def _aborted(self, message: bytes) -> str:
        abort = pgoutput_stream.stream_abort(message, parallel=self._recording.parallel)
        if self._recording.parallel:
            assert abort.abort_lsn is not None
            assert abort.abort_us is not None
            self._check(abort.abort_lsn, us=abort.abort_us)
        return f"{self._xid(abort.xid)} / {self._xid(abort.sub_xid)}"

    def _two_phase(self, kind: str, message: bytes) -> str:
        if kind == "K":
            commit = pgoutput_stream.commit_prepared(message)
            self._check(commit.commit_lsn, commit.end_lsn, us=commit.commit_us)
            return f"{self._xid(commit.xid)}, {commit.gid}"
        if kind == "r":
            back = pgoutput_stream.rollback_prepared(message)
            self._check(back.prepare_end_lsn, back.rollback_end_lsn, us=back.rollback_us)
            assert self._prepared is not None
            assert (back.prepare_end_lsn, back.prepare_us) == (self._prepared.end_lsn, self._prepared.prepare_us)
            return f"{self._xid(back.xid)}, {back.gid}"
        read = {"b": "begin_prepare", "P": "prepare", "p": "stream_prepare"}[kind]
        prepared: pgoutput_stream.Prepared = getattr(pgoutput_stream, read)(message)
        self._check(prepared.prepare_lsn, prepared.end_lsn, us=prepared.prepare_us)
        assert kind != "P" or prepared == self._prepared
        self._prepared = prepared
        return f"{self._xid(prepared.xid)}, {prepared.gid}"

    def _body(self, kind: str, message: bytes, pos: int) -> str:
        if kind == "R":
            relation = pgoutput.relation(message, pos)
            assert self._recording.oids[relation.oid] == relation.name
            columns = (
                f"{column.name}{'*' if column.is_key else ''} {self._type(column.type_oid)} {column.typmod}"
                for column in relation.columns
            )
            return f"R {relation.qualified_name} {relation.replica_identity.name}: {', '.join(columns)}"
        if kind == "Y":
            named = pgoutput.type_(message, pos)
            return f"Y {named.namespace}.{named.name} = {self._recording.oids[named.oid]}"
        if kind == "O":
            origin = pgoutput.origin(message)
            return f"O {origin.name} {origin.commit_lsn:X}"
        if kind == "T":
            truncate = pgoutput.truncate(message, pos)
            names = ", ".join(self._recording.oids[oid] for oid in truncate.relation_oids)
            return f"T {names} cascade={truncate.cascade} restart_identity={truncate.restart_identity}"
        if kind == "M":
            emitted = pgoutput.message_(message, pos)
            self._check(emitted.lsn)
            return f"M transactional={emitted.transactional} {emitted.prefix} {emitted.content!r}"
        oid, pos = pgoutput.row_message(message, pos)
        return f"{kind} {self._recording.oids[oid]} {_tuples(message, pos)}"

    def _xid(self, xid: int) -> str:
        return self._recording.xids.get(xid, "(nothing published)")

    def _type(self, oid: int) -> str:
        return _BUILTIN.get(oid) or self._recording.oids[oid]

    def _check(self, *lsns: int, us: int | None = None) -> None:
        start, end = self._recording.start, self._recording.end
        assert start["lsn"] <= lsns[0] <= lsns[-1] <= end["lsn"]
        assert us is None or start["us"] <= us <= end["us"]


def _tuples(message: bytes, pos: int) -> str:
    """Return marks and columns: NULL as `-`, unchanged TOAST as `~`, a long text by its size in bytes."""
    found = []
    while pos < len(message):
        mark, count = struct.unpack_from(">cH", message, pos)
        pos += 3
        columns = []
        for _ in range(count):
            kind, pos = message[pos : pos + 1], pos + 1
            text = {b"n": "-", b"u": "~"}.get(kind, "")
            if not text:
                assert kind == b"t"
                (size,) = struct.unpack_from(">I", message, pos)
                text = repr(message[pos + 4 : pos + 4 + size].decode())
                text = re.sub(r"^'(..).{36,}'$", rf"'\1…' ({size})", text)
                pos += 4 + size
            columns.append(text)
        found.append(f"{mark.decode()}({', '.join(columns)})")
    return " ".join(found)
