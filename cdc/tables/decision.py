"""Decide the action for a table's topic after DDL that the stream or a catalog inspection has shown.

Pure functions; each row of this table is a case of theirs:

    observation                                                      action
    not every kind of change is published                            UNPUBLISH (at a look only)
    the table is unknown                                             READ
    another table had this topic, or this table had another name     REFILL
    another table has this name                                      REFILL
    another publication entry: changes may be missing                REFILL
    its changes were not published, and are again                    RECONCILE (at a look only)
    a truncate of the topic is still to be sent                      EMPTY    (before a record only)
    columns that readers of old records cannot follow; another key   REFILL   (before a record only; STOP if so
                                                                              configured)
    a changed column with a configured option                        READ
    stored key values may read differently                           REFILL
    rows may be deleted without a delete in the WAL: TRUNCATE of a
    partition, or unpublished changes (detached, UNLOGGED, moved,
    the publication's options were altered)                          RECONCILE
    stored values may read differently; a partition brought rows     READ
    columns or their layout changed, but all rows read as before     NOTE
    no difference, or the table is to be read in any case            NONE

For a table without a key, the rows from "the table is unknown" to "another publication entry" apply; otherwise NONE,
except that before a record:

    its topic has records with keys: the table has lost its key      PARK
    columns that readers of old records cannot follow, and the
    topic is not to be emptied                                       PARK     (STOP if so configured)

and `TableRegistry.judge` decides one case itself:

    its changes were not published, and are again                    REFILL

A table under another name is unknown there, and so gets a new topic. Its former name is GONE: no table owns that topic.

The WAL gives the shape of a change. Other catalog facts may be later than that change, or briefly earlier. No decision
depends on the two being simultaneous: in doubt the table is read again, and that read comes after both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tailrace.schemas.evolution import Break
from tailrace.schemas.records.layout import Layout, RowsAtRest, TableState, TableStatus
from tailrace.schemas.relation import Relation

OPTION: Final = "\0"
"""Separator between a column's name and its option; a PostgreSQL name cannot contain it."""


class Action(Enum):
    """The action for a table's topic."""

    NONE = "none"
    NOTE = "note"  # only the stored layout changes
    READ = "read"  # all rows are read again
    RECONCILE = "reconcile"  # all rows are read again, and keys that are not found are deleted
    REFILL = "refill"  # a truncate, then all rows are read again
    EMPTY = "empty"  # the truncate of an earlier REFILL
    UNPUBLISH = "unpublish"  # the table is incomplete until all its changes are published
    PARK = "park"  # the table's changes are dropped until a person resumes it
    STOP = "stop"  # the daemon ends, and a person decides


@dataclass(frozen=True, slots=True)
class TopicPast:
    """History of a topic: all its column names ever, its key columns, and whether it has had records."""

    ever: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    used: bool = False


_AT_REST: Final = {
    RowsAtRest.DIFFER: Action.READ,
    RowsAtRest.MISSING: Action.RECONCILE,
    RowsAtRest.REKEYED: Action.REFILL,
}


def on_record(
    state: TableState | None,
    relation: Relation,
    commit_lsn: int,
    now: Layout | None,
    columns: tuple[str, ...],
    past: TopicPast,
    breaks: Collection[Break],
    *,
    chosen: bool,
    stops: bool = False,
) -> Action:
    """Return the action before the first record of a shape, seen at `commit_lsn` in the WAL, is sent.

    `now` is the layout in the catalog, `columns` are the captured columns with their options, `breaks` the
    incompatible schema changes without an option. `chosen` says that options cover such changes; it matters only
    without `breaks`. `stops`: the configuration says to stop at such changes of one table.
    """
    replaced = _replaced(state, relation.oid, now, past)
    same = state is not None and state.oid == relation.oid and not state.empty
    if stops and breaks and same and replaced in (None, Action.REFILL):
        return Action.STOP
    if replaced is not None:
        return replaced
    assert state is not None
    if state.empty:
        return Action.EMPTY
    if breaks:
        return Action.REFILL
    if state.status is TableStatus.UNPUBLISHED:
        return Action.NONE
    if chosen:
        return Action.READ
    if not past.used or state.layout is None or commit_lsn < state.lsn or now is None:
        return Action.NONE
    if not now.has(relation):
        return _not_twice(state, Action.READ)
    return _not_twice(state, _at_rest(state, state.layout, now, columns, past))


def on_look(state: TableState | None, now: Layout, columns: tuple[str, ...], past: TopicPast) -> Action:
    """Return the action for a table that a catalog inspection has found under the name of `state`."""
    unpublished = state is not None and state.status is TableStatus.UNPUBLISHED
    if not now.publishes_all:
        return Action.NONE if unpublished else Action.UNPUBLISH
    if (replaced := _replaced(state, now.oid, now, past)) is not None:
        return replaced
    assert state is not None
    if unpublished:
        return Action.RECONCILE
    if state.layout is None:
        return Action.NONE
    return _not_twice(state, _at_rest(state, state.layout, now, columns, past))


def on_events(
    state: TableState | None,
    oid: int,
    now: Layout | None,
    past: TopicPast,
    breaks: Collection[Break] = (),
    *,
    stops: bool = False,
) -> Action:
    """Return the action for a table without a key, seen in the stream or by a catalog inspection.

    Its topic holds events, each in the shape of its time. So it is read only if rows or changes may be missing.
    `breaks` and `stops` are as for `on_record`; an inspection has none.
    """
    action = Action.NONE
    if state is None or state.status not in (TableStatus.PARKED, TableStatus.UNPUBLISHED):
        action = _replaced(state, oid, now, past) or Action.NONE
    if breaks and action is Action.NONE and not (state is not None and state.refill):
        return Action.STOP if stops else Action.PARK
    return action


def on_key(past: TopicPast, *, has_key: bool) -> Action:
    """Return the action for a table with or without a key: PARK if its topic, compacted by key, cannot hold it."""
    return Action.PARK if past.key and past.used and not has_key else Action.NONE


def _not_twice(state: TableState, action: Action) -> Action:
    """Return NONE if the table already waits for a read that covers `action`; REFILL always stays."""
    waits = state.status is TableStatus.WANTED and action is not Action.REFILL
    return Action.NONE if waits else action


def _replaced(state: TableState | None, oid: int, now: Layout | None, past: TopicPast) -> Action | None:
    """Return the action if the topic belongs to another table or may lack changes of this one, else None."""
    if state is None or state.status is TableStatus.NEW:
        return Action.READ
    if state.oid == 0:
        return Action.REFILL if past.used else Action.READ
    if state.oid != oid:
        return Action.REFILL
    # Before a table's first read is planned, its publication entry is unknown. A table that is in no publication now
    # may return with another entry.
    unknown = state.layout is None and state.member == 0
    if now is not None and now.member not in (0, state.member) and not unknown:
        return Action.REFILL
    return None


def _at_rest(state: TableState, was: Layout, now: Layout, columns: tuple[str, ...], past: TopicPast) -> Action:
    # a column whose option has changed reads differently
    same = set(columns) & set(state.columns)
    found = was.rows_at_rest(now, names(columns), names(same), past.ever, past.key)
    if found is not RowsAtRest.SAME:
        return _AT_REST[found]
    return Action.NOTE if (now, columns) != (was, state.columns) else Action.NONE


def names(columns: Iterable[str]) -> list[str]:
    """Return the column names without their options."""
    return [column.partition(OPTION)[0] for column in columns]
