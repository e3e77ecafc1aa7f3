"""PostgreSQL that can be killed, paused and restarted; and a primary with a standby to promote."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg

from tailrace.cdc.dev import postgres, unprivileged
from tailrace.cdc.dev.process import alive, end
from tailrace.cdc.dev.server import Server

_SYNCHRONIZED_S = 40
SETTINGS = {
    "fsync": "off",  # only processes die here, never the machine
    "logical_decoding_work_mem": "64kB",  # with source.streaming, many transactions arrive in progress
    "max_replication_slots": "30",
    "max_wal_senders": "30",
    "wal_receiver_status_interval": "1s",
    "restart_after_crash": "off",
}


class Postgres:
    """One PostgreSQL server."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._settings = SETTINGS | (settings or {})
        self._server: Server | None = None
        self.start()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def port(self) -> int:
        return self.server.ports["sql"]

    def start(self, settings: dict[str, str] | None = None) -> None:
        """Start it unless it runs; return when it answers."""
        self._settings |= settings or {}
        self._server = postgres.start(self.folder, self._server, self._settings, lambda server: None)

    def restart(self) -> None:
        """Restart it after a fast shutdown, as the PostgreSQL manual calls it."""
        end(self.server.process, politely=signal.SIGINT)
        self.start()

    def kill(self) -> None:
        """Kill all its processes at once."""
        for process in self._processes():
            _signal(process, signal.SIGKILL)
        end(self.server.process, politely=signal.SIGKILL)

    def pause(self) -> None:
        for process in self._processes():
            _signal(process, signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._processes():
            _signal(process, signal.SIGCONT)

    def stop(self) -> None:
        if alive(self.server.process):
            self.resume()
            end(self.server.process, politely=signal.SIGINT)

    def _processes(self) -> list[psutil.Process]:
        try:
            postmaster = psutil.Process(self.server.process.pid)
            return [postmaster, *postmaster.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


class Pair:
    """A primary and a physical standby that synchronizes its failover slots; `dsn` leads to the primary."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        os.chmod(folder, 0o755)
        self.primary = Postgres(folder / "primary")
        self.standby = self._follow(folder / "standby")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._log_snapshots, name="standby-snapshots")
        self._thread.start()

    def _log_snapshots(self) -> None:
        """Log the running transactions often; the server alone does so every 15 s.

        Until a slot has decoded such a record, it needs catalog rows that the standby no longer has, and is not
        synchronized; and the standby retries less and less often.
        """
        try:
            with psycopg.connect(postgres.dsn(self.primary.server), autocommit=True) as connection:
                while not self._stop.wait(0.2):
                    connection.execute("SELECT pg_log_standby_snapshot()")
        except psycopg.OperationalError:
            return  # the primary has been killed

    def _follow(self, target: Path) -> Postgres:
        with psycopg.connect(postgres.dsn(self.primary.server), autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        uid = self.primary.server.data.stat().st_uid if self.primary.server.data else 0
        unprivileged.own(target, uid)
        subprocess.run(
            [
                *unprivileged.prefix(uid),
                str(postgres.binaries() / "pg_basebackup"),
                "--pgdata",
                str(target / "data"),
                "--dbname",
                postgres.dsn(self.primary.server),
                "--checkpoint=fast",
                "--write-recovery-conf",  # includes the database's name, which the slot synchronization needs
                "--slot=standby",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=target.parent,
        )
        standby = Postgres(target, {"hot_standby_feedback": "on", "sync_replication_slots": "on"})
        with psycopg.connect(postgres.dsn(self.primary.server), autocommit=True) as connection:
            # the daemon receives only changes that the standby has
            connection.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
            # the standby has every acknowledged commit
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        return standby

    def dsn(self, database: str) -> str:
        """Return a DSN of both servers; a client uses the one that is writable."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (self.primary, self.standby))
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=2"

    def fail_over(self, slot: str) -> None:
        """Kill the primary and promote the standby, as soon as it can serve the slot."""
        if not come_true(lambda: self._synchronized(slot), _SYNCHRONIZED_S):
            raise AssertionError(f"slot {slot} was not synchronized to the standby")
        self.primary.kill()
        with psycopg.connect(postgres.dsn(self.standby.server), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 30)")

    def _synchronized(self, slot: str) -> bool:
        with psycopg.connect(postgres.dsn(self.standby.server), autocommit=True) as connection:
            row = connection.execute(
                "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (slot,),
            ).fetchone()
        return row == (True,)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for each in (self.primary, self.standby):
            each.stop()


def come_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait up to `seconds` for `condition`; return whether it came true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
