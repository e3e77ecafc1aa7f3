"""What the two scripts share: arguments, the session, one form for errors and for the lines that they print."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from schemas.config import Config
from schemas.configfile import load
from schemas.errors import SinkError, TailraceError
from schemas.topics import Topics


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


def named(error: Exception) -> TailraceError:
    """Return our own error as it is; of any other only the kind, for its text may hold values of rows."""
    if isinstance(error, TailraceError):
        return error
    if os.environ.get("TAILRACE_TRACE"):
        traceback.print_exception(error)
    condition = getattr(error, "getCondition", lambda: None)()
    return SinkError(
        "TR-527",
        f"a Spark job failed with {type(error).__name__}" + (f" [{condition}]" if condition else ""),
        detail="The batch changed nothing that its cut does not say; it is tried again from there.",
        hint="Its full text may hold values of rows, so it is printed only with TAILRACE_TRACE=1 set.",
    )


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
        cuts.newest()
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


def line(**values: Any) -> None:
    """Print one JSON line on stderr."""
    print(orjson.dumps(values).decode(), file=sys.stderr, flush=True)
