"""How a table lies in the database: by that we tell whether the rows on its topic still read as the source has them.

An ALTER TABLE sends no row through the WAL, whatever it does to them: a column added with a default, one that is
renamed, one whose type changes with a USING clause. Column numbers (never used twice), files (a rewrite makes new ones)
and the version of each column's catalog row (`xmin`) show which of these it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

from schemas.relation import Relation

FIRST_RUN: Final = 1
"""The number of a table's first snapshot run."""

_SAME_TEXT: Final = frozenset({25, 1043})
"""text and varchar: between them, without a rewrite, every value prints the same."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of `pg_attribute`; `filled`: a row written before the column was added may have a value in it."""

    number: int
    name: str
    type_oid: int
    typmod: int
    filled: bool
    version: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as the catalog has it, `key` is its primary key.

    `member` is the oid of its entry in the publication: one that was taken out and put in again has another, and so has
    one whose row filter or column list is another. It is 0 where all tables (of a schema) are published.
    `files` are (oid, relfilenode, attached) of it or of its leaves; `attached`: it had rows of its own, perhaps, before
    it became a part of this table. `labels` are (oid, label) of the values of its columns' enums.
    """

    oid: int
    files: tuple[tuple[int, int, bool], ...]
    key: tuple[int, ...]
    attributes: tuple[Attribute, ...]
    labels: tuple[tuple[int, str], ...] = ()
    member: int = 0

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(
            value["oid"],
            tuple((oid, file, attached) for oid, file, attached in value["files"]),
            tuple(value["key"]),
            tuple(Attribute(**attribute) for attribute in value["attributes"]),
            tuple((oid, label) for oid, label in value["labels"]),
            value["member"],
        )

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
        return any(attached and oid not in before for oid, _, attached in now.files)

    def rows_differ(
        self, now: Layout, columns: Collection[str], before: Collection[str], ever: Collection[str]
    ) -> bool:
        """Whether rows that were read under this layout may read differently under the later one `now`.

        `columns` are those that are captured now, `before` those that were, `ever` all that the topic has had: a name
        that comes back would show what an earlier column left in old records. In doubt the answer is True.
        """
        labels = dict(self.labels)
        if self.attached(now) or any(labels.get(oid, label) != label for oid, label in now.labels):
            return True
        known = {each.number: each for each in self.attributes}
        rewritten = self.rewritten(now)
        for each in now.attributes:
            if each.name not in columns:
                continue
            was = known.get(each.number)
            if was is None:
                differs = each.filled or rewritten or each.name in ever
            elif was.name != each.name or each.name not in before:
                differs = True
            else:
                same_text = was.type_oid in _SAME_TEXT and each.type_oid in _SAME_TEXT
                differs = not same_text and was.type_oid != each.type_oid
                # a USING clause can make any value of any other, also without a change of type
                differs = differs or (rewritten and was.version != each.version)
            if differs:
                return True
        return False


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
    still to begin. `asked` is there while a run is under way that a person has asked for, or paused,
    `ended` from then until the next run begins.
    """

    run: int
    oid: int
    layout: Layout | None = None
    lsn: int = 0
    columns: tuple[str, ...] = ()
    member: int = 0
    asked: Asked | None = None
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
            Ended(**ended) if ended else None,
        )
