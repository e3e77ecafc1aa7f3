"""How a table reads at rest: by that we tell whether the rows on its topic still read as the source has them.

An ALTER TABLE sends no row through the WAL, whatever it does to them: a column added with a default, one that is
renamed, one whose type changes with a USING clause. Column numbers (never used twice), files (a rewrite makes new ones)
and the version of each column's catalog row (`xmin`) show which of these it was. An ALTER TYPE does not even touch the
table: the types inside a column's type, at any depth, are a part of the layout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, Self

import orjson

from tailrace.schemas.relation import Relation

FIRST_RUN: Final = 1
"""The number of a table's first snapshot run."""

_SAME_TEXT: Final = frozenset({25, 1043})
"""text and varchar: between them, without a rewrite, every value prints the same."""


_ATTACHED: Final = 1
"""The entry of an attached partition as a version stored it that knew no number; no transaction has it as its xid."""


class RowsAtRest(IntEnum):
    """How rows that were read under one layout may read under a later one; each form includes those before it."""

    SAME = 0
    DIFFER = 1
    """Some value may read differently, or a row may have come without a change in the WAL."""
    MISSING = 2
    """Rows may be gone without a delete in the WAL."""
    REKEYED = 3
    """The key of a row may read differently: its record under the old key would stay."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of `pg_attribute`; `filled`: a row written before the column was added may have a value in it.

    `inside` are the oids of the enums and composites in the column's type, at any depth.
    """

    number: int
    name: str
    type_oid: int
    typmod: int
    filled: bool
    version: int
    inside: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(**(value | {"inside": tuple(value.get("inside", ()))}))


@dataclass(frozen=True, slots=True)
class TypeForm:
    """What decides how values of a type that ALTER TYPE can change print.

    `parts` are (oid, label) of an enum's values or (number, type) of a composite's attributes; the names of the latter
    are not printed.
    """

    oid: int
    is_enum: bool
    parts: tuple[tuple[int, str], ...]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(value["oid"], value["is_enum"], tuple((number, text) for number, text in value["parts"]))

    def prints_as(self, now: TypeForm) -> bool:
        """Whether every value that was stored under this form prints the same under the later one."""
        if self.is_enum:
            labels = dict(self.parts)
            return all(labels.get(oid, label) == label for oid, label in now.parts)
        return self.parts == now.parts


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as the catalog has it, `key` is its primary key.

    `member` is the oid of its entry in the publication: one that was taken out and put in again has another, and so has
    one whose row filter or column list is another. Where its schema is published, or a table that it is a partition of,
    it is a number that another entry of that, and each move into it, makes another; it is 0 where all tables are.
    `files` are (oid, relfilenode, entry) of it or of its leaves. `entry` is 0 where the leaf was made as a partition.
    Where it was attached it had rows of its own, perhaps, and each ATTACH PARTITION of it, or of a table between it and
    this one, gives another number; a version that did not store that number stored 1.
    `types` are the forms of all types inside its columns'; None in a layout that was stored by a version that knew
    `labels` only: (oid, label) of the values of its columns' own enums.
    `toast` is the oid of its TOAST table, 0 if it has none: an ALTER TABLE that rewrites the table makes another one;
    VACUUM FULL, CLUSTER and TRUNCATE do not.
    """

    oid: int
    files: tuple[tuple[int, int, int], ...]
    key: tuple[int, ...]
    attributes: tuple[Attribute, ...]
    labels: tuple[tuple[int, str], ...] = ()
    member: int = 0
    types: tuple[TypeForm, ...] | None = ()
    toast: int = 0

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        types = value.get("types")
        return cls(
            value["oid"],
            tuple((oid, file, int(entry)) for oid, file, entry in value["files"]),
            tuple(value["key"]),
            tuple(Attribute.from_dict(attribute) for attribute in value["attributes"]),
            tuple((oid, label) for oid, label in value.get("labels", ())),
            value["member"],
            None if types is None else tuple(TypeForm.from_dict(each) for each in types),
            value.get("toast", 0),
        )

    @property
    def oids(self) -> set[int]:
        """The oids of the table, of its leaves, and of the types inside its columns'."""
        return {self.oid, *(oid for oid, _, _ in self.files), *(form.oid for form in self.types or ())}

    def has(self, relation: Relation) -> bool:
        """Whether all columns of `relation` are there, under these names and with these types."""
        here = {(each.name, each.type_oid, each.typmod) for each in self.attributes}
        return all((column.name, column.type_oid, column.typmod) in here for column in relation.columns)

    def rewritten(self, now: Layout) -> bool:
        """Whether a file that both have known is another one by now: by ALTER TABLE, VACUUM FULL, CLUSTER, TRUNCATE."""
        before = {oid: file for oid, file, _ in self.files}
        return any(before.get(oid, file) != file for oid, file, _ in now.files)

    def attached(self, now: Layout) -> bool:
        """Whether a table with rows of its own has become a partition."""
        before = {oid for oid, _, _ in self.files}
        return any(entry != 0 and oid not in before for oid, _, entry in now.files)

    def _attached_again(self, now: Layout) -> bool:
        """Whether a partition was none for a while: no change of its rows from that time is in the WAL's stream."""
        before = {oid: entry for oid, _, entry in self.files}
        again = ((before.get(oid, entry), entry) for oid, _, entry in now.files)
        return any(was not in (entry, _ATTACHED) for was, entry in again)

    def _partition_rewritten(self, now: Layout) -> bool:
        """Whether a partition has another file: its TRUNCATE is not in the WAL's stream when the root is published."""
        before = {oid: file for oid, file, _ in self.files if oid != self.oid}
        return any(before.get(oid, file) != file for oid, file, _ in now.files)

    def _logged_again(self, now: Layout) -> bool:
        """Whether a table was SET UNLOGGED for a while, and so not published.

        That is a rewrite by ALTER TABLE that has altered no column.
        """
        if 0 in (self.toast, now.toast) or self.toast == now.toast or not self.rewritten(now):
            return False
        versions = {each.number: each.version for each in self.attributes}
        return all(versions.get(each.number) == each.version for each in now.attributes)

    def _altered_types(self, now: Layout) -> set[int]:
        """Return the oids of the types whose stored values may print differently under the later layout `now`."""
        if self.types is None:
            labels = dict(self.labels)
            enums = [form for form in now.types or () if form.is_enum]
            return {form.oid for form in enums if any(labels.get(oid, text) != text for oid, text in form.parts)}
        before = {form.oid: form for form in self.types}
        return {form.oid for form in now.types or () if form.oid in before and not before[form.oid].prints_as(form)}

    def rows_at_rest(
        self,
        now: Layout,
        columns: Collection[str],
        before: Collection[str],
        ever: Collection[str],
        key: Collection[str],
    ) -> RowsAtRest:
        """Say how rows that were read under this layout may read under the later one `now`.

        `columns` are those that are captured now, `before` those that were, `ever` all that the topic has had: a name
        that comes back would show what an earlier column left in old records. `key` are the columns of the topic's
        key. In doubt the answer is the graver one.
        """
        found = RowsAtRest.SAME
        if self.attached(now):
            found = RowsAtRest.DIFFER
        if self._partition_rewritten(now) or self._attached_again(now) or self._logged_again(now):
            found = RowsAtRest.MISSING
        types, rewritten = self._altered_types(now), self.rewritten(now)
        known = {each.number: each for each in self.attributes}
        for each in now.attributes:
            if each.name in columns and _differs(known.get(each.number), each, types, rewritten, before, ever):
                found = max(found, RowsAtRest.REKEYED if each.name in key else RowsAtRest.DIFFER)
        return found


def _differs(
    was: Attribute | None,
    now: Attribute,
    types: Collection[int],
    rewritten: bool,
    before: Collection[str],
    ever: Collection[str],
) -> bool:
    """Whether a column's values at rest may read differently; `types` are those that were altered."""
    if was is None:
        return now.filled or rewritten or now.name in ever
    if was.name != now.name or now.name not in before or any(oid in types for oid in now.inside):
        return True
    same_text = was.type_oid in _SAME_TEXT and now.type_oid in _SAME_TEXT
    if not same_text and was.type_oid != now.type_oid:
        return True
    # a USING clause can make any value of any other, also without a change of type
    return rewritten and was.version != now.version


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person wants of a run that is not done yet.

    `whole`: the topic lacks nothing, so cuts are states meanwhile; `layout`, `lsn` and `columns` are then those of the
    rows that the run reads. `where` is a condition in SQL, `rate` the most rows a second. `since` are the offsets of
    the topic where the run began, if keys that it does not find are to be deleted at its end.
    """

    whole: bool = False
    where: str | None = None
    rate: int | None = None
    paused: bool = False
    since: tuple[int, ...] | None = None
    layout: Layout | None = None
    lsn: int = 0
    columns: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        since, layout = value["since"], value["layout"]
        return cls(
            value["whole"],
            value["where"],
            value["rate"],
            value["paused"],
            None if since is None else tuple(since),
            Layout.from_dict(layout) if layout else None,
            value["lsn"],
            tuple(value["columns"]),
        )


class TableStatus(StrEnum):
    """Where a captured table is; the transitions are those of `cdc.registry`."""

    NEW = "new"
    """Named by the position record; a layout is that from before the slot was made."""
    WANTED = "wanted"
    """To be read (again); no read is planned yet."""
    READING = "reading"
    """A read is planned and not done."""
    STREAMING = "streaming"
    """The topic is the table as of every cut. A read that a person wants may be under way."""
    KEYLESS = "keyless"
    """The topic holds events; rows from before it was published cannot be read."""
    GONE = "gone"
    """No captured table has this name; the topic stays as it is."""
    PARKED = "parked"
    """Set aside for an error: its changes are not written until a person resumes it."""

    @property
    def is_incomplete(self) -> bool:
        """Whether no cut is a state of this table."""
        return self in (TableStatus.NEW, TableStatus.WANTED, TableStatus.READING, TableStatus.PARKED)


@dataclass(frozen=True, slots=True)
class Parked:
    """Why a table is parked: the error, the LSN of the commit that met it (0: none) and the time, ms since 1970.

    `left_out`: a person has said that it stays so.
    """

    code: str
    message: str
    hint: str
    lsn: int
    since_ms: int
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended that a person had asked for ("done", "cancelled", "failed"), and what was asked, for people."""

    run: int
    how: str
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False


@dataclass(frozen=True, slots=True)
class TableState:
    """What the topic of a table holds, as the tables topic keeps it.

    `oid` is the table that its rows come from, 0 once that has another name, and `member` its entry in the publication:
    with another one, changes may be missing. `run` is the number of the newest snapshot run, `layout` that of the rows
    at rest with all that was committed before `lsn`, and `columns` are those that they have. Without a layout a read is
    still to begin. `asked` is there while a run is under way that a person has asked for, or paused, `ended` from then
    until the next run begins. `status` is None in a record of a version that did not store it: there the position
    record says which tables are incomplete. `empty`: a truncate must be the next record of the topic; `refill`: also
    when the read begins, for changes from before it may have had another form. `parked` says why a table is parked, and
    since when.
    """

    run: int
    oid: int
    layout: Layout | None = None
    lsn: int = 0
    columns: tuple[str, ...] = ()
    member: int = 0
    asked: Asked | None = None
    status: TableStatus | None = None
    empty: bool = False
    refill: bool = False
    parked: Parked | None = None
    ended: Ended | None = None

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        layout, asked, ended = value["layout"], value.get("asked"), value.get("ended")
        return cls(
            value["run"],
            value["oid"],
            Layout.from_dict(layout) if layout else None,
            value["lsn"],
            tuple(value["columns"]),
            value["member"],
            Asked.from_dict(asked) if asked else None,
            TableStatus(value["status"]) if value.get("status") else None,
            value.get("empty", False),
            value.get("refill", False),
            Parked(**value["parked"]) if value.get("parked") else None,
            Ended(**ended) if ended else None,
        )
