"""`tailrace dev up`: start servers and programs in order, then wait until the views have caught up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tailrace.cdc.dev.configuration import demo_configuration
from tailrace.cdc.dev.failure import last_failure
from tailrace.cdc.dev.first_view import FirstView
from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.process import alive, tail
from tailrace.cdc.dev.shop import create_shop
from tailrace.cdc.dev.state import Servers, start_program, start_servers, status
from tailrace.cdc.operations.progress import OnProgress, no_display
from tailrace.cdc.operations.verify_result import Result
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.opensearch.target import alias_of

DATABASE: Final = "shop"
PROGRAMS: Final = ("daemon", "views", "load")
_PATIENCE: Final = 600.0
"""Timeout in seconds; the first start of a view loads Spark and reads every topic from its beginning."""

NOT_CAUGHT_UP: Final = "TR-610"
"""Error code of a slow start: nothing has failed, so nothing is ended."""

Say = Callable[[str], None]


def bring_up(
    state_dir: Path,
    *,
    search: bool,
    rate: float,
    say: Say,
    on_progress: OnProgress = no_display,
    port_base: int | None = None,
) -> tuple[Path, Servers]:
    """Start all parts that do not run; return the configuration file and the servers with the shop's DSNs.

    `port_base`: see `start_servers`.
    """
    began = time.monotonic()
    say("starting PostgreSQL, Kafka" + (" and OpenSearch" if search else ""))
    servers = start_servers(state_dir, search=search, on_progress=on_progress, port_base=port_base, more_jars=["spark"])
    for message in servers.messages:
        say(message)
    servers = Servers(
        create_database(servers.dsn, DATABASE),
        create_database(servers.socket_dsn, DATABASE),
        servers.bootstrap,
        servers.opensearch,
        servers.messages,
    )
    rows = create_shop(servers.dsn)
    say(f"servers are running, the shop has {sum(rows.values()):,} rows ({time.monotonic() - began:.1f} s)")
    file, written = demo_configuration(servers, state_dir, Path.cwd())
    say(written)
    tailrace = [sys.executable, "-m", "tailrace.cdc.cli.main"]
    start_program(state_dir, "daemon", [*tailrace, "run", "--config", str(file)])
    start_program(state_dir, "views", [*tailrace, "views", "follow", "--config", str(file)])
    if rate > 0:
        demo = [sys.executable, "-m", "tailrace.cdc.dev.demo"]
        start_program(state_dir, "load", [*demo, "load", "--dsn", servers.dsn, "--rate", str(rate)])
    return file, servers


def wait_for_views(
    file: Path,
    servers: Servers,
    state_dir: Path,
    say: Say,
    note: Say,
    on_progress: OnProgress = no_display,
    patience: float = _PATIENCE,
) -> Result | None:
    """Return when every view has all changes present in the source at the call; also how the first one compares.

    That is None if there was nothing to compare or the comparison was not possible. `say` reports what is waited for,
    `note` the comparison. Errors name the program that has ended or the views that lag.
    """
    from tailrace.cdc.operations.read_status import wal_lsn
    from tailrace.cdc.postgres.connect import connect

    config = load(file)
    with connect(servers.dsn) as connection:
        target = wal_lsn(connection)
    deadline = time.monotonic() + patience
    said, first, compared = "", FirstView(config, patience), False
    while True:
        _check_programs(state_dir)
        done = first.done
        if done and not compared and (found := first.text()) is not None:
            note(found)
        compared = done
        applied = _applied(config)
        behind = [name for name in config.views if (applied.get(name) or 0) < target]
        if not behind and done:
            return first.result
        waiting = f"views that have not caught up yet: {', '.join(behind)}" if behind else "comparing the first view"
        if waiting != said:
            say(waiting)
            said = waiting
        on_progress(waiting, len(config.views) - len(behind), len(config.views))
        if time.monotonic() > deadline:
            raise SinkError(
                NOT_CAUGHT_UP,
                f"views not caught up within {patience:.0f} s: {', '.join(behind)}",
                detail=f"The daemon's and the views' logs are in {state_dir}.",
                hint="tailrace status  # everything continues to run; `tailrace dev up` waits again",
            )
        time.sleep(0.5)


def where_to_look(file: Path) -> list[str]:
    """Return lines to paste that show what runs: the status page, a search, a query of a table."""
    config = load(file)
    record = stored_reads(config).daemon if config.health.page else None
    lines = [f"http://{record.address}/  # the status page"] if record is not None and record.address else []
    if config.search is not None and "order_documents" in config.views:
        index = alias_of(config.search, "order_documents")
        lines.append(f"curl '{config.search.hosts[0]}/{index}/_search?q=customer:Chlo%C3%A9&size=1&pretty'")
    if "spending" in config.views:
        query = "SELECT country, sum(total) FROM v GROUP BY 1 ORDER BY 2 DESC LIMIT 3"
        opened = f"tailrace.table('spending', config='{file}').scan.to_duckdb('v')"
        lines.append(f"""{sys.executable} -c "import tailrace; print({opened}.sql('{query}'))"  # pip install duckdb""")
    return lines


def _applied(config: Config) -> dict[str, int]:
    """Return the LSN of each view that has one; empty while Kafka's views topic cannot be read."""
    try:
        records = read_views(config.kafka, Topics(config.kafka.prefix))
    except SinkError:
        return {}
    return {name: record.cut.flushed_lsn for name, record in records.items() if record.cut is not None}


def _check_programs(state_dir: Path) -> None:
    for each in status(state_dir):
        if each.server.name in PROGRAMS[:2] and not alive(each.server.process):
            raise died(each.server.name, each.server.log)


def died(name: str, log: Path) -> TailraceError:
    """Return the error for a program that has ended; its own last error is the cause and gives the hint."""
    cause = last_failure(log)
    hints = [cause.hint] if cause is not None and cause.hint else []
    return SinkError(
        "TR-611",
        f"{'the daemon' if name == 'daemon' else 'the views job'} has ended",
        detail=tail(log) if cause is None else f"{cause.code} {cause.message}. {cause.detail}".rstrip(),
        hint="\n       ".join([*hints, f"Full log: {log}"]),
    )
