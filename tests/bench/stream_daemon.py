"""The daemon's side of the stream benchmark, as a process of its own: stream up to an LSN, print what it took.

python -m tests.bench.stream_daemon CONFIG TARGET_LSN [PROFILE]
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from pathlib import Path

import structlog

from cdc.memory import settle
from cdc.session import Session
from schemas.configfile import load
from schemas.lsn import parse_lsn


def main(config_path: str, target: str) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    stop = threading.Event()
    config = load(Path(config_path))
    goal = parse_lsn(target)
    settle()
    session = Session(config, stop)
    # imports and connections are no part of the clock: it runs from START_REPLICATION
    own_slot = session._own_slot
    clock: dict[str, float] = {}

    def timed_own_slot() -> None:
        clock["start"] = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        clock["cpu"] = usage.ru_utime + usage.ru_stime
        own_slot()

    session._own_slot = timed_own_slot  # type: ignore[method-assign]
    session.start()
    acknowledged = session._progress.acknowledged

    def watched(record: object) -> int:
        lsn = acknowledged(record)  # type: ignore[arg-type]
        if lsn >= goal and "end" not in clock:
            clock["end"] = time.monotonic()
            stop.set()
        return lsn

    session._progress.acknowledged = watched  # type: ignore[method-assign]
    session.run()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": clock["end"] - clock["start"],
                "cpu": usage.ru_utime + usage.ru_stime - clock["cpu"],
                "peak_mib": usage.ru_maxrss / 1024,
            }
        )
    )
    session.close()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        import cProfile

        cProfile.run("main(sys.argv[1], sys.argv[2])", sys.argv[3])
    else:
        main(sys.argv[1], sys.argv[2])
