"""The daemon process of the snapshot benchmark: copy all tables, print the figures.

python -m tests.bench.snapshot_daemon CONFIG
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from pathlib import Path

from tailrace.cdc.daemon.allocator import settle
from tailrace.cdc.daemon.pipeline import Pipeline
from tailrace.cdc.daemon.session import Session
from tailrace.cdc.startup.decide import Found
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.bench.log import log_to_stderr


class Clocked(Session):
    """A session that times its first start in `clock`; imports are not included."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        super().__init__(config, stop)
        self.clock: dict[str, float] = {}

    def _first_start(self, found: Found) -> Pipeline:
        clock = self.clock
        clock["start"], clock["cpu"], clock["main"] = time.monotonic(), _cpu(), time.thread_time()
        pipeline = super()._first_start(found)
        clock["end"], clock["cpu"] = time.monotonic(), _cpu() - clock["cpu"]
        clock["main"] = time.thread_time() - clock["main"]
        return pipeline


def main(config_path: str) -> None:
    log_to_stderr()
    config = load(Path(config_path))
    settle()
    session = Clocked(config, threading.Event())
    session.start()
    clock = session.clock
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
