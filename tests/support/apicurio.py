"""A real schema registry for tests: Apicurio, with schemas in memory and Confluent's API."""

from __future__ import annotations

import http.client
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cdc.dev.process import Process, free_ports, spawn, tail, wait_until
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.launch import java
from tailrace.cdc.launch.jars import jars
from tailrace.cdc.launch.lock import locked

JAVA = range(21, 100)
_START_S = 120.0
_JVM = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def program() -> Path:
    """Return the folder with `quarkus-run.jar`; the first call fetches and unpacks it."""
    (archive,) = jars("apicurio")
    folder = archive.parent / "app"
    with locked(archive.parent / "unpack.lock"):
        if not folder.exists():
            unfinished = archive.parent / "app.new"
            shutil.rmtree(unfinished, ignore_errors=True)
            with tarfile.open(archive) as packed:
                packed.extractall(unfinished, filter="data")
            unfinished.rename(folder)
    return folder


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Yield the URL of a running, empty registry; it stops at the end of the block."""
    folder.mkdir(parents=True)
    executable = str(java.find_java("Apicurio", JAVA).executable)
    port, management = free_ports([None, None])
    listen = {"http": port, "management": management}
    options = [f"-Dquarkus.{on}.{key}" for on, at in listen.items() for key in ("host=127.0.0.1", f"port={at}")]
    command = [executable, *_JVM, *options, "-jar", str(program() / "quarkus-run.jar")]
    started: list[Server] = []

    def record(process: Process) -> None:
        started.append(Server("apicurio", process, folder / "apicurio.log", ports={"http": port}))

    try:
        process = spawn(command, log=folder / "apicurio.log", folder=folder, record=record)
        assert wait_until(lambda: _answers(port), process, _START_S), tail(folder / "apicurio.log")
        yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
    finally:
        for server in started:
            stop(server)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/apis/ccompat/v7/subjects")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
