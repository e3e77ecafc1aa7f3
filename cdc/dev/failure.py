"""Read the error that ended a program of `tailrace dev` from its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tailrace.schemas.errors import TailraceError

_FIELDS: Final = {"code", "event", "detail", "hint", "level", "timestamp"}


def last_failure(log: Path) -> TailraceError | None:
    """Return the error that `schemas.log_form.failure` wrote as a log's last line; None if there is none."""
    try:
        last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        found = json.loads(last)
    except (OSError, ValueError):
        return None
    # log events about single tables also have a code, but more than these fields
    if not isinstance(found, dict) or not {"code", "event"} <= found.keys() <= _FIELDS:
        return None
    return TailraceError(found["code"], found["event"], detail=found.get("detail", ""), hint=found.get("hint", ""))
