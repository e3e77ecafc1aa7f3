"""Address of a process' HTTP server: it listens before the server's libraries are loaded."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tailrace.schemas.config.listen import ListenAddress
from tailrace.schemas.errors import ConfigError
from tailrace.sinks.serving.port_holder import holder_of

_NEXT_PORTS: Final = 20
"""Number of ports tried after the default one, before any free port."""

Warn = Callable[..., object]
"""Writes a warning to the process' log: the event and its values."""


def address_of(taken: socket.socket) -> str:
    """Return host:port of a socket that listens."""
    host, port = taken.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def listen(address: ListenAddress, warn: Warn) -> socket.socket:
    """Listen on an address; ConfigError TR-112 if it is unavailable.

    If it is a default that is in use, another port is chosen, and `warn` logs it: only one of several processes on a
    host gets the default port.
    """
    host, port = address.host, address.port
    try:
        return _bound(host, port)
    except OSError as error:
        holder = holder_of(port) if error.errno == errno.EADDRINUSE else None
        if address.is_default:
            return _nearest(address, holder, warn)
        raise ConfigError(
            "TR-112",
            f'{address.setting}: cannot listen on "{address.text}"',
            detail=f"{error.strerror}{f', by {holder}' if holder else ''}.",
            hint=f'{address.key} = "{host}:{port + 1}"  # under [health]; port 0 picks a free port, "" turns it off',
        ) from None


def check_address(address: ListenAddress | None) -> None:
    """Raise ConfigError TR-112 if an address that the configuration names cannot be listened on."""
    if address is not None and not address.is_default:
        listen(address, lambda *_: None).close()


def _nearest(address: ListenAddress, holder: str | None, warn: Warn) -> socket.socket:
    """Bind the next free port and log it: the default port returns another process' metrics."""
    host, port = address.host, address.port
    for other in (*range(port + 1, port + 1 + _NEXT_PORTS), 0):
        with suppress(OSError):
            taken = _bound(host, other)
            warn(
                "default health port in use: another one chosen",
                usual=f"{host}:{port}",
                held_by=holder,
                used=f"{host}:{taken.getsockname()[1]}",
            )
            return taken
    raise ConfigError(
        "TR-112", f'{address.setting}: cannot listen on "{host}"', hint=f'{address.key} = ""  # under [health]'
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(64)
    except OSError:
        taken.close()
        raise
    return taken
