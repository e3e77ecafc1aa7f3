"""Who listens on a port of this machine, for an error that says so."""

from __future__ import annotations


def holder_of(port: int) -> str | None:
    """Return the process that listens on a TCP port, None if it is not to be seen (another user's, or no psutil)."""
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid is not None:
                # its name only: a command line may hold a password
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    except psutil.Error:
        return None
    return None
