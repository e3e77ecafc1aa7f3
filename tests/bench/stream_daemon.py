"""The daemon process of the stream benchmark: stream up to an LSN, print the figures.

python -m tests.bench.stream_daemon CONFIG TARGET_LSN
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from tailrace.cdc.daemon.allocator import settle
from tailrace.cdc.daemon.pipeline import Pipeline
from tailrace.cdc.daemon.session import Session
from tailrace.cdc.daemon.stream import Stream
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import parse_lsn
from tests.bench.log import log_to_stderr

_SAMPLE = 20_000


class Clocked(Session):
    """A session that notes in `clock` when it began to stream: imports and connections are not timed."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        super().__init__(config, stop)
        self.clock: dict[str, float] = {}

    def _own_slot(self, publications: list[str]) -> None:
        self.clock |= {"start": time.monotonic(), "cpu": _cpu()}
        super()._own_slot(publications)

    def stages(self) -> Stages:
        """Time the stages from now on."""
        assert self._stream is not None
        return Stages(self.pipeline, self._stream)


class Stages:
    """CPU seconds of the main thread by stage; measured once a batch, so that measuring costs nothing."""

    def __init__(self, pipeline: Pipeline, stream: Stream) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.sample: list[bytes] = []
        self._tables = pipeline.tables
        wal, assembler, delivery = pipeline.wal, stream.assembler, pipeline.delivery
        wal.read = self._timed("read", wal.read)  # type: ignore[method-assign]
        assembler.feed = self._timed("feed", assembler.feed)  # type: ignore[method-assign]
        delivery.commit = self._timed("commit", delivery.commit)  # type: ignore[method-assign]

    def _timed(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[stage] += time.thread_time() - began
                if stage == "feed" and len(self.sample) < _SAMPLE:
                    self.sample += islice(arguments[0], _SAMPLE - len(self.sample))

        return timed

    def encode(self) -> float:
        """Return the mean CPU seconds of decoding and encoding one change of the sample."""
        rows = [m for m in self.sample if m[XLOGDATA] in b"IUD"]
        began = time.thread_time()
        for message in rows:
            encoder = self._tables.for_record(int.from_bytes(message[XLOGDATA + 1 : XLOGDATA + 5], "big")).encoder
            if message[XLOGDATA] == 73:
                encoder.insert(message, XLOGDATA + 6, 1, 1)
            elif message[XLOGDATA] == 85:
                encoder.change(message, XLOGDATA + 5, 1, 1)
            else:
                encoder.remove(message, XLOGDATA + 5, 1, 1)
        return (time.thread_time() - began) / max(len(rows), 1)


def main(config_path: str, target: str) -> None:
    log_to_stderr()
    stop = threading.Event()
    config = load(Path(config_path))
    goal = parse_lsn(target)
    settle()
    session = Clocked(config, stop)
    session.start()
    clock = session.clock
    acknowledged = session.pipeline.progress.acknowledged

    def watched(record: object) -> int:
        lsn = acknowledged(record)  # type: ignore[arg-type]
        if lsn >= goal and "end" not in clock:
            clock["end"] = time.monotonic()
            stop.set()
        return lsn

    session.pipeline.progress.acknowledged = watched  # type: ignore[method-assign]
    stages = session.stages()
    main_thread = time.thread_time()
    session.run()
    main_thread = time.thread_time() - main_thread
    cpu = _cpu() - clock["cpu"]
    print(
        json.dumps(
            {
                "seconds": clock["end"] - clock["start"],
                "cpu": cpu,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "read_cpu": stages.seconds["read"],
                "feed_cpu": stages.seconds["feed"],
                "commit_cpu": stages.seconds["commit"],
                "other_threads_cpu": cpu - main_thread,
                "encode_us": stages.encode() * 1e6,
            }
        )
    )
    session.close()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
