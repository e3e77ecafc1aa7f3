"""Messages of PostgreSQL 14 to 18, recorded by `tests.golden.record`, decoded field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cdc.wal import pgoutput_stream
from tailrace.cdc.wal.spool import Spool
from tests.golden.describe import FILES, Recording, describe, load
from tests.golden.expected import expected


def test_all_versions_have_been_recorded() -> None:
    wanted = {14: 2, 15: 3, 16: 4, 17: 4, 18: 4}
    names = {f"pg{version}_protocol{n}" for version, newest in wanted.items() for n in range(1, newest + 1)}
    assert {path.stem for path in FILES} == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_messages_are_decoded_as_expected(path: Path) -> None:
    recording = load(path)
    assert list(describe(recording)) == expected(recording.version, recording.protocol)


@pytest.mark.parametrize("limit", [0, 100_000])
@pytest.mark.parametrize("path", [path for path in FILES if path.stem.endswith("2")], ids=lambda path: path.stem)
def test_a_spooled_transaction_is_the_one_that_protocol_1_sends_whole(path: Path, tmp_path: Path, limit: int) -> None:
    spool = Spool(tmp_path, limit)
    streamed = _transactions(load(path), spool)
    whole = _transactions(load(path.with_name(path.name.replace("protocol2", "protocol1"))), spool)
    # The one difference is the server's: a logical message comes with the xid of the whole transaction, so
    # no reader can tell that it is in a part that was rolled back. Protocol 1 does not send it.
    streamed["streamed"].remove("M transactional=True golden b'in the aborted part'")
    assert streamed == whole
    assert list(streamed) == list(whole)
    assert len(streamed["streamed"]) == 8
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)
    spool.close()


def _transactions(recording: Recording, spool: Spool) -> dict[str, list[str]]:
    """Return the changes of each committed transaction, in commit order, without Relation and Type."""
    found: dict[str, list[str]] = {}
    current = 0
    changes: list[str] = []
    for (lsn, message), line in zip(recording.messages, describe(recording), strict=True):
        kind, text = line[:1], line[2:]
        if kind == " ":
            sub_xid, _ = pgoutput_stream.streamed(message)
            spool.append(current, sub_xid, lsn, line.partition("] ")[2].encode())
        elif kind == "S":
            current = pgoutput_stream.stream_start(message).xid
        elif kind == "A":
            aborted = pgoutput_stream.stream_abort(message, parallel=False)
            spool.abort(aborted.xid, aborted.sub_xid)
        elif kind == "c":
            xid = pgoutput_stream.stream_commit(message).xid
            found[text] = [change.decode() for _, change in spool.take(xid) if change[:1] not in b"RY"]
        elif kind == "B":
            changes = found[text] = []
        elif kind not in "RYCE":
            changes.append(line)
    return found
