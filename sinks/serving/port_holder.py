"""Find the process that listens on a local port, for error messages and logs."""

from __future__ import annotations


def holder_of(port: int) -> str | None:
    """Return the process that listens on a TCP port, None if not visible (another user's, or no psutil)."""
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid is not None:
                # the name only: a command line may contain a password
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    except psutil.Error:
        return None
    return None
