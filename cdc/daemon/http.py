"""HTTP server of the daemon: its address is taken at the start, and it answers once the start is done.

A request that comes earlier waits: the kernel accepts the connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from tailrace.cdc.health.health import Health
from tailrace.schemas.config.model import Config
from tailrace.sinks.serving.address import address_of, listen

_LATEST_S: Final = 1.0
"""Longest wait for the first commit. A probe of Kubernetes waits a second for its answer, and is repeated."""

_STOP_S: Final = 2.0

log = structlog.get_logger()


@contextmanager
def serving(config: Config, health: Health) -> Iterator[None]:
    """Serve on `health.listen` while the block runs. ConfigError TR-112 if the address is unavailable."""
    address = config.health.daemon_address
    if address is None:
        yield
        return
    taken = listen(address, log.warning)
    health.address = address_of(taken)
    log.info("health server started", url=f"http://{health.address}")
    ended = threading.Event()
    thread = threading.Thread(target=_serve, args=(taken, config, health, ended), name="http-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        health.committed_once.set()  # so that the thread does not wait for it
        thread.join(_STOP_S)


def _serve(taken: socket.socket, config: Config, health: Health, ended: threading.Event) -> None:
    """Serve from the first commit on until `ended`."""
    health.committed_once.wait(_LATEST_S)
    with taken:
        if ended.is_set():
            return
        # These libraries take as much CPU time as the rest of a start: the first change would wait for them.
        from tailrace.cdc.daemon.http_routes import answering

        with answering(taken, config, health):
            ended.wait()
