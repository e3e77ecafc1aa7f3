"""The state folder of `tailrace dev`: which servers there are, started together, ended by process id.

One JSON file says all that is needed to find them again after we have gone, or were killed. `start_servers`
is safe to repeat: what runs is used, what has died is started on its old data and, if free, its old port.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tailrace.cdc.dev import kafka, opensearch, postgres
from tailrace.cdc.dev.process import Process, alive, spawn
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.launch import java
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError, TailraceError

STATE_FOLDER = Path(".tailrace")
_FILE = "servers.json"
_LOCK = "lock"
_EMBEDDED = ("postgres", "kafka", "opensearch")


@dataclass(frozen=True, slots=True)
class Servers:
    """How to reach what runs; `messages` say what was left out and why."""

    dsn: str
    socket_dsn: str
    bootstrap: str
    opensearch: str | None
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server of the state file, whether it runs, and its resident memory in bytes (children included)."""

    server: Server
    alive: bool
    memory: int


def start_servers(
    state_dir: Path = STATE_FOLDER,
    *,
    search: bool = True,
    kafka_properties: Mapping[str, str] | None = None,
    postgres_settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = java.SMALL,
) -> Servers:
    """Return when PostgreSQL, Kafka and (with a JDK for it) OpenSearch answer; they outlive this process.

    Settings that differ from those a server runs with restart it; None means those it last ran with.
    `java_options` are of the JVMs that are started now.
    """
    state_dir = state_dir.absolute()
    if state_dir.exists() and any(state_dir.iterdir()) and not _is_ours(state_dir):
        raise ConfigError(
            "TR-615",
            f"{state_dir} is no state folder",
            detail=f"It has files and no {_FILE}; `tailrace dev down --purge` would delete them.",
            hint="tailrace dev up --state-dir FOLDER  # one that is empty, or does not exist",
        )
    with locked(state_dir / _LOCK):
        # Nobody wants these files in a commit.
        (state_dir / ".gitignore").write_text("*\n", encoding="utf-8")
        state = _State(state_dir)
        # before anything else is in the folder, so that it can be purged wherever a start is cut short
        state.write()
        messages = []
        jobs: dict[str, Callable[[], Server]] = {
            "postgres": partial(
                postgres.start, state_dir / "postgres", state.get("postgres"), postgres_settings, state.record
            ),
            "kafka": partial(
                kafka.start, state_dir / "kafka", state.get("kafka"), kafka_properties, state.record, java_options
            ),
        }
        if search:
            try:
                java.find_java("OpenSearch", java.OPENSEARCH)
                jobs["opensearch"] = partial(
                    opensearch.start, state_dir / "opensearch", state.get("opensearch"), state.record, java_options
                )
            except ConfigError as missing:
                messages.append(f"search views are left out: {missing.message}. {missing.hint}")
        before = running(state_dir)
        try:
            with ThreadPoolExecutor(len(jobs)) as threads:
                futures = {name: threads.submit(job) for name, job in jobs.items()}
            started = {name: future.result() for name, future in futures.items()}
        except BaseException:
            # also Ctrl-C: the threads of the others would go on waiting for their servers
            state.refuse_more()
            _end([server for server in state.servers.values() if server.process not in before])
            raise
    return Servers(
        postgres.dsn(started["postgres"]),
        postgres.socket_dsn(started["postgres"]),
        kafka.bootstrap(started["kafka"]),
        opensearch.url(started["opensearch"]) if "opensearch" in started else None,
        tuple(messages),
    )


def start_program(state_dir: Path, name: str, command: Sequence[str]) -> Server:
    """Start a program of ours (the daemon, the demo load) that `stop_servers` ends before the servers.

    One that runs under that name with the same command is left alone; with another command it is replaced.
    """
    state_dir = state_dir.absolute()
    with locked(state_dir / _LOCK):
        state = _State(state_dir)
        old, settings = state.get(name), {"command": json.dumps(list(command))}
        if old and alive(old.process):
            if dict(old.settings) == settings:
                return old
            stop(old)
        log = state_dir / f"{name}.log"

        def server(process: Process) -> Server:
            return Server(name, process, log, settings=settings)

        # Where the person is, not in the state folder: the command line may have relative paths.
        return server(spawn(command, log=log, folder=Path.cwd(), record=lambda process: state.record(server(process))))


def running(state_dir: Path) -> set[Process]:
    """Return the processes of the state file that run."""
    return {each.server.process for each in status(state_dir) if each.alive}


@contextmanager
def ended_on_failure(
    state_dir: Path, say: Callable[[str], None], but_for: Collection[str] = ()
) -> Iterator[None]:
    """End what the block has started if it fails, or is interrupted, and say so; what ran before goes on running.

    Errors with a code of `but_for` end nothing.
    """
    before = running(state_dir)
    try:
        yield
    except BaseException as error:
        if isinstance(error, TailraceError) and error.code in but_for:
            raise
        started = [each.server.name for each in status(state_dir) if each.server.process not in before]
        ended = stop_servers(state_dir, keep=before)
        if started:
            say(f"ended what was started: {', '.join(ended or started)}; data and logs stay in {state_dir}")
        raise


def stop_servers(
    state_dir: Path = STATE_FOLDER, purge: bool = False, keep: Collection[Process] = frozenset()
) -> list[str]:
    """End every process of the state file but those of `keep`, programs first; return the names of those that ran.

    With `purge` the folder goes, too: all data. A folder without a state file is not ours and is refused.
    """
    state_dir = state_dir.absolute()
    if not state_dir.exists():
        return []
    if not _is_ours(state_dir):
        if not purge:
            return []
        raise ConfigError("TR-615", f"{state_dir} is no state folder", detail=f"It has no {_FILE}; left as it is.")
    with locked(state_dir / _LOCK):
        servers = _State(state_dir).servers
        ended = _end([server for server in servers.values() if server.process not in keep])
        if purge:
            for server in servers.values():
                # The socket folder is elsewhere when the path of ours is too long for a socket.
                if server.socket and not server.socket.is_relative_to(state_dir):
                    shutil.rmtree(server.socket, ignore_errors=True)
            shutil.rmtree(state_dir)
    return ended


def _is_ours(state_dir: Path) -> bool:
    """Whether a folder has a state file, or nothing but the lock of a start that was cut short before it wrote one."""
    found = {each.name for each in state_dir.iterdir()}
    return _FILE in found or (_LOCK in found and found <= {_LOCK, ".gitignore", f"{_FILE.partition('.')[0]}.new"})


def _end(servers: Sequence[Server]) -> list[str]:
    """End those that run, programs before the servers that they use; return their names."""
    ran = [server for server in servers if alive(server.process)]
    for group in (
        [server for server in ran if server.name not in _EMBEDDED],
        [server for server in ran if server.name in _EMBEDDED],
    ):
        with ThreadPoolExecutor(max(len(group), 1)) as threads:
            list(threads.map(stop, group))
    return [server.name for server in ran]


def status(state_dir: Path = STATE_FOLDER) -> list[ServerStatus]:
    """Return every server of the state file, running or not; takes no lock and changes nothing."""
    servers = _State(state_dir.absolute()).servers.values()
    return [ServerStatus(server, alive(server.process), _memory(server)) for server in servers]


class _State:
    """The state file: read once, written whole and at once whenever a server is recorded (from threads)."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FILE
        self._writing = threading.Lock()
        self._refused = False
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            self.servers = {name: Server.from_json(name, each) for name, each in kept["servers"].items()}
        except FileNotFoundError:
            self.servers = {}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "TR-609",
                f"the state file {self._path} is damaged",
                detail=str(error),
                hint="End the servers by hand, then remove the folder.",
            ) from error

    def get(self, name: str) -> Server | None:
        return self.servers.get(name)

    def refuse_more(self) -> None:
        """Let no server start that is not written down yet."""
        with self._writing:
            self._refused = True

    def record(self, server: Server) -> None:
        with self._writing:
            if self._refused:
                raise ConfigError("TR-608", f"{server.name} was not started: the start was given up")
            self.servers[server.name] = server
            self._write()

    def write(self) -> None:
        """Write the file as it is."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".new")
        kept = {"servers": {name: each.to_json() for name, each in self.servers.items()}}
        unfinished.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        unfinished.replace(self._path)


def _memory(server: Server) -> int:
    if not alive(server.process):
        return 0
    try:
        root = psutil.Process(server.process.pid)
        return sum(each.memory_info().rss for each in [root, *root.children(recursive=True)])
    except psutil.Error:
        return 0
