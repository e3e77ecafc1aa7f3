"""What the scripts share: arguments, the session, how they end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from schemas.config import Config
from schemas.configfile import load
from schemas.topics import Topics
from spark_jobs.lines import named


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--config", type=Path, help="tailrace.toml; default: as for the command `tailrace`")
    return arguments


def run(main: Callable[[Config], None], path: Path | None) -> int:
    """Run a job and return its exit code; an error is printed once, in PostgreSQL's form."""
    # a script's own folder stands first on the path, so that our `events` would be taken for opensearch-py's
    sys.path[:] = [folder for folder in sys.path if Path(folder).absolute() != Path(__file__).parent]
    try:
        main(load(path))
    except Exception as error:
        print(named(error), file=sys.stderr, flush=True)
        return named(error).exit_code
    return 0


@contextmanager
def opened(config: Config) -> Iterator[Any]:
    """Give what all views share, and end it in order."""
    from sinks.groups import Groups
    from sinks.views_topic import ViewsTopic
    from spark_jobs.cuts import Cuts
    from spark_jobs.kept import Shared
    from spark_jobs.records import Records
    from spark_jobs.session import open_session

    # Kafka is asked first: it answers in milliseconds, Spark starts in seconds.
    views_topic = ViewsTopic(config.kafka, Topics(config.kafka.prefix))
    with Cuts(config) as cuts:
        cuts.look()
        session = open_session(config)
        try:
            yield Shared(config, session, Records(session, config.kafka), cuts, views_topic, Groups(config.kafka))
        finally:
            session.stop()


def stopping() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; a second one ends the process at once."""
    event = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if event.is_set():
            os._exit(128 + number)
        event.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return event
