"""What a person asks of the daemon about snapshots and tables: records of the topic ``{prefix}.tailrace.requests``.

Keys are ``[slot, id]`` in JSON. The command writes a request; the daemon puts its answer in the same record's place, in
the Kafka transaction that has what follows from it. So a request waits as long as no daemon runs, and is done once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import orjson

Action = Literal["start", "pause", "resume", "cancel", "park", "unpark", "leave out"]


@dataclass(frozen=True, slots=True)
class Request:
    """`tables` are "schema.table", none means all: of `start` the captured ones, of the others those being read.

    "park", "unpark" and "leave out" name their tables.
    """

    action: Action
    tables: tuple[str, ...] = ()
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False

    @property
    def is_recovery(self) -> bool:
        """Whether it makes the topics right whatever they lack: the word that a lost slot waits for."""
        return self.action == "start" and not self.tables and self.reconcile


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request for one table; `run` is the number of the run that it is about, if there is one.

    `hint` is the line to paste that helps against a refusal.
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
