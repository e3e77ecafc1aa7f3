"""The state folder of `tailrace dev`: its servers are started together and ended by process id.

One JSON file has all data that is needed to find them again after this process has ended or was killed. `start_servers`
is safe to repeat: running servers are reused, dead ones are started with their old data and, if free, their old ports.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from tailrace.cdc.dev import kafka, opensearch, postgres
from tailrace.cdc.dev.ports import Fixed, fixed_ports, refuse_taken
from tailrace.cdc.dev.process import Process, alive, spawn
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.launch import java
from tailrace.cdc.launch.jar_sets import JAR_SETS
from tailrace.cdc.launch.jars import jars
from tailrace.cdc.launch.lock import locked
from tailrace.cdc.operations.progress import OnProgress, no_display
from tailrace.schemas.errors import ConfigError, TailraceError

STATE_FOLDER = Path(".tailrace")
T = TypeVar("T")
_FILE = "servers.json"
_LOCK = "lock"
_EMBEDDED = ("postgres", "kafka", "opensearch")


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses of the running servers; `messages` name the parts left out, with the reason."""

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
    on_progress: OnProgress = no_display,
    port_base: int | None = None,
    more_jars: Sequence[str] = (),
) -> Servers:
    """Start PostgreSQL, Kafka and (with a JDK for it) OpenSearch; return when they answer.

    They outlive this process. A server whose settings differ from the requested ones is restarted; None means the
    settings of the last run. `java_options` are for the JVMs that are started now. With `port_base`, the ports are
    fixed (`cdc.dev.ports`), and if they differ from those of running servers, everything is restarted. Jars that are
    missing are fetched meanwhile, also the sets `more_jars`; a server starts as soon as its own are there. Raises
    ConfigError TR-615 if `state_dir` has foreign files, TR-616 if another program has one of these ports.
    """
    state_dir = state_dir.absolute()
    if state_dir.exists() and any(state_dir.iterdir()) and not _is_ours(state_dir):
        raise ConfigError(
            "TR-615",
            f'"{state_dir}" is not a state folder',
            detail=f"It has files but no {_FILE}; `tailrace dev down --purge` would delete them.",
            hint="tailrace dev up --state-dir FOLDER  # a folder that is empty or does not exist",
        )
    with locked(state_dir / _LOCK):
        # These files do not belong in a commit.
        (state_dir / ".gitignore").write_text("*\n", encoding="utf-8")
        state = _State(state_dir)
        # before other files are in the folder, so that it can be purged after an interrupted start
        state.write()
        messages = []
        if search:
            try:
                java.find_java("OpenSearch", java.OPENSEARCH)
            except ConfigError as missing:
                messages.append(f"search views are left out: {missing.message}. {missing.hint}")
                search = False
        ports = _fixed_ports(state, port_base, _EMBEDDED if search else _EMBEDDED[:2])
        folders = {name: state_dir / name for name in _EMBEDDED}
        jobs: dict[str, Callable[[], Server]] = {
            "postgres": partial(
                postgres.start,
                folders["postgres"],
                state.get("postgres"),
                postgres_settings,
                state.record,
                ports=ports.get("postgres"),
            ),
            "kafka": partial(
                kafka.start,
                folders["kafka"],
                state.get("kafka"),
                kafka_properties,
                state.record,
                java_options,
                ports.get("kafka"),
            ),
        }
        if search:
            jobs["opensearch"] = partial(
                opensearch.start,
                folders["opensearch"],
                state.get("opensearch"),
                state.record,
                java_options,
                ports.get("opensearch"),
            )
        sets = [name for name in (*jobs, *more_jars) if name in JAR_SETS]
        before = running(state_dir)
        # a single thread fetches: the sets share Ivy's cache, which does not support two writers
        with ThreadPoolExecutor(1) as fetching, ThreadPoolExecutor(len(jobs)) as threads:
            try:
                fetched: dict[str, Future[list[Path]]] = {}
                last = None
                for name in sets:
                    last = fetched[name] = fetching.submit(_behind, last, partial(jars, name, on_progress))
                futures = {name: threads.submit(_behind, fetched.get(name), job) for name, job in jobs.items()}
                for done, _ in enumerate(as_completed(futures.values()), start=1):
                    on_progress("starting servers", done, len(jobs))
                started = {name: future.result() for name, future in futures.items()}
                for fetch in fetched.values():
                    fetch.result()
            except BaseException:
                # also on Ctrl-C: the threads of the other servers would continue to wait for them
                fetching.shutdown(wait=False, cancel_futures=True)
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


def _behind(fetch: Future[list[Path]] | None, do: Callable[[], T]) -> T:
    """Return what `do` returns, once a fetch, if there is one, is done; raise its error, such as a missing network."""
    if fetch is not None:
        fetch.result()
    return do()


def _fixed_ports(state: _State, base: int | None, servers: Collection[str]) -> Fixed:
    """Return the fixed ports by server, none without a base; end everything if running servers have others."""
    if base is None:
        return {}
    ports = fixed_ports(base, servers)
    running = [server for server in state.servers.values() if alive(server.process)]
    refuse_taken(base, servers, own={port for server in running for port in server.ports.values()})
    # the programs have the old addresses
    if any(dict(server.ports) != ports[server.name] for server in running if server.name in ports):
        _end(running)
    return ports


def start_program(state_dir: Path, name: str, command: Sequence[str]) -> Server:
    """Start a program of ours (the daemon, the demo load) that `stop_servers` ends before the servers.

    If a program with that name already runs with the same command, it is reused; with another command, it is replaced.
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

        # In the user's working directory, not in the state folder: the command line may have relative paths.
        return server(spawn(command, log=log, folder=Path.cwd(), record=lambda process: state.record(server(process))))


def running(state_dir: Path) -> set[Process]:
    """Return the running processes of the state file."""
    return {each.server.process for each in status(state_dir) if each.alive}


@contextmanager
def ended_on_failure(state_dir: Path, say: Callable[[str], None], but_for: Collection[str] = ()) -> Iterator[None]:
    """End the processes that the block has started if it fails or is interrupted, and report it.

    Processes that ran before continue. Errors with a code in `but_for` end nothing.
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
            say(f"stopped again: {', '.join(ended or started)}; data and logs remain in {state_dir}")
        raise


def stop_servers(
    state_dir: Path = STATE_FOLDER, purge: bool = False, keep: Collection[Process] = frozenset()
) -> list[str]:
    """End all processes of the state file except `keep`, programs first; return the ended ones' names.

    With `purge`, the folder is deleted with all data; ConfigError TR-615 if it has no state file and so is not ours.
    """
    state_dir = state_dir.absolute()
    if not state_dir.exists():
        return []
    if not _is_ours(state_dir):
        if not purge:
            return []
        raise ConfigError("TR-615", f'"{state_dir}" is not a state folder', detail=f"It has no {_FILE}; unchanged.")
    with locked(state_dir / _LOCK):
        servers = _State(state_dir).servers
        ended = _end([server for server in servers.values() if server.process not in keep])
        if purge:
            for server in servers.values():
                # The socket folder is elsewhere if the state folder's path is too long for a socket.
                if server.socket and not server.socket.is_relative_to(state_dir):
                    shutil.rmtree(server.socket, ignore_errors=True)
            shutil.rmtree(state_dir)
    return ended


def _is_ours(state_dir: Path) -> bool:
    """Whether a folder has a state file, or only the files of a start interrupted before it wrote one."""
    found = {each.name for each in state_dir.iterdir()}
    return _FILE in found or (_LOCK in found and found <= {_LOCK, ".gitignore", f"{_FILE.partition('.')[0]}.new"})


def _end(servers: Sequence[Server]) -> list[str]:
    """End the running ones of `servers`, programs before the servers that they use; return their names."""
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
    """The state file: read once, replaced atomically whenever a server is recorded (from threads)."""

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
                hint="Stop the servers by hand, then remove the folder.",
            ) from error

    def get(self, name: str) -> Server | None:
        return self.servers.get(name)

    def refuse_more(self) -> None:
        """Prevent the start of servers that are not recorded yet."""
        with self._writing:
            self._refused = True

    def record(self, server: Server) -> None:
        with self._writing:
            if self._refused:
                raise ConfigError("TR-608", f"{server.name} was not started: the start was cancelled")
            self.servers[server.name] = server
            self._write()

    def write(self) -> None:
        """Write the present state to the file."""
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
