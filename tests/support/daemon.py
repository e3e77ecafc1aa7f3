"""The daemon as a separate process, so that a test can kill it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import typer

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.position import Cut, PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import PositionTail
from tests.support.forked import Forked
from tests.support.topics import read_raw

ROOT = Path(__file__).parents[2]


AT_ONCE = "[delivery]\nstart_timeout_s = 0\n"
"""For a server that never answers: the start is tried once."""


def write_config(folder: Path, dsn: str, bootstrap: str, prefix: str, more: str = "", source: str = "") -> Path:
    """Write a tailrace.toml; the slot is named like the prefix, for slots belong to the whole server.

    `source` are further lines of its section, `more` further sections.
    """
    path = folder / "tailrace.toml"
    path.write_text(
        f'[source]\ndsn = "{dsn}"\nslot = "{prefix}"\ntoast_cache_dir = "{folder / "toast"}"\n{source}'
        f'[kafka]\nbootstrap = "{bootstrap}"\nprefix = "{prefix}"\npartitions = 3\n{more}'
    )
    return path


def tailrace(*arguments: str, cwd: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a tailrace command to its end; an error that a service logs is formatted as on a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = Forked(_command, list(arguments), stdout=stdout, stderr=stderr, cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, stdout.read_text(), as_on_terminal(stderr.read_text()))


def as_on_terminal(log: str) -> str:
    """Return a log with each failure in it as three lines."""
    return "\n".join(_in_three_lines(text) if '"code": "TR-' in text else text for text in log.split("\n"))


def _in_three_lines(text: str) -> str:
    found = json.loads(text)
    return str(TailraceError(found["code"], found["event"], detail=found.get("detail", ""), hint=found.get("hint", "")))


def _command(arguments: list[str]) -> None:
    from tailrace.cdc.cli.main import main

    sys.argv[1:] = arguments
    main()


def run_daemon(config: Path) -> None:
    """Run the daemon in this process, and end it with its exit code."""
    from tailrace.cdc.cli.run import run

    try:
        run(config)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)


class Daemon:
    """`tailrace run` with a config file; the log is written next to that file.

    If not `forked`, its memory and its command line are those of a program that was started directly.
    """

    def __init__(self, config: Path, *, forked: bool = True, program: Callable[[Path], None] = run_daemon) -> None:
        """`program` runs in the forked process, for a test that patches the daemon's code there."""
        self.log = config.parent / "run.log"
        self.process: Forked | subprocess.Popen[bytes]
        if forked:
            self.process = Forked(program, config, stdout=self.log, stderr=self.log)
            return
        with self.log.open("a") as log:
            code = "import sys, pathlib; from tests.support import daemon; daemon.run_daemon(pathlib.Path(sys.argv[1]))"
            command = [sys.executable, "-c", code, str(config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def kill(self) -> None:
        """Kill it as a power cut would."""
        self.process.kill()
        self.process.wait()

    @property
    def peak_bytes(self) -> int:
        """Its peak resident memory so far, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def stop(self) -> int:
        """Ask it to stop and return its exit code; it has 5 s."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(5)


@contextmanager
def running(config: Path, *, forked: bool = True, program: Callable[[Path], None] = run_daemon) -> Iterator[Daemon]:
    """Run the daemon for the block; it is killed afterwards in any case."""
    daemon = Daemon(config, forked=forked, program=program)
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


def wait_for_state(
    config: Config, connection: psycopg.Connection, seconds: float = 60, tables: Collection[str] | None = None
) -> Cut:
    """Return the first state, of all tables or of these, that has everything committed before this call.

    It is of a daemon that reads the slot now: the state that a stopped one has left is not enough.
    """
    row = connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')::text").fetchone()
    assert row is not None
    target = parse_lsn(row[0])
    # write something after the target, for an idle source is reported at intervals only
    connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")

    def state(record: PositionRecord) -> Cut | None:
        found = record.state if tables is None else record.state_for(tables)
        return found if found is not None and found.flushed_lsn >= target else None

    cut = state(wait_for(config, state, seconds))
    assert cut is not None
    return cut


def wait_for_cuts(
    config: Config, connection: psycopg.Connection, tables: Collection[str] | None = None
) -> list[PositionRecord]:
    """Wait for a state of all tables, or of these; return all cuts since this call with all that preceded it."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    target = parse_lsn(row[0])
    wait_for_state(config, connection, tables=tables)
    topics, key = Topics(config.kafka.prefix), position_key(config.source.slot)
    messages = [each for each in read_raw(config.kafka.bootstrap, topics.progress) if each.key() == key]
    records = [PositionRecord.from_json(message.value()) for message in messages]
    return [record for record in records if record.here.flushed_lsn >= target]


def first_state(config: Config, cuts: Iterable[PositionRecord], table: str) -> Cut:
    """Return the first of the cuts that is called a state of a table with a topic."""
    topic = f"{config.kafka.prefix}.{table}"
    states = (each for each in cuts if each.open is None and not each.waits_for([table]))
    return next(each.here for each in states if topic in each.here.offsets)


def wait_for(config: Config, condition: object, seconds: float = 60) -> PositionRecord:
    """Return the first position record that fulfils `condition`."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    with PositionTail(config.kafka, Topics(config.kafka.prefix), config.source.slot) as tail:
        record = None
        while time.monotonic() < deadline:
            try:
                record = tail.newest(0.05)
            except SinkError:
                # a busy broker takes longer to elect the leader of a new topic than readers wait for it
                if time.monotonic() > deadline:
                    raise
                continue
            if record is not None and condition(record):
                return record
    raise AssertionError(f"not within {seconds} s; the newest record is {record}")


def ask(daemon: Daemon, path: str) -> tuple[int, str]:
    """Return status and body of its HTTP answer; status 0 while it does not listen (yet)."""
    listening = events(daemon, "health server started")
    if not listening:
        return 0, ""
    try:
        with urllib.request.urlopen(listening[-1]["url"] + path, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def wait_until(condition: Callable[[], object], seconds: float = 30) -> float:
    """Return after how many seconds the condition held."""
    asked = began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now - began < seconds, f"not within {seconds} s"
        # The work that is waited for needs the processor more than the polling does.
        time.sleep(min(max(0.05, 3 * (now - asked)), 1.0))
        asked = time.monotonic()
    return time.monotonic() - began


def events(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the log's events of a name, of all runs with that configuration."""
    lines = daemon.log.read_text().splitlines()
    return [json.loads(line) for line in lines if f'"event": "{name}"' in line]


def do_as_the_hint_says(config: Path) -> None:
    """Expect a start with exit code 6; run the first line of its hint. The second is `tailrace run`."""
    failed = tailrace("run", "--config", str(config))
    assert failed.returncode == 6, failed.stderr
    lines = failed.stderr[failed.stderr.index("HINT") :].removeprefix("HINT").splitlines()
    command, run = (line.partition("#")[0].strip() for line in lines)
    assert run == "tailrace run"
    done = tailrace(*command.split()[1:], "--timeout", "0", cwd=config.parent)
    assert done.returncode == 0, done.stderr


def lose_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    """Write WAL beyond a small `max_slot_wal_keep_size` until the server invalidates the unread slot."""
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    while connection.execute(status, (slot,)).fetchone() != ("lost",):
        connection.execute("SELECT pg_logical_emit_message(true, 'other', ''), pg_switch_wal()")
        connection.execute("CHECKPOINT")
