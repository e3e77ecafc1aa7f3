"""Feed damaged messages to the decoder: `python -m tests.fuzz.decoder --seconds 600`.

Recordings of real servers with bits flipped, bytes set, lengths changed, messages cut, spliced, doubled and left out.
Only our own errors may be raised, and the same ones by compiled and by interpreted code.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tailrace.cdc.wal import pgoutput, pgoutput_stream
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.schemas.errors import DecodeError
from tests.fuzz.chain import (
    ON_ERROR,
    Chain,
    Collecting,
    Finding,
    OnError,
    RealCollecting,
    agreed,
    check_records,
    copied,
    forms,
    read_stream,
)
from tests.fuzz.corpus import copy_lines, streams
from tests.fuzz.replication import ReplicationStream

_ROUND = 400
"""Inputs between two checks of the clock."""

_PARSERS: dict[int, list[Callable[[bytes], Any]]] = {
    pgoutput.BEGIN: [pgoutput.begin],
    pgoutput.COMMIT: [pgoutput.commit],
    pgoutput.RELATION: [pgoutput.relation],
    pgoutput.TYPE: [pgoutput.type_],
    pgoutput.ORIGIN: [pgoutput.origin],
    pgoutput.TRUNCATE: [pgoutput.truncate],
    pgoutput.MESSAGE: [pgoutput.message_],
    pgoutput.INSERT: [pgoutput.row_message],
    pgoutput.UPDATE: [pgoutput.row_message],
    pgoutput.DELETE: [pgoutput.row_message],
    pgoutput_stream.STREAM_START: [pgoutput_stream.stream_start],
    pgoutput_stream.STREAM_STOP: [pgoutput_stream.stream_stop],
    pgoutput_stream.STREAM_COMMIT: [pgoutput_stream.stream_commit],
    pgoutput_stream.STREAM_ABORT: [
        lambda message: pgoutput_stream.stream_abort(message, parallel=True),
        lambda message: pgoutput_stream.stream_abort(message, parallel=False),
    ],
    pgoutput_stream.STREAM_PREPARE: [pgoutput_stream.stream_prepare],
    pgoutput_stream.BEGIN_PREPARE: [pgoutput_stream.begin_prepare],
    pgoutput_stream.PREPARE: [pgoutput_stream.prepare],
    pgoutput_stream.COMMIT_PREPARED: [pgoutput_stream.commit_prepared],
    pgoutput_stream.ROLLBACK_PREPARED: [pgoutput_stream.rollback_prepared],
}

_LENGTHS = [0, 1, 0x7F, 0xFF, 0x100, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
_byte = st.integers(0, 255)
_at = st.integers(0, 4000)


@dataclass
class Count:
    """The number of inputs tried, and of those that were read without an error."""

    inputs: int = 0
    accepted: int = 0


@st.composite
def _damaged(draw: st.DrawFn, whole: bytes, head: int) -> bytes:
    """Draw a damaged form of a message whose first `head` bytes stay."""
    message = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        size = len(message) - head
        if size <= 0:
            break
        pos = head + draw(_at) % size
        match draw(st.integers(0, 7)):
            case 0:
                message[pos] ^= 1 << draw(st.integers(0, 7))
            case 1:
                message[pos] = draw(_byte | st.sampled_from(b"tnuKON"))
            case 2:
                message[pos : pos + 4] = struct.pack(">I", draw(st.sampled_from(_LENGTHS)))
            case 3:
                message[pos : pos + 2] = struct.pack(">H", draw(st.sampled_from(_LENGTHS)) & 0xFFFF)
            case 4:
                del message[pos:]
            case 5:
                # turn a null into an unchanged TOAST value, or the reverse: the tuple stays well-formed
                marks = [n for n in range(head, len(message)) if message[n] in b"nu"]
                if marks:
                    message[marks[draw(_at) % len(marks)]] ^= ord("n") ^ ord("u")
            case 6:
                del message[pos : pos + draw(st.integers(1, 8))]
            case _:
                message[pos:pos] = draw(st.binary(min_size=1, max_size=8))
    return bytes(message)


@st.composite
def _streams(draw: st.DrawFn) -> list[bytes]:
    """Draw a piece of a stream in which messages are damaged, doubled, left out, or foreign."""
    corpus = streams()
    whole = corpus[draw(st.just(0) | st.integers(0, len(corpus) - 1))]
    first = draw(st.integers(0, len(whole) - 1)) if draw(st.booleans()) else 0
    messages = whole[first : first + draw(st.integers(1, 60))]
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(0, 60)) % len(messages)
        match draw(st.integers(0, 7)):
            case 0:
                messages.insert(n, messages[draw(st.integers(0, 60)) % len(messages)])
            case 1 if len(messages) > 1:
                del messages[n]
            case 2:
                other = corpus[draw(st.integers(0, len(corpus) - 1))]
                messages.insert(n, other[draw(st.integers(0, len(other) - 1))])
            case 3:
                cut = XLOGDATA + draw(_at) % (len(messages[n]) - XLOGDATA + 1)
                messages[n] = messages[n][:cut] + messages[draw(st.integers(0, 60)) % len(messages)][cut:]
            case _:
                messages[n] = draw(_damaged(messages[n], XLOGDATA))
    return messages


def fuzz(seconds: float, first_seed: int, folder: Path) -> Count:
    """Try damaged input for `seconds`. Raises Finding, with the input that reproduces it."""
    both = forms()
    replication = ReplicationStream()
    producers: list[tuple[Any, Collecting | RealCollecting]] = [
        (both[0], RealCollecting()),
        (both[0], Collecting()),
        (both[1], Collecting()),
    ]
    count = Count()
    deadline = time.monotonic() + seconds

    def try_stream(messages: list[bytes], spool_bytes: int, on_error: OnError) -> None:
        count.inputs += 1
        for raw in messages:
            _parse(raw[XLOGDATA:])
        chains = [Chain(form, folder, spool_bytes, producer, on_error) for form, producer in producers]
        direct, *others = [chain.run(messages) for chain in chains]
        records, *rest, error = agreed(others)
        agreed([(chains[0].held, *direct[1:]), (chains[1].held, *rest, error)])
        check_records(records, chains[1].shapes)
        count.accepted += error is None

    def try_line(line: bytes) -> None:
        count.inputs += 1
        count.accepted += agreed([copied(form, line) for form in both])[-1] is None

    def try_raw(raws: list[bytes]) -> None:
        count.inputs += 1
        count.accepted += agreed([read_stream(form, replication, raws) for form in both])[-1] is None

    lines = st.sampled_from(copy_lines()).flatmap(lambda line: _damaged(line, 0))
    raw = st.sampled_from(streams()[0] + [b"k" + bytes(17)]).flatmap(lambda each: _damaged(each, 0)).filter(bool)
    targets = [
        (given(_streams(), st.sampled_from([0, 200, 100_000]), st.sampled_from(ON_ERROR)), try_stream, _ROUND),
        (given(lines), try_line, _ROUND // 4),
        (given(st.lists(raw, max_size=5)), try_raw, _ROUND // 10),
    ]
    number = first_seed
    while time.monotonic() < deadline:
        for drawn, target, examples in targets:
            number += 1
            once = settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            seed(number)(once(drawn(cast("Any", target))))()
    replication.close()
    return count


def _parse(message: bytes) -> None:
    """Run the parsers: they may raise only a DecodeError whose offset is inside the message."""
    for parser in _PARSERS.get(message[0] if message else 0, []):
        try:
            parser(message)
        except DecodeError as error:
            if not 0 <= error.offset <= max(len(message), 1):
                raise Finding(f"offset {error.offset} of {message!r}") from error


def main() -> None:
    """Run until the time is up or something is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tailrace-fuzz-") as folder:
        count = fuzz(arguments.seconds, arguments.seed, Path(folder))
    print(f"{count.inputs} inputs, {count.accepted} of them read without an error, no finding")


if __name__ == "__main__":
    main()
