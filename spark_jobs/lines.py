"""What the jobs print on stderr, a JSON object a line, and one form for their errors."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import orjson

from schemas.errors import SinkError, TailraceError


def line(**values: Any) -> None:
    """Print one JSON line on stderr."""
    # in one piece: several views are kept at once
    print(f"{orjson.dumps(values).decode()}\n", end="", file=sys.stderr, flush=True)


def named(error: Exception) -> TailraceError:
    """Return our own error as it is; of any other only the kind, for its text may hold values of rows."""
    if isinstance(error, TailraceError):
        return error
    if os.environ.get("TAILRACE_TRACE"):
        traceback.print_exception(error)
    condition = getattr(error, "getCondition", lambda: None)()
    return SinkError(
        "TR-527",
        f"a Spark job failed with {type(error).__name__}" + (f" [{condition}]" if condition else ""),
        detail="The batch changed nothing that its cut does not say; it is tried again from there.",
        hint="Its full text may hold values of rows, so it is printed only with TAILRACE_TRACE=1 set.",
    )
