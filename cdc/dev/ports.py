"""Fixed ports of the embedded servers: `tailrace dev up --port-base N` gives them N and the next ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import psutil

from tailrace.cdc.dev.process import is_free
from tailrace.schemas.errors import ConfigError

_PORTS: Final = (
    ("postgres", "sql", "PostgreSQL"),
    ("kafka", "broker", "Kafka's broker"),
    ("kafka", "controller", "Kafka's controller"),
    ("opensearch", "http", "OpenSearch"),
    ("opensearch", "transport", "OpenSearch's transport"),
)
"""Server, name of the port in its record, and name in messages; the order is that of the numbers."""

HIGHEST_BASE: Final = 65536 - len(_PORTS)
_STEP: Final = 10

Fixed = Mapping[str, Mapping[str, int]]


def fixed_ports(base: int, servers: Collection[str]) -> Fixed:
    """Return the ports of these servers by their names; a server that is left out keeps its numbers free."""
    found: dict[str, dict[str, int]] = {}
    for number, (server, port, _) in enumerate(_PORTS, base):
        if server in servers:
            found.setdefault(server, {})[port] = number
    return found


def refuse_taken(base: int, servers: Collection[str], own: Collection[int]) -> None:
    """Raise ConfigError (TR-616) if another program has one of the ports; `own` are held by servers of ours."""
    for number, (server, _, shown) in enumerate(_PORTS, base):
        if server not in servers or number in own or is_free(number):
            continue
        other = _free_base(base, servers)
        holder = _listener(number)
        raise ConfigError(
            "TR-616",
            f"port {number} on 127.0.0.1 is taken: {shown} cannot use it",
            detail=f"{f'{holder} listens on it. ' if holder else ''}With `--port-base {base}`: {_listed(base)}.",
            hint=f"tailrace dev up --port-base {other}  # or end the other program: ss -ltnp 'sport = :{number}'",
        )


def _free_base(base: int, servers: Collection[str]) -> int:
    """Return the next base in steps of ten of which all ports are free; the last one tried if there is none."""
    found = base
    for found in range(base + _STEP, HIGHEST_BASE + 1, _STEP):
        if all(is_free(port) for ports in fixed_ports(found, servers).values() for port in ports.values()):
            return found
    return found


def _listener(port: int) -> str | None:
    """Return the process that listens on a port, None if this user may not know it."""
    try:
        found = psutil.net_connections("tcp")
        pids = [
            each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        ]
        return next((f"Process {pid} ({psutil.Process(pid).name()})" for pid in pids if pid), None)
    except psutil.Error:
        return None


def _listed(base: int) -> str:
    return ", ".join(f"{shown} {number}" for number, (_, _, shown) in enumerate(_PORTS, base))
