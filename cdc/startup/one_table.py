"""Errors about one table at a start: park that table, or refuse the start for what the configuration gets wrong.

At a first start each of them refuses the start. Later the line is this: an error is the configuration's if the
configuration has changed since it worked. A configured key is compared with the key of the topic, column options with
those that the table was last read with. Everything else was changed in the database, and parks that table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.cdc.tables.registry import has_same_options
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.error_codes import parks_table
from tailrace.schemas.errors import TailraceError, all_of
from tailrace.schemas.records.layout import TableState, TableStatus
from tailrace.schemas.relation import Relation

_OF_KEYS: Final = frozenset({"TR-122", "TR-123", "TR-124", "TR-133"})
"""Errors of ``source.keys``."""
_OF_OPTIONS: Final = frozenset({"TR-128", "TR-129"})
"""Errors of column options."""


@dataclass(frozen=True, slots=True)
class Before:
    """What earlier starts have left, by table name: states, and the key columns of topics with records (or none)."""

    states: Mapping[str, TableState] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Refusals:
    """The tables that cannot be captured, and the errors that refuse the start; `notes` are errors that do not."""

    def __init__(
        self, source: Source, options: ColumnOptions, before: Before | None, *, collects: bool = False
    ) -> None:
        """`before` is None at a first start. If it `collects`, `check` raises nothing, so that all errors are found."""
        self.options = options
        self.is_first = before is None
        self.notes: list[TailraceError] = []
        self._collects = collects
        self._source = source
        self._before = before
        self._parked: dict[str, tuple[Relation, list[TailraceError]]] = {}
        self._errors: list[TailraceError] = []

    def add(self, relation: Relation | None, error: TailraceError) -> None:
        """Add an error, of one table if there is a `relation`."""
        if relation is not None and self._parks(relation, error):
            into = self._parked.setdefault(relation.qualified_name, (relation, []))[1]
        else:
            into = self._errors
        if str(error) not in map(str, into):
            into.append(error)

    @property
    def refused(self) -> tuple[TailraceError, ...]:
        """The errors that park a table, one by one."""
        return tuple(error for _, errors in self._parked.values() for error in errors)

    def add_all(self, errors: Iterable[TailraceError]) -> None:
        """Add errors that are not about one table."""
        for error in errors:
            self.add(None, error)

    def check(self) -> None:
        """Raise one error with all that refuse the start."""
        if self._errors and not self._collects:
            raise all_of(self._errors)

    @property
    def errors(self) -> tuple[TailraceError, ...]:
        """The errors that refuse the start, one by one."""
        return tuple(self._errors)

    def left(self, relations: Iterable[Relation]) -> list[Relation]:
        """Return those of `relations` without an error."""
        return [each for each in relations if each.qualified_name not in self._parked]

    def newcomers(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of the tables `names`, of which only one can have its topic, that have none so far."""
        states = self._before.states if self._before is not None else {}
        out = (None, TableStatus.GONE, TableStatus.PARKED)
        new = [name for name in names if name not in states or states[name].status in out]
        return new or names[-1:]

    @property
    def parked(self) -> tuple[tuple[Relation, TailraceError], ...]:
        """The tables to be parked, each with its errors as one."""
        return tuple((relation, all_of(errors)) for relation, errors in self._parked.values())

    def _parks(self, relation: Relation, error: TailraceError) -> bool:
        before = self._before
        if before is None or self._source.on_table_error == "stop" or not parks_table(error.code):
            return False
        name = relation.qualified_name
        state = before.states.get(name)
        if state is not None and state.status is TableStatus.PARKED:
            return True
        if error.code in _OF_KEYS:
            return set(self._source.keys.get(name, ())) == set(before.keys.get(name, ()))
        if error.code in _OF_OPTIONS:
            return state is None or has_same_options(state, self.options, name)
        return True
