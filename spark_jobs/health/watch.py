"""Thread that looks at the topics' position once a second: it measures the lag while batches run, and warns of stops.

It has a consumer of its own: the loop of the job looks only when it begins batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import PositionTail
from tailrace.spark_jobs.health.health import JobHealth
from tailrace.spark_jobs.health.time_left import TimeLeft
from tailrace.spark_jobs.log import line

_INTERVAL_S: Final = 1.0
_ANSWER_S: Final = 10.0
_STOP_S: Final = 2.0


@contextmanager
def watching(config: Config, health: JobHealth) -> Iterator[None]:
    """Write into `health` what the views lack, while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(config, health, stop), name="views-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_S)


def _watch(config: Config, health: JobHealth, stop: threading.Event) -> None:
    left = TimeLeft()
    with PositionTail(config.kafka, Topics(config.kafka.prefix), config.source.slot, _ANSWER_S) as tail:
        while not stop.is_set():
            try:
                record = tail.committed(_ANSWER_S)  # which asks for the end, so that a silent broker is an error
            except SinkError as error:
                health.kafka_error = error.message
            else:
                now = time.time()
                health.looked_at, health.kafka_error = now, None
                if record is not None:
                    for view in health.views.values():
                        view.backlog.saw(record.here, now, view.reached)
            for each in left.news(health.views, time.time()):
                level = "error" if each.level > 1 else "warning"
                line(
                    event="view stops soon" if each.seconds_left > 0 else "view stops",
                    level=level,
                    view=each.view,
                    code=each.code,
                    stops_at=each.stops_at,
                    seconds_left=each.seconds_left,
                )
            stop.wait(_INTERVAL_S)
