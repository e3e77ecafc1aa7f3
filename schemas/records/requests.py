"""Requests to the daemon about snapshots and tables, on the topic ``{prefix}.tailrace.requests``.

Keys are ``[slot, id]`` in JSON. The command writes a request; the daemon writes its answer under the same key, in the
Kafka transaction with the request's effects. So a request waits until a daemon runs, and is executed once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import orjson

Action = Literal["start", "pause", "resume", "cancel", "park", "unpark", "leave out"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `tables` ("schema.table").

    An empty tuple means all: the captured ones for `start`, those being read for the other actions. "park", "unpark"
    and "leave out" must name their tables.
    """

    action: Action
    tables: tuple[str, ...] = ()
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False

    @property
    def is_recovery(self) -> bool:
        """True for a reconciling read of all tables, which repairs the topics and which a lost slot waits for."""
        return self.action == "start" and not self.tables and self.reconcile


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request for one table; `run` is the number of its run, if there is one.

    `hint` is the command to paste after a refusal.
    """

    table: str
    outcome: str
    run: int | None = None
    refused: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request, and the daemon's answer once there is one."""

    request: Request
    answer: tuple[Outcome, ...] | None = None

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value: dict[str, Any] = orjson.loads(raw)
        request, answer = value["request"], value["answer"]
        return cls(
            Request(**(request | {"tables": tuple(request["tables"])})),
            None if answer is None else tuple(Outcome(**each) for each in answer),
        )


def request_key(slot: str, id_: str) -> bytes:
    return orjson.dumps([slot, id_])
