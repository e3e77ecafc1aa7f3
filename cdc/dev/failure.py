"""The error that ended a program of `tailrace dev`, out of its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tailrace.schemas.errors import TailraceError

_FIELDS: Final = {"code", "event", "detail", "hint", "level", "timestamp"}


def last_failure(log: Path) -> TailraceError | None:
    """Return the error that `schemas.log_form.failure` wrote as the last line of a log; None if it ends otherwise."""
    try:
        last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        found = json.loads(last)
    except (OSError, ValueError):
        return None
    # records of single tables have a code, too, and more than these fields
    if not isinstance(found, dict) or not {"code", "event"} <= found.keys() <= _FIELDS:
        return None
    return TailraceError(found["code"], found["event"], detail=found.get("detail", ""), hint=found.get("hint", ""))
