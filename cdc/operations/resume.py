"""`tailrace views resume`: retry a view at once that `follow` has parked, and report the result."""

from __future__ import annotations

import time
from typing import Final

from tailrace.cdc.operations.views import named
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import DeadlineError, StateError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewsTail
from tailrace.sinks.target.lease import view_lease

_LOOK_S: Final = 0.2


def resume(config: Config, view: str, timeout_s: float) -> int:
    """Return the view's LSN once it has resumed, or at once if it has no error.

    Run it on the host of `follow`. Raises StateError (TR-576) if it fails again or was never created, DeadlineError
    (TR-577) if no process has retried it in time.
    """
    named(config, [view])
    deadline = time.monotonic() + timeout_s
    with ViewsTail(config.kafka, Topics(config.kafka.prefix)) as tail:
        before = tail.newest().get(view)
        if before is not None and before.error is None and before.cut is not None:
            return before.cut.flushed_lsn
        with view_lease(config, view).held(timeout_s):
            # `follow` retries a parked view when it notices that another process has held its lease.
            pass
        while (now := tail.newest(_LOOK_S).get(view)) is before:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    "TR-577",
                    f'no process has tried view "{view}" within {timeout_s:g} s',
                    detail="The process on this host that follows the view tries it.",
                    hint="tailrace views follow",
                )
    if now is None or now.cut is None or now.error is not None:
        said = (now.error or "" if now else "").replace("\n", "\n       ")
        raise StateError(
            "TR-576",
            f'view "{view}" has failed again',
            detail=said,
            hint="Do what the error says; the view is retried every few minutes, or by this command.",
        )
    return now.cut.flushed_lsn
