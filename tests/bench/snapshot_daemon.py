"""The daemon's side of the snapshot benchmark, as a process of its own: copy all tables, print what it took.

python -m tests.bench.snapshot_daemon CONFIG
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from pathlib import Path

import structlog

from tailrace.cdc.daemon.allocator import settle
from tailrace.cdc.daemon.session import Session
from tailrace.schemas.config.file import load


def main(config_path: str) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = load(Path(config_path))
    settle()
    session = Session(config, threading.Event())
    clock: dict[str, float] = {}
    first_start = session.first_start

    # imports, the publication and the topics are no part of the clock: it runs from before the slot is made
    def timed() -> None:
        clock["start"], clock["cpu"], clock["main"] = time.monotonic(), _cpu(), time.thread_time()
        first_start()
        clock["end"], clock["cpu"] = time.monotonic(), _cpu() - clock["cpu"]
        clock["main"] = time.thread_time() - clock["main"]

    session.first_start = timed  # type: ignore[method-assign]
    session.start()
    here = session.pipeline.progress.newest.here
    print(
        json.dumps(
            {
                "seconds": clock["end"] - clock["start"],
                "cpu": clock["cpu"],
                "other_threads_cpu": clock["cpu"] - clock["main"],
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "rows": here.position.ordinal,
                "complete": not session.pipeline.registry.incomplete,
            }
        )
    )
    session.close()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main(sys.argv[1])
