"""Consecutive free ports on loopback, for servers with fixed ports."""

from __future__ import annotations

from tailrace.cdc.dev.process import free_ports, is_free


def free_base(count: int = 5) -> int:
    """Return a port that is free like the ones after it, `count` in all."""
    while True:
        (base,) = free_ports([None], range(20000, 32000))
        if all(is_free(port) for port in range(base, base + count)):
            return base
