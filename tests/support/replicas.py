"""A primary and its physical standby, which synchronizes failover slots on request."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tailrace.cdc.dev import postgres, unprivileged
from tailrace.cdc.dev.server import Server, stop
from tests.support.postgres_versions import OLDER, install

DATABASE = "app"
_SLOT = "standby"


@dataclass
class Replicas:
    """Two servers, of which `standby` follows `primary` until it is promoted."""

    primary: Server
    standby: Server
    folder: Path
    bin_folder: Path | None
    _started: list[Server]

    @property
    def dsn(self) -> str:
        """The DSN of the server that accepts writes."""
        ports = [server.ports["sql"] for server in (self.primary, self.standby)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def wait_replayed(self) -> None:
        """Wait until the standby has replayed all that the primary has written."""
        with psycopg.connect(postgres.dsn(self.primary)) as primary:
            row = primary.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        self._wait(f"SELECT WHERE pg_last_wal_replay_lsn() >= '{row[0]}'")

    def sync(self, slot: str) -> None:
        """Make the standby synchronize the slot; return when it is usable after a promotion.

        The daemon must run. Synchronization needs a snapshot of running transactions that was logged since, and
        confirmed, and a new worker: one that has found nothing looks only every 30 s.
        """
        with psycopg.connect(postgres.dsn(self.standby), autocommit=True) as standby:
            standby.execute("ALTER SYSTEM SET sync_replication_slots = on")
            standby.execute("SELECT pg_reload_conf()")
        synced = f"SELECT FROM pg_replication_slots WHERE slot_name = '{slot}' AND synced AND NOT temporary"
        self._wait(synced, "SELECT pg_log_standby_snapshot(), pg_logical_emit_message(true, 'test', 'x', true)")

    def _wait(self, query: str, meanwhile: str = "SELECT") -> None:
        deadline = time.monotonic() + 90
        with (
            psycopg.connect(postgres.dsn(self.standby), autocommit=True) as standby,
            psycopg.connect(postgres.dsn(self.primary, DATABASE), autocommit=True) as primary,
        ):
            while not standby.execute(query.encode()).rowcount:
                assert time.monotonic() < deadline, query
                primary.execute(meanwhile.encode())
                time.sleep(0.1)

    def kill_primary(self) -> None:
        os.kill(self.primary.process.pid, signal.SIGKILL)

    def stop_standby(self) -> None:
        stop(self.standby)

    def start_standby(self) -> None:
        self.standby = self._start("standby", self.standby)

    def start_primary(self) -> None:
        """Start a killed primary again, with its old role."""
        self.primary = self._start("primary", self.primary)

    def _start(self, name: str, old: Server) -> Server:
        return postgres.start(self.folder / name, old, None, self._started.append, self.bin_folder)

    def promote(self) -> None:
        with psycopg.connect(postgres.dsn(self.standby), autocommit=True) as standby:
            assert standby.execute("SELECT pg_promote()").fetchone() == (True,)


@contextmanager
def replicas(major: int = 18, primary_settings: dict[str, str] | None = None) -> Iterator[Replicas]:
    """Start primary and standby, with an empty database."""
    started: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-replicas-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        bin_folder = install(major, folder) if major in OLDER else None
        try:
            settings = {"fsync": "off", **(primary_settings or {})}
            primary = postgres.start(folder / "primary", None, settings, started.append, bin_folder)
            postgres.create_database(postgres.dsn(primary), DATABASE)
            _base_backup(primary, folder / "standby" / "data")
            settings = {
                "fsync": "off",
                "hot_standby_feedback": "on",
                # not pg_basebackup -R, which writes options that older versions do not know
                "primary_conninfo": f"host=127.0.0.1 port={primary.ports['sql']} user=postgres dbname={DATABASE}",
                "primary_slot_name": _SLOT,
            }
            standby = postgres.start(folder / "standby", None, settings, started.append, bin_folder)
            yield Replicas(primary, standby, folder, bin_folder, started)
        finally:
            for server in started:
                stop(server)


def _base_backup(primary: Server, data: Path) -> None:
    """Copy the primary to the data folder of a standby, and create a physical slot for it."""
    uid = unprivileged.NOBODY
    unprivileged.own(data.parent, uid)
    unprivileged.own(data, uid)
    data.chmod(0o700)
    done = subprocess.run(
        [*unprivileged.prefix(uid), str(postgres.binaries() / "pg_basebackup"), "-d",
         postgres.dsn(primary, DATABASE), "-D", str(data), "-C", "-S", _SLOT, "-c", "fast", "--no-sync"],
        cwd=data,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (data / "standby.signal").touch()
