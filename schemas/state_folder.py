"""The folder of files that outlast a process: caches that cost time to make again."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path | None:
    """Return ``tailrace`` in $STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state; None without a home folder."""
    state = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "tailrace"
    except RuntimeError:
        return None
