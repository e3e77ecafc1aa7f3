"""Execute snapshot and table requests in the daemon: `tailrace snapshot start`, `pause` and others.

The requests are start, pause, resume and cancel for snapshots, and park, unpark and leave out for tables. Each changes
a table's state on the tables topic; the answer is in the same Kafka transaction. A repeated request is answered with
the present state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import psycopg
import structlog

from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.schemas.errors import StateError, TailraceError
from tailrace.schemas.records.layout import Asked, TableStatus
from tailrace.schemas.records.requests import Outcome, Request, RequestRecord
from tailrace.schemas.relation import Relation
from tailrace.schemas.table_names import known_name
from tailrace.sinks.control.requests import RequestTail
from tailrace.snapshot.plan import check_condition

log = structlog.get_logger()


class SnapshotRequests:
    """Answer the open requests; `send` writes a record to the requests topic."""

    def __init__(
        self,
        tail: RequestTail,
        send: Callable[[bytes, bytes | None], None],
        catalog: SourceCatalog,
        registry: TableRegistry,
        set_aside: Callable[[Relation, TailraceError], None],
    ) -> None:
        """`set_aside` parks a table."""
        self._set_aside = set_aside
        self._tail = tail
        self._send = send
        self._catalog = catalog
        self._registry = registry
        while tail.answered:
            send(tail.answered.pop(), None)  # answered before this start: the client has read it

    def poll(self) -> None:
        """Execute and answer all open requests."""
        while (found := self._tail.next()) is not None:
            key, request = found
            answer = tuple(self._do(request))
            log.info("request answered", action=request.action, outcomes={each.table: each.outcome for each in answer})
            self._send(key, RequestRecord(request, answer).to_json())

    def _do(self, request: Request) -> list[Outcome]:
        if request.action == "start":
            relations = {relation.qualified_name: relation for relation in self._catalog.relations()}
            return [
                self._start(relations[name], request) if name in relations else self._not_captured(name)
                for name in _meant(request.tables, relations) or relations
            ]
        if request.action in ("park", "unpark", "leave out"):
            relations = {relation.qualified_name: relation for relation in self._catalog.relations()}
            do = {"park": self._park, "unpark": self._unpark, "leave out": self._leave_out}[request.action]
            return [
                do(relations[name]) if name in relations else self._not_captured(name)
                for name in _meant(request.tables, relations)
            ]
        states = self._registry.states
        reading = [name for name in states if self._is_read(name)]
        act = {"pause": self._pause, "resume": self._resume, "cancel": self._cancel}[request.action]
        return [
            act(name) if self._is_read(name) else Outcome(name, "not being read")
            for name in _meant(request.tables, states) or reading
        ]

    def _park(self, relation: Relation) -> Outcome:
        name = relation.qualified_name
        if self._registry.is_parked(relation):
            return Outcome(name, "parked already")
        error = StateError("TR-430", f'table "{name}" was parked by a command', hint=f"tailrace table resume {name}")
        self._set_aside(relation, error)
        return Outcome(name, "parked")

    def _unpark(self, relation: Relation) -> Outcome:
        name = relation.qualified_name
        if not self._registry.is_parked(relation):
            return Outcome(name, "not parked")
        if name in self._registry.lost:
            self._registry.park_again(name)
            return _refused(name, "its topic has lost records: `tailrace table list` shows what repairs it")
        self._catalog.keys.ask_again(relation.oid)
        self._registry.resume(relation)
        emptied = self._registry.must_be_emptied(name)
        how = "its topic is emptied and all rows are read" if emptied else "it is read again"
        return Outcome(name, f"resumed: {how}", self._registry.states[name].run)

    def _leave_out(self, relation: Relation) -> Outcome:
        name = relation.qualified_name
        if not self._registry.is_parked(relation):
            outcome = self._park(relation)
            if outcome.refused:
                return outcome
        self._registry.leave_out(name)
        return Outcome(name, "left out")

    def _not_captured(self, name: str) -> Outcome:
        found = self._catalog.why_not_captured(name)
        return Outcome(name, f"not captured, {found.reason}", refused=True, hint=found.hint)

    def _is_read(self, name: str) -> bool:
        state = self._registry.states.get(name)
        aside = state is not None and state.status in (TableStatus.PARKED, TableStatus.UNPUBLISHED)
        return state is not None and not aside and (state.asked is not None or name in self._registry.incomplete)

    def _start(self, relation: Relation, request: Request) -> Outcome:
        name = relation.qualified_name
        if self._registry.is_parked(relation):
            return _refused(name, "parked", hint=f"tailrace table resume {name}")
        state = self._registry.states.get(name)
        if state is not None and state.status is TableStatus.UNPUBLISHED:
            return _refused(name, "not wholly published", hint=state.remedy)
        asked = state.asked or Asked() if state is not None and self._is_read(name) else None
        if name in self._registry.keyless:
            return self._start_log(relation, request, asked)
        if state is not None and asked is not None:
            less = (request.reconcile and asked.since is None) or (asked.where not in (None, request.where))
            if not less and (asked.where == request.where or not asked.whole):
                return Outcome(name, "being read already", state.run)
        if request.where is not None and (error := self._error_in(relation, request.where)):
            return _refused(name, f"the condition is refused: {error}")
        whole = name not in self._registry.incomplete
        since = asked.since if asked is not None else None
        if request.reconcile and since is None:
            since = self._registry.ends(relation)
        where = request.where if whole else None
        return Outcome(name, "started", self._registry.ask(relation, Asked(whole, where, request.rate, since=since)))

    def _start_log(self, relation: Relation, request: Request, asked: Asked | None) -> Outcome:
        """Read a table without a key into an emptied topic, if the request names the table."""
        name = relation.qualified_name
        if asked is not None:
            return Outcome(name, "being read already", self._registry.states[name].run)
        if not request.tables:
            return Outcome(name, "without a key: read only if it is named, because its topic is emptied first")
        if request.where is not None:
            why = "without a key: its topic is emptied, so all rows are read"
            return _refused(name, why, hint=f"tailrace snapshot start {name}")
        run = self._registry.ask(relation, Asked(whole=False, rate=request.rate))
        return Outcome(name, "started: its topic is emptied first", run)

    def _error_in(self, relation: Relation, where: str) -> str:
        """Return the server's error message for a condition, empty if the condition is valid."""
        try:
            check_condition(self._catalog.connection, relation, where)
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
        state = self._registry.states[name]
        if paused and name in self._registry.keyless:
            return _refused(name, "without a key: its read holds one snapshot and cannot be paused", state.run)
        if (state.asked is not None and state.asked.paused) == paused:
            return Outcome(name, "paused already" if paused else "not paused", state.run)
        self._registry.pause(name, paused=paused)
        return Outcome(name, outcome, state.run)

    def _cancel(self, name: str) -> Outcome:
        state = self._registry.states[name]
        if state.asked is None or not state.asked.whole:
            instead = "" if name in self._registry.keyless else "; pause it instead"
            return _refused(name, f"its topic lacks rows until the read ends{instead}", state.run)
        self._registry.cancel(name)
        return Outcome(name, "cancelled", state.run)


def _meant(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the tables that a request means: `a.b` is also the table "a.b" of public."""
    return [known_name(name, known) for name in names]


def _refused(name: str, why: str, run: int | None = None, hint: str = "") -> Outcome:
    return Outcome(name, why, run, refused=True, hint=hint)
