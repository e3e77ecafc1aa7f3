"""The registry of error codes: meaning, retry rule and remedy of each code.

Use `code` to look one up. Those of 900 are findings of `tailrace check`, which no error reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tailrace.schemas.error_codes import (
    checks,
    command_line,
    configuration,
    dev,
    kafka,
    queries,
    source,
    state,
    verification,
    views,
)
from tailrace.schemas.error_codes.entry import ErrorCode, Retry

__all__ = ["CODES", "ErrorCode", "Retry", "code", "is_refilled", "parks_table", "retry_of"]

_MODULES: Final = (command_line, configuration, source, kafka, state, views, queries, dev, verification, checks)


def _by_id() -> dict[str, ErrorCode]:
    entries = [entry for module in _MODULES for entry in module.CODES]
    found = {entry.id: entry for entry in sorted(entries, key=lambda entry: entry.id)}
    assert len(found) == len(entries), "two entries have the same id"
    return found


CODES: Final[Mapping[str, ErrorCode]] = MappingProxyType(_by_id())
"""All codes by id, sorted by id."""


def code(code_id: str) -> ErrorCode:
    """Return the entry of a code such as "TR-204". KeyError if there is none."""
    return CODES[code_id]


def retry_of(code_id: str) -> Retry:
    """Return the retry rule of a code; an unknown one is never retried, so that its error is seen."""
    entry = CODES.get(code_id)
    return entry.retry if entry is not None else Retry.NEVER


def parks_table(code_id: str) -> bool:
    """Return whether an error is about one table, so that the others can continue without it."""
    entry = CODES.get(code_id)
    return entry is not None and entry.parks_table


REFILL: Final = (
    "tailrace snapshot start --all --reconcile  # new slot; reads all tables again, deletes rows that no longer exist\n"
    "       tailrace run"
)
"""The hint of errors registered with `refill`: the topics lack changes or rows, or have wrong ones."""


def is_refilled(code_id: str) -> bool:
    """Return whether a new slot and a reconciling read of all tables repair the cause of an error."""
    entry = CODES.get(code_id)
    return entry is not None and entry.refill
