"""What becomes of a table's topic when the table, as the stream or a look at the catalog shows it, is another.

Pure functions, one row of the table below for each line that they return from:

    seen                                                             action
    nothing is known of the table                                    READ
    another table had its topic, or this one had another name        REFILL
    another table has its name                                       REFILL
    another entry in the publication: changes may be missing         REFILL
    a truncate of its topic is still to be sent                      EMPTY    (before a record only)
    columns that readers of old records cannot follow; another key   REFILL   (the registry refuses it if so configured)
    a column whose form a person has chosen                          READ
    values of the key may read differently at rest                   REFILL
    rows may be gone without a delete: a partition's TRUNCATE, or
    changes that were not published (detached, UNLOGGED, moved)      RECONCILE
    values may read differently at rest; rows came with a partition  READ
    columns, or how they lie, are others, but all rows read as ever  NOTE
    nothing of it, or it is to be read in any case                   NONE

The WAL says which shape a change has; what the catalog says besides may be later than that, or for a moment earlier.
So nothing rests on the two being of one moment: in doubt the table is read again, and a read comes after either.
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
"""Between a column's name and its option; no name has it."""


class Action(Enum):
    """What is to be done; the comment says what becomes of the topic."""

    NONE = "none"
    NOTE = "note"  # only the stored layout changes
    READ = "read"  # all rows are read again
    RECONCILE = "reconcile"  # all rows are read again, and keys that are not found are deleted
    REFILL = "refill"  # a truncate, then all rows are read again
    EMPTY = "empty"  # the truncate that an earlier REFILL asked for


@dataclass(frozen=True, slots=True)
class TopicPast:
    """What a topic has held: all names of columns ever, and the columns of its key; `used` if it has had records."""

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
) -> Action:
    """Decide before the first record of a shape, which the WAL has shown at `commit_lsn`, is sent.

    `now` is what the catalog says, `columns` are the captured ones with their options, `breaks` what readers cannot
    follow, `chosen` whether an option makes them follow.
    """
    if (replaced := _replaced(state, relation.oid, now, past)) is not None:
        return replaced
    assert state is not None
    if state.empty:
        return Action.EMPTY
    if breaks:
        return Action.REFILL
    if chosen:
        return Action.READ
    if not past.used or state.layout is None or commit_lsn < state.lsn or now is None:
        return Action.NONE
    if not now.has(relation):
        return _not_twice(state, Action.READ)
    return _not_twice(state, _at_rest(state, state.layout, now, columns, past))


def on_look(state: TableState | None, now: Layout, columns: tuple[str, ...], past: TopicPast) -> Action:
    """Decide about a table that a look at the catalog has found under the name of `state`."""
    if (replaced := _replaced(state, now.oid, now, past)) is not None:
        return replaced
    assert state is not None
    if state.layout is None:
        return Action.NONE
    return _not_twice(state, _at_rest(state, state.layout, now, columns, past))


def _not_twice(state: TableState, action: Action) -> Action:
    """Return what is left to do of a table that is to be read in any case: its read is not planned yet."""
    waits = state.status is TableStatus.WANTED and action is not Action.REFILL
    return Action.NONE if waits else action


def _replaced(state: TableState | None, oid: int, now: Layout | None, past: TopicPast) -> Action | None:
    """Return what to do if the topic is not the one of this very table with all its changes; None if it is."""
    if state is None or state.status is TableStatus.NEW:
        return Action.READ
    if state.oid == 0:
        return Action.REFILL if past.used else Action.READ
    if state.oid != oid:
        return Action.REFILL
    # Before a table is planned for the first time its entry is not known; a table that is in no publication by now may
    # come back, with another entry.
    unknown = state.layout is None and state.member == 0
    if now is not None and now.member not in (0, state.member) and not unknown:
        return Action.REFILL
    return None


def _at_rest(state: TableState, was: Layout, now: Layout, columns: tuple[str, ...], past: TopicPast) -> Action:
    # one whose option is another now reads differently
    same = set(columns) & set(state.columns)
    found = was.rows_at_rest(now, names(columns), names(same), past.ever, past.key)
    if found is not RowsAtRest.SAME:
        return _AT_REST[found]
    return Action.NOTE if (now, columns) != (was, state.columns) else Action.NONE


def names(columns: Iterable[str]) -> list[str]:
    """Return the names of columns that are given with their options."""
    return [column.partition(OPTION)[0] for column in columns]
