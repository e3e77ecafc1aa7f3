"""Status of each captured table and its topic, with all allowed status transitions.

Each table has one `TableStatus`. Only the methods here change it, each by one transition; `incomplete` follows from it.
The state is stored on the tables topic, in the Kafka transaction of the records that it describes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

import orjson
import structlog

from tailrace.cdc.tables.decision import OPTION, Action, TopicPast, on_events, on_look, on_record
from tailrace.cdc.tables.hidden import check_hidden, hidden_in
from tailrace.cdc.tables.position import Progress
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.errors import ConfigError, StateError, TailraceError
from tailrace.schemas.evolution import Break, breaks, key_breaks, key_column_names
from tailrace.schemas.records.layout import FIRST_RUN as FIRST_RUN
from tailrace.schemas.records.layout import Asked, Ended, HiddenColumn, Layout, Parked, TableState, TableStatus
from tailrace.schemas.records.position import RECORDS_LOST, chunk_key, table_key
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import EXCLUDED, ValueType
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.progress import Counted, ReadProgress
from tailrace.snapshot.window import Found, Look

log = structlog.get_logger()

_BEING_READ = (TableStatus.WANTED, TableStatus.READING)
_UNPUBLISHED_STAY = (TableStatus.UNPUBLISHED, TableStatus.PARKED)
"""The statuses that do not change if a table is not published."""

_ROWS_STAY = (Action.REFILL, Action.RECONCILE)
"""Actions for rows whose records a plain read would leave on the topic."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The schemas of a topic's keys and values."""

    key: str
    value: str


class TableRegistry:
    """The state of each table's topic by table name. Bounded by the number of tables that ever existed.

    `unsettled` are tables whose stored rows may read differently, as far as the last catalog inspection can tell; until
    this is decided, no cut is a state of them. `reads` is the progress of reads, for people and metrics.
    """

    def __init__(
        self,
        source: Source,
        topics: Topics,
        options: ColumnOptions,
        progress: Progress,
        send: Callable[[bytes, bytes | None], None],
        states: Mapping[str, TableState],
        unread: Collection[str] = (),
    ) -> None:
        """`states` are those on the tables topic, `unread` the tables with chunks left. `send` writes a record
        to that topic in the open Kafka transaction.
        """
        self.reads = ReadProgress()
        self.version = 0
        """Grows with each state that is stored and each shape that is adopted: what follows from them is valid as long
        as this is the same."""
        self.unsettled: frozenset[str] = frozenset()
        self.keyless: set[str] = set()
        self.lost: Mapping[str, TailraceError] = {}
        """Parked tables whose topics have lost records, as of the start, with the error: they cannot be resumed."""
        self._source = source
        self._topics = topics
        self._options = options
        self._progress = progress
        self._send = send
        named = set(progress.newest.incomplete_tables) - progress.reread.keys()
        self._states = {name: _with_status(state, name in named or name in unread) for name, state in states.items()}
        if all(state.status is None for state in states.values()):
            # an earlier version: this one stores a state of each table before its slot, and other names are unsettled
            self._states |= {name: TableState(0, 0, status=TableStatus.NEW) for name in named - states.keys()}
        self._hidden = {name: _hidden(name, state, options) for name, state in self._states.items()}
        self._incomplete = {name for name, state in self._states.items() if _is_incomplete(state)}
        self._relations: dict[str, Relation] = {}
        self._missing: Set[str] = frozenset()
        """Tables that the last catalog inspection to be applied did not find."""
        self._changed_at: dict[str, float] = {}  # monotonic; earlier catalog inspections do not apply

    @property
    def states(self) -> Mapping[str, TableState]:
        """The state of each table."""
        return self._states

    def status(self, name: str) -> TableStatus:
        """Return the status of a table; GONE for an unknown table."""
        state = self._states.get(name)
        return TableStatus.GONE if state is None or state.status is None else state.status

    @property
    def incomplete(self) -> Set[str]:
        """The tables for which no cut is a state."""
        return self._incomplete

    @property
    def wanted(self) -> dict[str, Relation]:
        """The tables whose read is required or requested by a person, and has not begun."""
        return dict(self._relations)

    def begun(self, name: str) -> None:
        """Note that the read of a table is being planned."""
        self._relations.pop(name, None)

    def must_be_emptied(self, name: str) -> bool:
        """Whether a truncate must be the next record on a table's topic; `adopt` reports this once."""
        state = self._states.get(name)
        return state is not None and state.empty

    def begins_empty(self, name: str) -> bool:
        """Whether the read of a table begins with a truncate; the caller reports it sent with `emptied`."""
        state = self._states.get(name)
        return state is not None and state.refill

    def emptied(self, name: str) -> None:
        """Note that the topic was emptied for the read of its table."""
        self._store(name, replace(self._states[name], empty=False, refill=False))

    def check_hidden(self, relation: Relation, now: Layout | None) -> None:
        """Note the hidden columns of a table's new shape; call it before a record of that shape is sent.

        StateError (TR-432) if a column was hidden and would appear in plain, because it or its table was renamed.
        """
        name = relation.qualified_name
        state = self._states.get(name)
        layout = state.layout if state is not None else None
        of_this = layout.attributes if layout is not None and layout.oid == relation.oid else ()
        known = {each.name: each.number for each in of_this}
        there = self._hidden.get(name, ())
        elsewhere = [each for other, found in self._hidden.items() if other != name for each in found]
        stored = (*there, *(each for each in elsewhere if each.oid == relation.oid))
        hidden = check_hidden(relation, now, known, stored, self._options)
        if hidden == there:
            return
        dropped = {each.full_name for each in stored if each.oid == relation.oid} - {each.full_name for each in hidden}
        if dropped:
            log.warning("hidden columns dropped or renamed", table=name, columns=sorted(dropped))
        self._hidden[name] = hidden
        if state is not None:
            self._store(name, state)

    def adopt(
        self,
        relation: Relation,
        commit_lsn: int,
        now: Layout | None,
        old: Subjects | None,
        new: Subjects,
        past: TopicPast,
    ) -> bool:
        """Apply the action for a new shape before its first record; return whether a truncate must precede.

        `old` and `new` are the topic's schemas. StateError (TR-407) if readers cannot follow and the configuration says
        to stop.
        """
        name = relation.qualified_name
        state = self._states.get(name)
        found: list[Break] = []
        gained = old is not None and not old.key
        if old is not None:
            found = [gained_key(new.key)] if gained else key_breaks(old.key, new.key) + breaks(old.value, new.value)
        if gained and state is not None and state.refill and not state.empty and state.oid == relation.oid:
            found = []  # its read will empty the topic
        self.keyless.discard(name)
        left = [each for each in found if not self._has_option(name, each)]
        columns = self._captured(relation)
        stops = self._source.on_schema_change == "stop"
        action = on_record(state, relation, commit_lsn, now, columns, past, left, chosen=bool(found), stops=stops)
        if action is Action.STOP:
            raise _stop(name, left)
        if action is Action.REFILL and left and state is not None and state.oid == relation.oid and not state.empty:
            log.warning("topic refilled: incompatible change", table=name, columns=[str(each) for each in left])
        self._left_behind(relation)
        if action is Action.EMPTY:
            assert state is not None
            self._store(name, replace(state, empty=False))
            return True
        if action is Action.NOTE:
            assert state is not None
            self._store(name, replace(state, layout=now, columns=columns, lsn=commit_lsn))
        elif action is Action.RECONCILE:
            pass  # the catalog inspection before the next state starts it, at known offsets
        elif action is not Action.NONE:
            self._want(action, relation, now)
            wanted = self._states[name]
            if wanted.layout is None:
                # this record and later ones may have an older form than the rows that will be read
                self._store(name, replace(wanted, refill=True))
            if action is Action.REFILL:
                self._store(name, replace(self._states[name], empty=False))
                return True
        return False

    def adopt_events(
        self, relation: Relation, now: Layout | None, old: Subjects | None, new: Subjects, past: TopicPast
    ) -> None:
        """Apply a new shape of a table without a key, whose topic holds events, each in the shape of its time.

        So it is read only if it is new to its topic, or if changes may be missing. Readers must be able to follow, and
        StateError if they cannot: TR-431, which parks the table, or TR-407 if the configuration says to stop.
        """
        name = relation.qualified_name
        state = self._states.get(name)
        found = breaks(old.value, new.value) if old else []
        left = [each for each in found if not self._has_option(name, each)]
        stops = self._source.on_schema_change == "stop"
        action = on_events(state, relation.oid, now, past, left, stops=stops)
        if action is Action.STOP:
            raise _stop(name, left, may_begin_again=False)
        if action is Action.PARK:
            raise _incompatible_events(name, left)
        self._left_behind(relation)
        self.keyless.add(name)
        if action is not Action.NONE:
            self._want(action, relation, now)
        elif state is not None and state.status is TableStatus.STREAMING:
            self._store(name, replace(state, status=TableStatus.KEYLESS))

    def adopted(self) -> None:
        """Note that a table's shape has been adopted, with the schemas of its topic."""
        self.version += 1

    def is_read_whole(self, name: str) -> bool:
        """Whether a table without a key is being read, so that some of its changes come with its rows."""
        return name in self.keyless and self.status(name) in _BEING_READ

    def refill(self, relation: Relation) -> None:
        """→ WANTED: schedule a read of a table whose topic is emptied first."""
        self._want(Action.REFILL, relation, None)

    def judge(self, look: Look, found: Found, past: TopicPast) -> Action | None:
        """Return the action for a table found by a catalog inspection; None if its state has changed since."""
        if self.status(found.name) is TableStatus.PARKED:
            return Action.NONE
        if look.began < self._changed_at.get(found.name, 0.0):
            return None
        state, now = self._states.get(found.name), found.layout
        if found.name in self.keyless and self.status(found.name) is TableStatus.UNPUBLISHED:
            return Action.REFILL
        if found.name in self.keyless:
            return on_events(state, now.oid, now, past)
        if self.is_published(now):
            now = replace(now, publishes_all=True)
        return on_look(state, now, _with_options(self._options, found.name, found.columns), past)

    def is_published(self, layout: Layout) -> bool:
        """Whether all changes of a table with this layout are published that its topic must have."""
        return layout.publishes_all or self._source.publish == "insert"

    def moved(self, look: Look) -> set[str]:
        """Return the tables missing from a catalog inspection that were renamed or whose read is unfinished."""
        here = {each.name for each in look.found}
        elsewhere = {each.layout.oid for each in look.found}
        return {
            name
            for name, state in self._states.items()
            if name not in here and name not in look.unpublished and look.began >= self._changed_at.get(name, 0.0)
            if state.status is TableStatus.UNPUBLISHED
            or (state.oid and (state.oid in elsewhere or self.status(name) in _BEING_READ))
        }

    def dropped(self, look: Look) -> set[str]:
        """Return the tables that a catalog inspection no longer found, though an earlier one had.

        They may have been altered before they were dropped, which only an inspection in between would have shown.
        """
        here = {each.name for each in look.found} | look.unpublished
        return {
            name
            for name in self._states.keys() - here - self._missing
            if self.status(name) is TableStatus.STREAMING and look.began >= self._changed_at.get(name, 0.0)
        }

    def unpublished(self, look: Look) -> set[str]:
        """Return the tables that a catalog inspection found in no publication, though their topics are to be current.

        It includes another table that has taken the name of a topic.
        """
        found = look.unpublished & self._states.keys()
        return {name for name in found if self.status(name) not in _UNPUBLISHED_STAY}

    def settle(
        self, look: Look, pasts: Mapping[str, TopicPast], remedies: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Apply a catalog inspection once the stream has passed its LSN: then changes have these shapes.

        This handles tables that were altered, renamed, replaced or not published any more without a row change in the
        stream. `remedies` are the statements that publish each unpublished table.
        """
        actions = [(each, self.judge(look, each, pasts[each.name])) for each in look.found]
        self._missing = self._states.keys() - {each.name for each in look.found}
        for name in self.moved(look):
            self.gone(name)
        elsewhere = {each.layout.oid for each in look.found}
        for name in sorted(self.unpublished(look)):
            if look.began >= self._changed_at.get(name, 0.0):
                self.unpublish(name, remedies.get(name, ""), renamed=self._states[name].oid in elsewhere)
        for each, action in actions:
            if action is Action.UNPUBLISH:
                self.unpublish(each.name, remedies.get(each.name, ""))
            elif action is not None and action not in (Action.NOTE, Action.NONE):
                # the read identifies the table by its name
                relation = Relation(each.layout.oid, each.schema, each.table, ReplicaIdentity.DEFAULT, ())
                self._want(action, relation, each.layout)
            state = self._states.get(each.name)
            if action is not None and state is not None and _takes_layout(state, each.layout):
                columns = _with_options(self._options, each.name, each.columns)
                self._store(each.name, replace(state, layout=each.layout, columns=columns))

    def key_changed(self, relation: Relation, commit_lsn: int, now: Layout | None) -> bool:
        """Whether a table's primary key has changed since its rows were read."""
        state = self._states.get(relation.qualified_name)
        if state is None or state.layout is None or now is None:
            return False
        return state.layout.oid == relation.oid and commit_lsn >= state.lsn and state.layout.key != now.key

    def first(self, relation: Relation, layout: Layout, lsn: int) -> None:
        """NEW → READING: begin the table's first copy, which includes everything committed before `lsn`."""
        state = TableState(FIRST_RUN, layout.oid, layout, lsn, self._captured(relation), layout.member)
        self._store(relation.qualified_name, replace(state, status=TableStatus.READING))
        self._relations.pop(relation.qualified_name, None)

    def want(self, relation: Relation) -> None:
        """→ WANTED: schedule a full read of a table; until it is done, no cut is a state of it."""
        self._want(Action.READ, relation, None)

    def _want(self, action: Action, relation: Relation, now: Layout | None) -> None:
        name = relation.qualified_name
        state = self._states.get(name) or TableState(0, relation.oid)
        same = state.oid == relation.oid
        reconciles = action is Action.RECONCILE or (state.asked is not None and state.asked.since is not None)
        if reconciles and state.status is TableStatus.READING:
            # rows of the abandoned run would count as found by the next one
            action = Action.REFILL
        holds_rows = same and action is not Action.REFILL and not state.empty
        if action is Action.RECONCILE and now is not None:
            # this run handles the difference from the earlier layout
            state = replace(state, layout=now)
        member = state.member if same and action is not Action.REFILL else 0
        asked = state.asked
        if asked is not None:  # the request stays valid, without anything that would leave rows out
            asked = replace(asked, whole=False, where=None, layout=None, lsn=0, columns=())
        if action is Action.REFILL:
            asked = replace(asked, since=None) if asked is not None else None
        elif action is Action.RECONCILE:
            # Also in place of a requested run that reconciles: rows may have been sent since it began, and be gone.
            asked = replace(asked or Asked(), since=self.ends(relation))
        self._store(
            name,
            TableState(
                state.run + 1,
                relation.oid,
                # layout of the rows on the topic; planning decides whether a read under a later one needs a truncate
                state.layout if holds_rows else None,
                state.lsn if holds_rows else 0,
                state.columns if holds_rows else (),
                member=member or (now.member if now else 0),
                asked=asked,
                status=TableStatus.WANTED,
                empty=action is Action.REFILL or (same and state.empty),
                refill=action is Action.REFILL or (same and state.refill),
            ),
        )
        self._relations[name] = relation
        log.info("table read scheduled", table=name, run=state.run + 1, action=action.value)

    def ends(self, relation: Relation) -> tuple[int, ...]:
        """Return the offsets of a table's topic at the start of a read; records from there on are newer."""
        topic = self._topics.table(relation.schema, relation.name)
        return tuple(self._progress.newest.here.offsets.get(topic, ()))

    def ask(self, relation: Relation, asked: Asked) -> int:
        """Schedule a read that a person requested; return the number of the run.

        `asked.whole` says that the topic lacks nothing: then its cuts stay states.
        """
        name = relation.qualified_name
        state = self._states.get(name) or TableState(0, relation.oid)
        run = state.run + 1
        if name in self.keyless:
            wanted = replace(state, run=run, oid=state.oid or relation.oid, status=TableStatus.WANTED, refill=True)
            self._store(name, replace(wanted, asked=replace(asked, whole=False, where=None, since=None), ended=None))
        elif asked.whole:
            self._store(name, replace(state, run=run, asked=asked, ended=None))
        else:
            wanted = replace(state, run=run, oid=state.oid or relation.oid, status=TableStatus.WANTED)
            self._store(name, replace(wanted, asked=asked, ended=None))
        self._relations[name] = relation
        log.info("table read scheduled", table=name, run=run, reconcile=asked.since is not None)
        return run

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause or resume a table's run."""
        state = self._states[name]
        self._store(name, replace(state, asked=replace(state.asked or Asked(), paused=paused)))

    def cancel(self, name: str, how: str = "cancelled") -> None:
        """End a run early on a topic that lacks nothing: the records read so far stay there and are correct."""
        state = self._states[name]
        assert state.asked is not None
        assert state.asked.whole
        self._store(name, replace(state, run=state.run + 1, asked=None, ended=_ended(state.run, state.asked, how)))
        self._relations.pop(name, None)

    def altered(self, relation: Relation, layout: Layout | None, past: TopicPast) -> None:
        """READING → WANTED: read a table again that was altered during its read.

        `layout` is its present layout, None if it is missing.
        """
        state = self._states[relation.qualified_name]
        action = Action.READ
        if relation.qualified_name in self.keyless:
            action = Action.REFILL
        elif layout is not None and state.layout is not None:
            action = on_look(state, layout, self._captured(relation), past)
        self._want(Action.REFILL if action in _ROWS_STAY else Action.READ, relation, layout)

    def planned(self, relation: Relation, layout: Layout, lsn: int, past: TopicPast, *, has_key: bool = True) -> None:
        """WANTED → READING: note the layout of a read that includes everything committed before `lsn`.

        If the read would leave outdated records on the topic, the topic is emptied first.
        """
        name, columns = relation.qualified_name, self._captured(relation)
        state = self._states[name]
        if not has_key:
            self._planned_events(name, replace(state, layout=layout, lsn=lsn, columns=columns), layout.member)
            return
        self.keyless.discard(name)
        if state.asked is not None and state.asked.whole:
            # stored rows keep their layout until the run is done, and it may not read all of them
            self._store(name, replace(state, asked=replace(state.asked, layout=layout, lsn=lsn, columns=columns)))
        else:
            # judge it as READING: for a WANTED table the decision would suppress READ and RECONCILE
            reading = replace(state, status=TableStatus.READING)
            stay = state.layout is not None and on_look(reading, layout, columns, past) in _ROWS_STAY
            stay |= past.used and not past.key  # the topic has records without a key
            member = state.member or layout.member
            now = replace(state, layout=layout, lsn=lsn, columns=columns, member=member, status=TableStatus.READING)
            self._store(name, replace(now, empty=state.empty or stay, refill=state.refill or stay))

    def _planned_events(self, name: str, state: TableState, member: int) -> None:
        """WANTED → READING for a table without a key: all rows are read, and no key is deleted."""
        self.keyless.add(name)
        asked = replace(state.asked, since=None) if state.asked is not None else None
        refill = state.refill or state.empty or state.status is not TableStatus.WANTED or asked != state.asked
        state = replace(state, member=state.member or member, asked=asked, empty=False, refill=refill)
        self._store(name, replace(state, status=TableStatus.READING))

    def copied(self, name: str) -> None:
        """READING → STREAMING (or KEYLESS): the run is complete."""
        state = self._states[name]
        asked = state.asked
        if asked is not None and asked.whole and asked.where is None:
            state = replace(state, layout=asked.layout, lsn=asked.lsn, columns=asked.columns)
        status = TableStatus.KEYLESS if name in self.keyless else TableStatus.STREAMING
        ended = state.ended if asked is None else _ended(state.run, asked, "done")
        self._store(name, replace(state, asked=None, status=status, refill=False, ended=ended))

    def gone(self, name: str) -> None:
        """→ GONE: no captured table has this name any more; its topic stays unchanged."""
        log.warning("table missing: its topic stays unchanged", table=name)
        run = self._states[name].run + 1 if name in self._states else 0
        self._store(name, TableState(run, 0, status=TableStatus.GONE))
        self._relations.pop(name, None)

    def unpublish(self, name: str, remedy: str, *, renamed: bool = False) -> None:
        """→ UNPUBLISHED: the topic lacks changes from now on, until `remedy` is run; then it is read again.

        With `renamed`, another table has the name now.
        """
        log.warning("table not published: no cut is a state of it", table=name, remedy=remedy)
        state = self._states.get(name) or TableState(0, 0)
        oid = 0 if renamed else state.oid
        run = TableState(state.run + 1, oid, member=state.member, empty=state.empty, refill=state.refill)
        self._store(name, replace(run, status=TableStatus.UNPUBLISHED, remedy=remedy))
        self._relations.pop(name, None)

    def left(self, relation: Relation) -> None:
        """→ GONE: a table has a change under a name outside the capture set, and its topic lacks this change.

        If the table returns to its old name, it is read from the start again.
        """
        for name, state in list(self._states.items()):
            if state.oid == relation.oid:
                log.warning("table no longer captured", before=name, now=relation.qualified_name)
                self.gone(name)

    def is_parked(self, relation: Relation) -> bool:
        """Whether a table's changes are dropped because of an error."""
        return self.status(relation.qualified_name) is TableStatus.PARKED

    def park(self, relation: Relation, error: TailraceError, lsn: int) -> None:
        """→ PARKED: set a table aside; its topic lacks changes starting with the commit at `lsn`."""
        name = relation.qualified_name
        if self.status(name) is TableStatus.PARKED:
            return
        state = self._states.get(name) or TableState(0, relation.oid)
        parked = Parked(error.code, error.message, error.hint, lsn, time.time_ns() // 1_000_000)
        run = TableState(state.run + 1, relation.oid, member=state.member, empty=state.empty)
        self._store(name, replace(run, status=TableStatus.PARKED, parked=parked))
        self._relations.pop(name, None)
        words = {"code": error.code, "error": error.message, "detail": error.detail, "hint": error.hint}
        log.error("table parked", table=name, **words)

    def park_lost(self, lost: Mapping[str, TailraceError]) -> None:
        """Note the parked tables whose topics have lost records, as of the start.

        A table that was parked for another error is now parked for this one. Of those whose topics have been created
        again, only `resume` remains to be done.
        """
        self.lost = lost
        for name, state in list(self._states.items()):
            parked = state.parked
            if parked is None or parked.left_out:
                continue
            if name in lost:
                if parked.code != RECORDS_LOST:
                    self.park_again(name)
            elif parked.code == RECORDS_LOST:
                self._store(name, replace(state, parked=replace(parked, hint=f"tailrace table resume {name}")))

    def park_again(self, name: str) -> None:
        """Park a parked table, even one that is left out, because its topic has lost records: the next start creates
        the topic again.
        """
        state, error = self._states[name], self.lost[name]
        assert state.parked is not None
        parked = Parked(error.code, error.message, error.hint, state.parked.lsn, state.parked.since_ms)
        self._store(name, replace(state, parked=parked))

    def resume(self, relation: Relation) -> None:
        """PARKED → WANTED: reconcile a table, that is, read it again and delete the keys that were not found.

        The topic of a table without a key, or one that has lost records, is emptied instead: of a key that is not on
        the topic, nothing says that readers have its row.
        """
        name = relation.qualified_name
        parked = self._states[name].parked
        emptied = name in self.keyless or (parked is not None and parked.code == RECORDS_LOST)
        # a person has seen that the table was created again without a hidden column
        self._hidden[name] = tuple(each for each in self._hidden.get(name, ()) if each.oid == relation.oid)
        self._want(Action.REFILL if emptied else Action.RECONCILE, relation, None)

    def leave_out(self, name: str) -> None:
        """Keep a table parked without reminders; still no cut is a state of it."""
        state = self._states[name]
        assert state.parked is not None
        self._store(name, replace(state, parked=replace(state.parked, left_out=True)))

    @property
    def parked(self) -> dict[str, str]:
        """The error code of each parked table, empty for a table that is left out."""
        found = {name: state.parked for name, state in self._states.items() if state.parked is not None}
        return {name: "" if parked.left_out else parked.code for name, parked in found.items()}

    def note_chunk(self, chunk: Chunk, run: int, *, done: bool, rows: int = 0, copied: int = 0) -> None:
        """Store a chunk as planned or as done, so that an interrupted run can resume.

        `rows` and `copied` are the chunk's number of rows and its bytes of COPY text.
        """
        value = chunk.to_dict() | {"done": done}
        if done:
            counted = Counted(rows, copied, time.time_ns() // 1_000_000)
            self.reads.read(chunk, run, counted)
            value |= counted.to_dict()
        else:
            self.reads.planned(chunk, run)
        self._send(chunk_key(self._source.slot, chunk.table, run, chunk.n), orjson.dumps(value))

    def forget_chunks(self, table: str) -> None:
        """Delete the previous run's chunk records, so that the topic does not grow with each run."""
        if (before := self.reads.get(table)) is not None:
            for n in range(before.chunks):
                self._send(chunk_key(self._source.slot, table, before.run, n), None)

    def _left_behind(self, relation: Relation) -> None:
        """Mark a renamed table's earlier name as GONE: no table owns that topic any more."""
        for name, state in list(self._states.items()):
            if state.oid == relation.oid and name != relation.qualified_name:
                log.warning("table renamed: a new topic", before=name, now=relation.qualified_name)
                self.gone(name)

    def _has_option(self, name: str, broken: Break) -> bool:
        """Whether a column has a configured option; False for breaks without a column, as those of a key."""
        return broken.column != "" and self._options.of(f"{name}.{broken.column}") is not None

    def _captured(self, relation: Relation) -> tuple[str, ...]:
        names = [column.name for column in relation.columns]
        return _with_options(self._options, relation.qualified_name, names)

    def _store(self, name: str, state: TableState) -> None:
        was = self._states.get(name)
        state = replace(state, hidden=self._hidden.get(name, ()))
        if was is None or was.status is not state.status:
            log.debug("table state", table=name, status=str(state.status), was=was and str(was.status))
        self._states[name] = state
        self.version += 1
        self._changed_at[name] = time.monotonic()
        if _is_incomplete(state):
            self._incomplete.add(name)
        else:
            self._incomplete.discard(name)
        self._send(table_key(self._source.slot, name), state.to_json())


def states_before_slot(look: Look, options: ColumnOptions) -> dict[str, TableState]:
    """Return a NEW state with the current layout for each captured table, to store before the slot.

    Every change that the slot delivers is later than these layouts. So if a table has the same layout when its read is
    planned, all records from before the read have the form of the read.
    """
    return {
        each.name: TableState(
            FIRST_RUN,
            each.layout.oid,
            each.layout,
            columns=_with_options(options, each.name, each.columns),
            member=each.layout.member,
            status=TableStatus.NEW,
        )
        for each in look.found
    }


def _hidden(name: str, state: TableState, options: ColumnOptions) -> tuple[HiddenColumn, ...]:
    """Return the hidden columns of a stored table, and those of its layout.

    Older versions stored only the layout, and an option may be new.
    """
    if state.layout is None:
        return state.hidden
    stored = {(each.oid, each.number) for each in state.hidden}
    added = hidden_in(state.layout, name, options)
    return (*state.hidden, *(each for each in added if (each.oid, each.number) not in stored))


def _with_options(options: ColumnOptions, table: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the captured ones of the columns `names`, each name followed by its configured option.

    A column with two options has none of them here: it is an error of the next record, which parks its table.
    """
    captured: list[str] = []
    for name in names:
        try:
            option = options.of(f"{table}.{name}")
        except ConfigError:
            captured.append(name + OPTION)
            continue
        if option is not EXCLUDED:
            captured.append(name + _words(option))
    return tuple(captured)


def has_same_options(state: TableState, options: ColumnOptions, name: str) -> bool:
    """Whether the columns of table `name` have the options of its stored layout; False without a layout."""
    if state.layout is None:
        return False
    kept = dict(_column_and_option(column) for column in state.columns)
    try:
        now = {each.name: options.of(f"{name}.{each.name}") for each in state.layout.attributes}
    except ConfigError:  # two options for a column that had at most one
        return False
    return all(
        kept[column] == _words(option) and option is not EXCLUDED if column in kept else option in (None, EXCLUDED)
        for column, option in now.items()
    )


def _column_and_option(column: str) -> tuple[str, str]:
    name, separator, option = column.partition(OPTION)
    return name, separator + option


def _ended(run: int, asked: Asked, how: str) -> Ended:
    return Ended(run, how, asked.where, asked.rate, asked.since is not None)


def _takes_layout(state: TableState, now: Layout) -> bool:
    """Whether a table's later changes have the layout `now`, and no other layout of its rows must be kept."""
    if state.status is TableStatus.WANTED:
        return state.layout is None and not state.refill and state.oid == now.oid
    return state.status is TableStatus.STREAMING and state.layout is not None and state.layout != now


def _is_incomplete(state: TableState) -> bool:
    return state.status is not None and state.status.is_incomplete


def _with_status(state: TableState, incomplete: bool) -> TableState:
    """Return a state with its status, which earlier versions left to the position record."""
    if state.status is not None:
        return state
    if state.oid == 0:
        return replace(state, status=TableStatus.GONE)
    if incomplete or (state.asked is not None and not state.asked.whole):
        return replace(state, status=TableStatus.READING if state.layout else TableStatus.WANTED)
    return replace(state, status=TableStatus.STREAMING)


def _words(option: ValueType | None) -> str:
    """Return a string that distinguishes options without revealing a salt."""
    if option is None:
        return ""
    return f"{OPTION}{option.kind.name} {option.keep} {hashlib.sha256(option.salt).hexdigest()[:16]}"


def gained_key(key: str) -> Break:
    """Return the difference of a topic whose records get the key schema `key` and had no key."""
    return Break("", "none", ", ".join(key_column_names(key)))


def is_full(relation: Relation) -> bool:
    return relation.replica_identity is ReplicaIdentity.FULL


def _as_text(name: str, found: Sequence[Break]) -> list[str]:
    """Return the configuration line that remedies incompatible columns; none if the key is incompatible."""
    columns = [f'"{name}.{each.column}"' for each in found if each.column]
    if len(columns) < len(found):
        return []
    return [f"as_text = [{', '.join(columns)}]  # from now on, the column is text, as PostgreSQL prints it"]


def _incompatible_events(name: str, found: Sequence[Break]) -> StateError:
    return StateError(
        "TR-431",
        f'table "{name}" has no key and has changed in a way that readers of its topic cannot follow',
        detail=f"{'; '.join(map(str, found))}. Its topic is a log of events. `table resume` empties it and"
        " reads all rows again.",
        hint="\n       ".join([*_as_text(name, found), f"tailrace table resume {name}"]),
    )


def _stop(name: str, found: Sequence[Break], *, may_begin_again: bool = True) -> StateError:
    hints = []
    if may_begin_again:
        hints.append('on_schema_change = "refill"  # under [source]: writes a truncate record, then all rows again')
    hints += _as_text(name, found)
    return StateError(
        "TR-407",
        f'table "{name}" has changed in a way that readers of its topic cannot follow',
        detail=f"{'; '.join(map(str, found))}. Nothing is lost: the slot retains the WAL.",
        hint="\n       ".join(hints),
    )
