"""Common code of the jobs: arguments, shared resources, signals and exit."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, View, Warehouse
from tailrace.schemas.config.secret import without_secrets
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.log_form import failure
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.named_tables import with_found_tables
from tailrace.sinks.iceberg import catalog
from tailrace.sinks.read.targets import TARGETS
from tailrace.sinks.spark.sql_types import quote
from tailrace.spark_jobs.causes import NO_DRIVER, cause, is_jvm_gone
from tailrace.spark_jobs.jobs.parent import end_with_parent
from tailrace.spark_jobs.log import configure, named, set_level, was_cut
from tailrace.spark_jobs.views import targets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAME_SIGNAL_S: Final = 2.0


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--config", type=Path, help="tailrace.toml; default: as for the command `tailrace`")
    return arguments


def run(main: Callable[[Config], None], path: Path | None, *, service: bool = False) -> int:
    """Run a job and return its exit code; an error is printed once, in PostgreSQL's format.

    Without a terminal, the error of a `service`, which logs while it runs, is one more record of its log.
    """
    # Under spark-submit, this file's folder is first on the path: our modules `command`, `session` would shadow others.
    sys.path[:] = [folder for folder in sys.path if Path(folder).absolute() != Path(__file__).parent]
    end_with_parent()
    configure()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # A job without an orderly stop ends as on SIGTERM, without a traceback; no commit is partial.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        config = with_found_tables(load(path))
        if service:  # the command shows the records of other jobs as progress
            set_level(config.log.level)
        main(config)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        failed = named(error)
        print(failure(failed, terminal=not service or sys.stderr.isatty()), file=sys.stderr, flush=True)
        return failed.exit_code
    return 128 + signal.SIGPIPE if was_cut() else 0


@contextmanager
def opened(config: Config, views: Iterable[str] = ()) -> Iterator[Any]:
    """Yield the resources that all views share, and close them in order.

    The targets of `views` are checked before anything starts.
    """
    from tailrace.sinks.control.views_topic import ViewsTopic
    from tailrace.sinks.kafka.groups import Groups
    from tailrace.spark_jobs.topics.cuts import Cuts

    chosen = [view for name in views if (view := config.views.get(name)) is not None]
    check_targets(config, chosen)
    # Kafka comes first: it answers in milliseconds, whereas Spark takes seconds to start.
    views_topic = ViewsTopic(config.kafka, Topics(config.kafka.prefix))
    with Cuts(config) as cuts:
        cuts.look()

        from tailrace.spark_jobs.jobs.session import open_session
        from tailrace.spark_jobs.maintain.kept_view import Shared
        from tailrace.spark_jobs.topics.records import Records

        session, groups = open_session(config), Groups(config.kafka)
        try:
            if config.warehouse is not None and "warehouse" in _targets_of(chosen):
                check_catalog(session, config.warehouse)
            records = Records(session, config.kafka)
            shared = Shared(config, session, records, cuts, views_topic, groups)
            with closing(shared.known), closing(records):
                yield shared
        finally:
            groups.close()
            # Without its JVM, a session cannot be stopped and need not be; the cause has been reported already.
            with suppress(Py4JError, OSError):
                session.stop()


def check_targets(config: Config, views: Collection[View]) -> None:
    """Raise ConfigError or SinkError if these views' warehouse or search engine cannot be reached or used."""
    for name in _targets_of(views):
        if TARGETS[name].configured(config):
            TARGETS[name].check(config)


def check_catalog(session: SparkSession, warehouse: Warehouse) -> None:
    """Check that the JVM can open the catalog and the file system of its tables, and has the drivers.

    ConfigError (TR-515) for a missing driver or an unusable file system, SinkError (TR-513) for an unusable catalog.
    """
    try:
        session.sql(f"SHOW NAMESPACES IN {quote(warehouse.catalog)}").limit(1).collect()
    except Exception as error:
        if is_jvm_gone(error):
            raise
        why = cause(error)
        if why.startswith(NO_DRIVER):
            kind = warehouse.uri.removeprefix("jdbc:").partition(":")[0]
            raise ConfigError(
                "TR-515",
                f"Spark has no driver for the catalog of the warehouse at {without_secrets(warehouse.uri)}",
                detail=f'Nothing on its class path takes "jdbc:{kind}:"; that for SQLite is built in.',
                hint='[spark.conf] "spark.driver.extraClassPath" = "/path/to/driver.jar"',
            ) from None
        raise catalog.unusable(warehouse, why) from None
    if warehouse.uri.startswith("http") or session.conf.get(f"spark.sql.catalog.{warehouse.catalog}.io-impl", None):
        return
    try:
        context = session.sparkContext
        assert context._jvm is not None
        hadoop = context._jvm.org.apache.hadoop.fs.Path(warehouse.location)
        hadoop.getFileSystem(context._jsc.hadoopConfiguration()).exists(hadoop)
    except Exception as error:
        if is_jvm_gone(error):
            raise
        raise ConfigError(
            "TR-515",
            f'Spark cannot use the location of the warehouse, "{without_secrets(warehouse.location)}"',
            detail=f"{cause(error).rstrip('.')}.",
            hint="Its file system needs jars and settings in [spark.conf], or another location.",
        ) from None


def _targets_of(views: Iterable[View]) -> list[str]:
    used = {name for view in views for name in targets_of(view)}
    return [name for name in TARGETS if name in used]


def stopping() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process at once.

    Within two seconds it is ignored: a signal to the process group arrives directly, and again from the parent.
    """
    event = threading.Event()
    first = 0.0

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal first
        if not event.is_set():
            first = time.monotonic()
            event.set()
        elif time.monotonic() - first > _SAME_SIGNAL_S:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return event
