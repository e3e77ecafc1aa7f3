"""Table layout from the catalog: detects DDL that changes stored rows without changes in the WAL.

An ALTER TABLE sends no rows through the WAL's stream, even if it changes them: by a new column with a default, a
renamed column, a type change with a USING clause. Column numbers (never reused), files (a rewrite makes new ones) and
the version of each column's catalog row (`xmin`) show which of these it was. An ALTER TYPE does not even touch the
table, so the layout includes the types inside a column's type, at any depth.
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
"""Oids of text and varchar: a change between them without a rewrite leaves every value's text the same."""


_ATTACHED: Final = 1
"""Entry of an attached partition in records of older versions, which stored no number; never a transaction's xid."""


class RowsAtRest(IntEnum):
    """The possible difference of rows between two layouts; each value includes the previous one."""

    SAME = 0
    DIFFER = 1
    """A value may read differently, or a row may have been added without a change in the WAL."""
    MISSING = 2
    """Rows may have been deleted without a delete in the WAL."""
    REKEYED = 3
    """The key of a row may read differently, so its record under the old key would remain."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of `pg_attribute`; `filled`: rows written before the column was added may have a value in it.

    `inside` has the oids of the enums and composites in the column's type, at any depth.
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
    """The parts of an enum or composite type that determine its values' text and that ALTER TYPE changes.

    `parts` are (oid, label) of an enum's values or (number, type) of a composite's attributes, whose names do not
    appear in the text.
    """

    oid: int
    is_enum: bool
    parts: tuple[tuple[int, str], ...]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(value["oid"], value["is_enum"], tuple((number, text) for number, text in value["parts"]))

    def prints_as(self, now: TypeForm) -> bool:
        """Return whether every value stored under this form has the same text under the later form `now`."""
        if self.is_enum:
            labels = dict(self.parts)
            return all(labels.get(oid, label) == label for oid, label in now.parts)
        return self.parts == now.parts


@dataclass(frozen=True, slots=True)
class Layout:
    """A table in the catalog.

    `key` is its primary key.
    `member` is the oid of its entry in the publication. It changes if the table is removed and added again, or if its
    row filter or column list changes. If its schema is published, or a table that it is a partition of, it is a number
    that changes with each new entry of that and each move into it. It is 0 for a publication of all tables.
    `files` are (oid, relfilenode, entry) of the table or of its leaf partitions. `entry` is 0 if the leaf was created
    as a partition. An attached leaf may already have had rows: each ATTACH PARTITION of it, or of a table between it
    and this one, gives another number; older versions stored 1 instead.
    `types` are the forms of all types inside its columns' types. It is None in a layout from older versions, which
    stored only `labels`: (oid, label) of the values of the columns' own enums.
    `toast` is the oid of its TOAST table, 0 if it has none. An ALTER TABLE that rewrites the table changes it; VACUUM
    FULL, CLUSTER and TRUNCATE do not.
    `published` are (oid, version) of the publications that have it; None in a layout from older versions. The version
    is the `xmin` of the publication's catalog row, which each ALTER PUBLICATION of its options replaces.
    `publishes_all` is False if the first publication has it and some kind of change is published by none.
    """

    oid: int
    files: tuple[tuple[int, int, int], ...]
    key: tuple[int, ...]
    attributes: tuple[Attribute, ...]
    labels: tuple[tuple[int, str], ...] = ()
    member: int = 0
    types: tuple[TypeForm, ...] | None = ()
    toast: int = 0
    published: tuple[tuple[int, int], ...] | None = None
    publishes_all: bool = True

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        types, published = value.get("types"), value.get("published")
        return cls(
            value["oid"],
            tuple((oid, file, int(entry)) for oid, file, entry in value["files"]),
            tuple(value["key"]),
            tuple(Attribute.from_dict(attribute) for attribute in value["attributes"]),
            tuple((oid, label) for oid, label in value.get("labels", ())),
            value["member"],
            None if types is None else tuple(TypeForm.from_dict(each) for each in types),
            value.get("toast", 0),
            None if published is None else tuple((oid, version) for oid, version in published),
            value.get("publishes_all", True),
        )

    @property
    def oids(self) -> set[int]:
        """The oids of the table, of its leaf partitions, of the types inside its columns' types, of publications."""
        parts = {self.oid, *(oid for oid, _, _ in self.files), *(form.oid for form in self.types or ())}
        return parts | {oid for oid, _ in self.published or ()}

    def has(self, relation: Relation) -> bool:
        """Return whether the layout has all columns of `relation`, with the same names and types."""
        here = {(each.name, each.type_oid, each.typmod) for each in self.attributes}
        return all((column.name, column.type_oid, column.typmod) in here for column in relation.columns)

    def rewritten(self, now: Layout) -> bool:
        """Return whether a known file changed: by ALTER TABLE, VACUUM FULL, CLUSTER or TRUNCATE."""
        before = {oid: file for oid, file, _ in self.files}
        return any(before.get(oid, file) != file for oid, file, _ in now.files)

    def attached(self, now: Layout) -> bool:
        """Return whether a table that may have had rows has become a partition."""
        before = {oid for oid, _, _ in self.files}
        return any(entry != 0 and oid not in before for oid, _, entry in now.files)

    def _attached_again(self, now: Layout) -> bool:
        """Return whether a partition was detached for a time, whose row changes are not in the WAL's stream."""
        before = {oid: entry for oid, _, entry in self.files}
        again = ((before.get(oid, entry), entry) for oid, _, entry in now.files)
        return any(was not in (entry, _ATTACHED) for was, entry in again)

    def _partition_rewritten(self, now: Layout) -> bool:
        """Return whether a partition has another file: its TRUNCATE is not in the stream of a published root."""
        before = {oid: file for oid, file, _ in self.files if oid != self.oid}
        return any(before.get(oid, file) != file for oid, file, _ in now.files)

    def _logged_again(self, now: Layout) -> bool:
        """Return whether a table may have been SET UNLOGGED for a time, and so not published.

        The sign is a rewrite by ALTER TABLE that altered no column.
        """
        if 0 in (self.toast, now.toast) or self.toast == now.toast or not self.rewritten(now):
            return False
        versions = {each.number: each.version for each in self.attributes}
        return all(versions.get(each.number) == each.version for each in now.attributes)

    def _published_otherwise(self, now: Layout) -> bool:
        """Return whether a publication was altered, so that some changes may not have been published for a time."""
        before = dict(self.published or ())
        return any(before.get(oid, version) != version for oid, version in now.published or ())

    def _altered_types(self, now: Layout) -> set[int]:
        """Return the oids of the types whose stored values may have another text under the later layout `now`."""
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
        """Return the possible difference between rows read under this layout and under the later one `now`.

        `columns` are those captured now, `before` those captured under this layout, `ever` all that the topic has had:
        a reused name would show an earlier column's values in old records. `key` are the columns of the topic's key. In
        doubt, the result is the graver one.
        """
        found = RowsAtRest.SAME
        if self.attached(now):
            found = RowsAtRest.DIFFER
        not_streamed = self._partition_rewritten(now) or self._attached_again(now) or self._logged_again(now)
        if not_streamed or self._published_otherwise(now):
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
    """Return whether a column's stored values may read differently; `types` are the altered types."""
    if was is None:
        return now.filled or rewritten or now.name in ever
    if was.name != now.name or now.name not in before or any(oid in types for oid in now.inside):
        return True
    same_text = was.type_oid in _SAME_TEXT and now.type_oid in _SAME_TEXT
    if not same_text and was.type_oid != now.type_oid:
        return True
    # a USING clause can replace any value by any other, even without a change of type
    return rewritten and was.version != now.version


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a requested run that is not finished.

    `whole`: the topic is complete, so cuts are states during the run; `layout`, `lsn` and `columns` are then those of
    the rows that the run reads. `where` is an SQL condition, `rate` the limit in rows per second. `since` has the
    topic's offsets at the begin of the run, if it deletes the keys that it did not find at its end (reconcile).
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
    """The status of a captured table; `cdc.registry` has the transitions."""

    NEW = "new"
    """Named by the position record; its layout, if any, is from before the slot was created."""
    WANTED = "wanted"
    """To be read (again); no read is planned yet."""
    READING = "reading"
    """A read is planned and not finished."""
    STREAMING = "streaming"
    """The topic equals the table at every cut. A requested read may be running."""
    KEYLESS = "keyless"
    """The topic holds events: each row that was copied, and each change since then."""
    GONE = "gone"
    """No captured table has this name; the topic stays unchanged."""
    PARKED = "parked"
    """Set aside because of an error: its changes are not written until a person resumes it."""
    UNPUBLISHED = "unpublished"
    """Its changes, or some kinds of them, are not published; it is read again once all are."""

    @property
    def is_incomplete(self) -> bool:
        """True if no cut is a state of this table."""
        return self not in (TableStatus.STREAMING, TableStatus.KEYLESS, TableStatus.GONE)


@dataclass(frozen=True, slots=True)
class Parked:
    """The error of a parked table, with `lsn` of the commit that caused it (0: none) and time of parking.

    `since_ms` is in milliseconds since 1970. `left_out`: a person has requested that it stay parked.
    """

    code: str
    message: str
    hint: str
    lsn: int
    since_ms: int
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a requested run (`how`: "done", "cancelled", "failed") and its options, for display."""

    run: int
    how: str
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False


@dataclass(frozen=True, slots=True)
class HiddenColumn:
    """A column that the configuration hides: its table's oid, its attribute number, and its newest known names.

    `table` is ``schema.table``. `replaced`: another table has taken that name.
    """

    oid: int
    number: int
    table: str
    column: str
    replaced: bool = False

    @property
    def full_name(self) -> str:
        """``schema.table.column``, as in the configuration."""
        return f"{self.table}.{self.column}"


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table's topic, stored on the tables topic.

    `oid` is the source table, 0 once that has another name. `member` is its entry in the publication: if it differs,
    changes may be missing. `run` is the number of the newest snapshot run. `layout` is that of the stored rows with all
    that was committed before `lsn`, and `columns` are theirs; without a layout, a read has yet to begin. `asked` is set
    while a run that a person requested or paused is not finished, `ended` from its end until the next run begins.
    `status` is None in records of older versions, where the position record names the incomplete tables. `empty`: the
    topic's next record must be a truncate; `refill`: a read must also begin with one, because earlier changes may have
    had another form. `parked` has the error and the time if the table is parked. `remedy` are the statements that
    publish all changes of an unpublished table. Versions that do not know this status read such a record as that of a
    table to be read into an emptied topic. `hidden` are the columns that the configuration hides, in the newest shape,
    empty in records of older versions.
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
    remedy: str = ""
    hidden: tuple[HiddenColumn, ...] = ()

    def to_json(self) -> bytes:
        value = asdict(self)
        del value["remedy"]
        if self.status is TableStatus.UNPUBLISHED:
            value |= {"status": TableStatus.WANTED, "refill": True}
            value["unpublished"] = {"remedy": self.remedy, "refill": self.refill}
        return orjson.dumps(value)

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        if unpublished := value.get("unpublished"):
            value |= {"status": TableStatus.UNPUBLISHED, **unpublished}
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
            value.get("remedy", ""),
            tuple(HiddenColumn(**each) for each in value.get("hidden", ())),
        )
