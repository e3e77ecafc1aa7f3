"""What becomes of a topic when its table changes: go on, read the rows again, begin anew, or stop for a person.

The WAL says which shape a change has; what the catalog says besides may be later than that, or for a moment earlier.
So nothing rests on the two being of one moment: in doubt the table is read again, and a read comes after either.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import orjson
import structlog

from cdc.progress import Progress
from schemas.columns import ColumnOptions
from schemas.config import Source
from schemas.errors import StateError
from schemas.evolution import Break, breaks, key_breaks
from schemas.layout import FIRST_RUN as FIRST_RUN
from schemas.layout import Asked, Ended, Layout, TableState
from schemas.progress import chunk_key, table_key
from schemas.relation import Relation, ReplicaIdentity
from schemas.types import EXCLUDED, ValueType
from snapshot.plan import Chunk
from snapshot.progress import Counted, ReadProgress
from snapshot.window import Found

log = structlog.get_logger()

_OPTION = "\0"
"""Between a column's name and its option; no name has it."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The schemas of a topic's keys and values."""

    key: str
    value: str


class Shapes:
    """The state of each table's topic, kept by `send` on the tables topic; bounded by the number of tables.

    `wanted` are tables that must be read (again) and that nobody has begun to read yet, `keyless` those that cannot be.
    `reads` says how far reads are, for people and metrics.
    """

    def __init__(
        self,
        source: Source,
        options: ColumnOptions,
        progress: Progress,
        send: Callable[[bytes, bytes | None], None],
        states: dict[str, TableState],
    ) -> None:
        self.states = states
        self.wanted: dict[str, Relation] = {}
        self.keyless: set[str] = set()
        self.reads = ReadProgress()
        self._source = source
        self._options = options
        self._progress = progress
        self._send = send
        self._taken: dict[str, int] = {}  # as of which commit the catalog was asked; what it said before is past

    def take(
        self,
        relation: Relation,
        commit_lsn: int,
        now: Layout | None,
        old: Subjects | None,
        new: Subjects,
        ever: set[str],
    ) -> bool:
        """Decide before the first record of a shape, which the WAL has shown at `commit_lsn`, is sent.

        `old` and `new` are the topic's schemas, `now` is what the catalog says. True if the topic must be emptied by a
        truncate first. StateError (TR-407) if readers cannot follow and nobody has chosen.
        """
        name = relation.qualified_name
        state = self.states.get(name)
        if state is not None and not _is_of(state, relation.oid, now):
            return self._replaced(relation, state, now)
        chosen = False
        if old is not None:
            found = key_breaks(old.key, new.key) + breaks(old.value, new.value)
            left = [each for each in found if not self._has_option(name, each)]
            if left and self._source.on_schema_change == "stop":
                raise _stop(name, left)
            if left:
                log.warning("topic begins anew", table=name, columns=[str(each) for each in left])
                self.want(relation)
                return True
            chosen = bool(found)
        if state is None:
            self._renamed(relation)
            self.want(relation, now)
        elif chosen:
            self.want(relation)
        elif old is not None and state.layout is not None and commit_lsn >= state.lsn and now is not None:
            columns = self._captured(relation)
            if not now.has(relation) or self._rows_differ(state, now, columns, ever):
                self.want(relation)
            elif now != state.layout or columns != state.columns:
                self._store(name, replace(state, layout=now, columns=columns))
                self._taken[name] = commit_lsn
        return False

    def take_events(self, relation: Relation, old: Subjects | None, new: Subjects) -> bool:
        """The same for a table without a key: its topic holds events, each in the shape of its time.

        So nothing is read again, nor could it be; but readers must be able to follow, too.
        """
        self.keyless.add(relation.qualified_name)
        found = breaks(old.value, new.value) if old else []
        left = [each for each in found if not self._has_option(relation.qualified_name, each)]
        if left:
            raise _stop(relation.qualified_name, left, may_begin_anew=False)
        return False

    def look(self, found: Found, ever: set[str]) -> None:
        """Have a table read that is new to us, or was altered without a change of a row since."""
        relation = Relation(found.layout.oid, found.schema, found.table, ReplicaIdentity.DEFAULT, ())  # the name counts
        name = relation.qualified_name
        state = self.states.get(name)
        if name in self.keyless or (state is not None and found.lsn <= max(state.lsn, self._taken.get(name, 0))):
            return
        if state is None or not _is_of(state, relation.oid, found.layout):
            # one that is incomplete is being read already, unless nothing is known of it
            if state is None or name not in self._progress.incomplete:
                self.want(relation, found.layout)
        elif self._rows_differ(state, found.layout, self._with_options(name, found.columns), ever):
            self.want(relation)

    def key_changed(self, relation: Relation, commit_lsn: int, now: Layout | None) -> bool:
        """Whether a table has another primary key than when its rows were read."""
        state = self.states.get(relation.qualified_name)
        if state is None or state.layout is None or now is None:
            return False
        return state.layout.oid == relation.oid and commit_lsn >= state.lsn and state.layout.key != now.key

    def first(self, relation: Relation, layout: Layout, lsn: int) -> None:
        """Note how a table lies whose first snapshot begins, with everything that was committed before `lsn`."""
        self._store(
            relation.qualified_name,
            TableState(FIRST_RUN, layout.oid, layout, lsn, self._captured(relation), layout.member),
        )

    def want(self, relation: Relation, now: Layout | None = None) -> None:
        """Have a table read (again): until that is done, no cut is a state."""
        name = relation.qualified_name
        state = self.states.get(name) or TableState(0, relation.oid, member=now.member if now else 0)
        asked = state.asked
        if asked is not None:  # goes on to hold, but for what would leave rows out
            asked = replace(asked, whole=False, where=None, layout=None, lsn=0, columns=())
        self._store(name, TableState(state.run + 1, state.oid, member=state.member, asked=asked))
        self._progress.incomplete.add(name)
        self.wanted[name] = relation
        log.info("table to be read", table=name, run=state.run + 1)

    def ask(self, relation: Relation, asked: Asked) -> int:
        """Have a table read because a person wants it; return the number of the run.

        `asked.whole` is what the caller knows of the topic: if it lacks nothing, it goes on to be a state.
        """
        name = relation.qualified_name
        state = self.states.get(name) or TableState(0, relation.oid)
        run = state.run + 1
        if asked.whole:
            self._store(name, replace(state, run=run, asked=asked, ended=None))
        else:
            self._store(name, TableState(run, state.oid, member=state.member, asked=asked))
            self._progress.incomplete.add(name)
        self.wanted[name] = relation
        log.info("table to be read", table=name, run=run, reconcile=asked.since is not None)
        return run

    def pause(self, name: str, *, paused: bool) -> None:
        """Note whether a run is to wait."""
        state = self.states[name]
        self._store(name, replace(state, asked=replace(state.asked or Asked(), paused=paused)))

    def cancel(self, name: str, how: str = "cancelled") -> None:
        """Leave a run of a topic that lacks nothing: what has been read stays there, and is right."""
        state = self.states[name]
        assert state.asked is not None
        assert state.asked.whole
        self._store(name, replace(state, run=state.run + 1, asked=None, ended=_ended(state.run, state.asked, how)))
        self.wanted.pop(name, None)

    def copied(self, name: str) -> None:
        """Note that a run has read all that it was to read."""
        state = self.states[name]
        asked = state.asked
        if asked is not None and asked.whole and asked.where is None:
            state = replace(state, layout=asked.layout, lsn=asked.lsn, columns=asked.columns)
        if asked is not None:
            self._store(name, replace(state, asked=None, ended=_ended(state.run, asked, "done")))
        self._progress.incomplete.discard(name)

    def note_chunk(self, chunk: Chunk, run: int, *, done: bool, rows: int = 0, copied: int = 0) -> None:
        """Note that there is a chunk to read, or, with its rows, that it is read: a run that is cut short goes on.

        `rows` and `copied`, bytes of COPY's text, are what came out of it.
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
        """Drop the chunks of the run before: one with others has been planned, and the topic would grow by each run."""
        if (before := self.reads.get(table)) is not None:
            for n in range(before.chunks):
                self._send(chunk_key(self._source.slot, table, before.run, n), None)

    def planned(self, relation: Relation, layout: Layout, lsn: int) -> None:
        """Note how a table lies that is read now, with everything that was committed before `lsn`."""
        name, columns = relation.qualified_name, self._captured(relation)
        state = self.states[name]
        if state.asked is not None and state.asked.whole:
            # rows at rest are as they were until the run is done: of some, perhaps, it reads nothing
            self._store(name, replace(state, asked=replace(state.asked, layout=layout, lsn=lsn, columns=columns)))
        else:
            member = state.member or layout.member
            self._store(name, replace(state, layout=layout, lsn=lsn, columns=columns, member=member))

    def gone(self, name: str) -> None:
        """Let go of a table that is not there (under this name) any more; its topic stays as it is."""
        log.warning("table is gone, its topic stays as it is", table=name)
        self._store(name, TableState(self.states[name].run + 1 if name in self.states else 0, 0))
        self._progress.incomplete.discard(name)
        self.wanted.pop(name, None)

    def cannot_be_read(self, name: str) -> None:
        """Let a table be that has no key: its rows could not be told from those that the stream brings."""
        log.warning("table without a key: rows from before it was published are not on its topic", table=name)
        self.keyless.add(name)
        self._store(name, replace(self.states[name], asked=None))
        self._progress.incomplete.discard(name)

    def _replaced(self, relation: Relation, state: TableState, now: Layout | None) -> bool:
        """Another table has this name, or changes may be missing: what the topic holds must go."""
        name = relation.qualified_name
        log.warning("topic begins anew: another table, or published anew", table=name)
        self._renamed(relation)
        planned = state.layout
        if planned is not None and planned.oid == relation.oid and (now is None or planned.member == now.member):
            # it is this one that is being read already
            self._store(name, replace(state, oid=planned.oid, member=planned.member))
        else:
            self._store(name, TableState(state.run, relation.oid, member=now.member if now else 0))
            self.want(relation)
        return True

    def _renamed(self, relation: Relation) -> None:
        for name, state in list(self.states.items()):
            if state.oid == relation.oid and name != relation.qualified_name:
                log.warning("table renamed: a new topic", before=name, now=relation.qualified_name)
                self.gone(name)

    def _has_option(self, name: str, broken: Break) -> bool:
        """Whether a person has chosen what this column becomes; of a key nobody can, its old form would stay."""
        return broken.column != "" and self._options.of(f"{name}.{broken.column}") is not None

    def _captured(self, relation: Relation) -> tuple[str, ...]:
        return self._with_options(relation.qualified_name, [column.name for column in relation.columns])

    def _with_options(self, table: str, names: Iterable[str]) -> tuple[str, ...]:
        """Return what of `names` is on the topic, behind each name what the configuration makes of it."""
        options = ((name, self._options.of(f"{table}.{name}")) for name in names)
        return tuple(name + _words(option) for name, option in options if option is not EXCLUDED)

    def _rows_differ(self, state: TableState, now: Layout, columns: Sequence[str], ever: set[str]) -> bool:
        """Whether rows at rest may read differently; those of a column whose option is another by now do."""
        if state.layout is None:
            return False
        same = set(columns) & set(state.columns)
        return state.layout.rows_differ(now, _names(columns), _names(same), ever)

    def _store(self, name: str, state: TableState) -> None:
        self.states[name] = state
        self._send(table_key(self._source.slot, name), state.to_json())


def _ended(run: int, asked: Asked, how: str) -> Ended:
    return Ended(run, how, asked.where, asked.rate, asked.since is not None)


def _is_of(state: TableState, oid: int, now: Layout | None) -> bool:
    """Whether a topic holds this very table, with all changes since it was read.

    One that is not in the publication by now may come back: then it has another entry. Before a table is planned for
    the first time its entry is not known.
    """
    unknown = state.layout is None and state.member == 0
    return state.oid == oid and (now is None or now.member in (0, state.member) or unknown)


def _names(columns: Iterable[str]) -> list[str]:
    return [column.partition(_OPTION)[0] for column in columns]


def _words(option: ValueType | None) -> str:
    """Tell options apart without telling a salt."""
    if option is None:
        return ""
    return f"{_OPTION}{option.kind.name} {option.keep} {hashlib.sha256(option.salt).hexdigest()[:16]}"


def is_full(relation: Relation) -> bool:
    return relation.replica_identity is ReplicaIdentity.FULL


def _stop(name: str, found: Sequence[Break], *, may_begin_anew: bool = True) -> StateError:
    hints = []
    if may_begin_anew:
        hints.append('on_schema_change = "truncate"  # under [source]: the topic is emptied by a truncate, filled anew')
    columns = [f'"{name}.{each.column}"' for each in found if each.column]
    if len(columns) == len(found):
        hints.append(f"as_text = [{', '.join(columns)}]  # the column travels as PostgreSQL prints it, from now on")
    return StateError(
        "TR-407",
        f'table "{name}" has changed so that readers of its topic cannot follow',
        detail=f"{'; '.join(map(str, found))}. Nothing is lost: the slot keeps its place.",
        hint="\n       ".join(hints),
    )
