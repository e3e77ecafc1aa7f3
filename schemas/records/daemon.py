"""The record of a slot's daemon on the topic ``{prefix}.tailrace.tables``: its state and last error.

Its key is ``[slot, "daemon"]``. It contains no settings, so no secrets; of the error only code and message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, Self

import orjson

DaemonState = Literal["running", "retrying", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """State of a daemon since `since_ms` (ms since 1970); `address` is that of its HTTP server, if any.

    `retrying`: a session failed with a possibly transient error, and the daemon retries.
    """

    state: DaemonState
    since_ms: int
    host: str
    pid: int
    version: str
    address: str | None = None
    code: str | None = None
    message: str | None = None

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        return cls(**{name: value.get(name) for name in cls.__dataclass_fields__})


def daemon_key(slot: str) -> bytes:
    return orjson.dumps([slot, "daemon"])
