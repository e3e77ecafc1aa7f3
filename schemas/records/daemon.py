"""The record of a slot's daemon on the topic ``{prefix}.tailrace.tables``: whether it runs, and how it ended.

Its key is ``[slot, "daemon"]``. It holds no settings, so no secret; the error is its code and its message only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, Self

import orjson

DaemonState = Literal["running", "retrying", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """`since_ms`: since when it is in this state (ms since 1970). `address`: where its HTTP listens, if at all.

    `retrying`: a session failed for a reason that may pass, and the daemon tries again.
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
