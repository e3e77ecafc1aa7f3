"""What people ask of snapshots, done: `tailrace snapshot start`, `pause`, `resume`, `cancel` as the daemon takes them.

Every one of them is a change of a table's state on the tables topic; the answer goes into the same Kafka transaction.
Asked twice, each says that it is so already.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import structlog

from cdc.membership import NotCaptured
from cdc.progress import Progress
from cdc.shapes import Shapes
from schemas.layout import Asked
from schemas.relation import Relation
from schemas.requests import Outcome, Request, RequestRecord
from schemas.topics import Topics
from sinks.requests import RequestTail
from snapshot.plan import check_condition

log = structlog.get_logger()


class SnapshotRequests:
    """Answers the open requests; `send` puts a record on the topic of requests, `captured` asks for the tables."""

    def __init__(
        self,
        tail: RequestTail,
        send: Callable[[bytes, bytes | None], None],
        topics: Topics,
        connection: psycopg.Connection,
        shapes: Shapes,
        progress: Progress,
        captured: Callable[[], list[Relation]],
        explain: Callable[[str], NotCaptured],
    ) -> None:
        """`explain` says why a table is not among the captured ones."""
        self._tail = tail
        self._send = send
        self._topics = topics
        self._connection = connection
        self._shapes = shapes
        self._progress = progress
        self._captured = captured
        self._explain = explain
        while tail.answered:
            send(tail.answered.pop(), None)  # whoever asked has read it, in an earlier life of the daemon

    def poll(self) -> None:
        """Do what is asked."""
        while (found := self._tail.next()) is not None:
            key, request = found
            answer = tuple(self._do(request))
            log.info("snapshot request", action=request.action, outcomes={each.table: each.outcome for each in answer})
            self._send(key, RequestRecord(request, answer).to_json())

    def _do(self, request: Request) -> list[Outcome]:
        if request.action == "start":
            relations = {relation.qualified_name: relation for relation in self._captured()}
            return [
                self._start(relations[name], request) if name in relations else self._not_captured(name)
                for name in request.tables or relations
            ]
        states = self._shapes.states
        reading = [name for name in states if self._is_read(name)]
        act = {"pause": self._pause, "resume": self._resume, "cancel": self._cancel}[request.action]
        return [
            act(name) if self._is_read(name) else Outcome(name, "not being read") for name in request.tables or reading
        ]

    def _not_captured(self, name: str) -> Outcome:
        found = self._explain(name)
        return Outcome(name, f"not captured, {found.reason}", refused=True, hint=found.hint)

    def _is_read(self, name: str) -> bool:
        state = self._shapes.states.get(name)
        return state is not None and (state.asked is not None or name in self._progress.incomplete)

    def _start(self, relation: Relation, request: Request) -> Outcome:
        name = relation.qualified_name
        if name in self._shapes.keyless:
            refused = bool(request.tables)
            return Outcome(name, "without a key: only the first snapshot can read it", refused=refused)
        state = self._shapes.states.get(name)
        asked = state.asked or Asked() if state is not None and self._is_read(name) else None
        if state is not None and asked is not None:
            less = (request.reconcile and asked.since is None) or (asked.where not in (None, request.where))
            if not less and (asked.where == request.where or not asked.whole):
                return Outcome(name, "being read already", state.run)
        if request.where is not None and (error := self._error_in(relation, request.where)):
            return _refused(name, f"the condition is refused: {error}")
        whole = name not in self._progress.incomplete
        offsets = self._progress.newest.here.offsets.get(self._topics.table(relation.schema, relation.name), [])
        since = asked.since if asked is not None else None
        if request.reconcile and since is None:
            since = tuple(offsets)
        where = request.where if whole else None
        return Outcome(name, "started", self._shapes.ask(relation, Asked(whole, where, request.rate, since=since)))

    def _error_in(self, relation: Relation, where: str) -> str:
        """Return what the server has against a condition, nothing if it takes it."""
        try:
            check_condition(self._connection, relation, where)
        except psycopg.errors.OperationalError:
            raise
        except psycopg.Error as error:
            return error.diag.message_primary or str(error)
        return ""

    def _pause(self, name: str) -> Outcome:
        return self._set_paused(name, True, "paused")

    def _resume(self, name: str) -> Outcome:
        return self._set_paused(name, False, "resumed")

    def _set_paused(self, name: str, paused: bool, outcome: str) -> Outcome:
        state = self._shapes.states[name]
        if (state.asked is not None and state.asked.paused) == paused:
            return Outcome(name, "paused already" if paused else "not paused", state.run)
        self._shapes.pause(name, paused=paused)
        return Outcome(name, outcome, state.run)

    def _cancel(self, name: str) -> Outcome:
        state = self._shapes.states[name]
        if state.asked is None or not state.asked.whole:
            return _refused(name, "its topic lacks rows until it is read; it can be paused", state.run)
        self._shapes.cancel(name)
        return Outcome(name, "cancelled", state.run)


def _refused(name: str, why: str, run: int | None = None) -> Outcome:
    return Outcome(name, why, run, refused=True)
