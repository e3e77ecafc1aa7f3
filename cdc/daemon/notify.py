"""Notify systemd (Type=notify): ready when changes flow, watchdog while the loop runs, stopping.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tailrace.cdc.health.health import Health
from tailrace.sinks.kafka.skip_offsets import Fill

_EVERY_S: Final = 1.0
_LONGER_US: Final = 60_000_000
"""Time that a start may take from now on, in microseconds, while it fills a topic; 90 s are systemd's default."""


@contextmanager
def notifying(health: Health, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Send `health` to the service manager while the block runs, if NOTIFY_SOCKET names its socket."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        yield
        return
    watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
    closed = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        # a service manager that does not read must not block the daemon
        supervisor.setblocking(False)
        # "@" marks an abstract socket
        supervisor.connect("\0" + address[1:] if address.startswith("@") else address)
        thread = threading.Thread(
            target=_tell, args=(supervisor, health, closed, watchdog_s), name="notify", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            closed.set()
            thread.join()
            _send(supervisor, "STOPPING=1")


def _tell(supervisor: socket.socket, health: Health, closed: threading.Event, watchdog_s: float) -> None:
    every_s = min(_EVERY_S, watchdog_s / 3) if watchdog_s else _EVERY_S
    said_ready = False
    fill: Fill | None = None
    while not closed.wait(every_s):
        if not said_ready and health.ready()[0]:
            said_ready = _send(supervisor, "READY=1")
        if not said_ready and health.fill not in (None, fill):
            fill = health.fill
            _send(supervisor, f"EXTEND_TIMEOUT_USEC={_LONGER_US}")
        if watchdog_s and health.live()[0]:
            _send(supervisor, "WATCHDOG=1")


def _send(supervisor: socket.socket, state: str) -> bool:
    try:
        supervisor.send(state.encode())
    except OSError:
        return False  # the service manager restarts or is busy: no reason to stop
    return True
