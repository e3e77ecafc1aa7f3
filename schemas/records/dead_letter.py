"""Dead letters: changes that could not be stored exactly, as lossless JSON on {prefix}.tailrace.dead.

* Key: the framed key of the row, as on the table's topic; null if there is none or it cannot be stored itself.
* Value: `schema`, `table`; `column`, `type` and `reason` of the refusal; `op` (c u d r); `position`, and for changes of
  the stream `lsn`, `xid` and `ts_ms` of the commit; `old` and `new`: column → text as PostgreSQL prints it, or null.
* `unchanged` names the columns with unchanged TOAST values: the update did not change them, so the WAL lacks them.
* A text that is not UTF-8 (in an SQL_ASCII database) is ``{"hex": ...}``.
* A letter too large for Kafka has only the key columns, and `left_out_bytes`: the rest is in the source's row.
  `column` and `type` are null if the size of the whole record was refused.

Excluded columns are absent; masked and hashed ones are as on the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tailrace.schemas.config.columns import is_excluded
from tailrace.schemas.encode.refused import UNBOUNDED
from tailrace.schemas.hidden import hide
from tailrace.schemas.lsn import Position, format_lsn
from tailrace.schemas.types import Column

Texts = Sequence[bytes | bool | None]
"""The columns of a tuple: None for NULL, False for an unchanged TOAST value that the WAL lacks, True for a value that
is omitted because it is too large for any record."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a change in the stream. Snapshot rows have only a position."""

    position: Position
    lsn: int | None = None
    xid: int | None = None
    ts_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused change.

    `index` is the refused column's, or -1 if the record was too large. `old` is the tuple before the change
    (`old_is_key`: only its key). `size` is that of the replication message or COPY line, in bytes.
    """

    schema: str
    table: str
    columns: Sequence[Column]
    key_columns: Sequence[int]
    index: int
    type: str
    reason: str
    op: str
    old: Texts | None = None
    new: Texts | None = None
    old_is_key: bool = False
    size: int = 0

    @property
    def column(self) -> str | None:
        """The name of the refused column; None if the record was too large."""
        return self.columns[self.index].name if self.index >= 0 else None

    def to_json(self, place: Place, limit: int) -> bytes:
        """Return the value of its record, at most `limit` bytes unless the keys alone are larger."""
        every = range(len(self.columns))
        identity = [i for i in every if self.columns[i].is_key] if self.old_is_key else every
        size = self.size
        if self._shown_bytes() <= limit:
            whole = self._value(place, self._texts(self.old, identity), self._texts(self.new, every), {})
            if len(whole) <= limit:
                return whole
            size = len(whole)
        old, new = (self._texts(texts, self.key_columns) for texts in (self.old, self.new))
        return self._value(place, old, new, {"left_out_bytes": size})

    def _shown_bytes(self) -> int:
        """Return a lower bound of the texts' size in bytes, without decoding them."""
        shown = [
            text
            for texts in (self.old, self.new)
            for column, text in zip(self.columns, texts or (), strict=False)
            if not is_excluded(column)
        ]
        return UNBOUNDED if True in shown else sum(len(text) for text in shown if isinstance(text, bytes))

    def without_texts(self) -> DeadLetter:
        """Return the letter without the new row's texts except its key, for a row too large for any record."""
        keep = set(self.key_columns)
        new = [text if i in keep or text is None else True for i, text in enumerate(self.new or ())]
        return replace(self, new=new)

    def _value(self, place: Place, old: Any, new: Any, more: Mapping[str, int]) -> bytes:
        position = place.position
        return orjson.dumps(
            {
                "schema": self.schema,
                "table": self.table,
                "column": self.column,
                "type": self.type or None,
                "reason": self.reason,
                "op": self.op,
                "position": {
                    "epoch": position.epoch,
                    "commit_lsn": format_lsn(position.commit_lsn),
                    "ordinal": position.ordinal,
                },
                "lsn": None if place.lsn is None else format_lsn(place.lsn),
                "xid": place.xid,
                "ts_ms": place.ts_ms,
                "old": old,
                "new": new,
                "unchanged": [
                    column.name
                    for column, text in zip(self.columns, self.new or (), strict=False)
                    if text is False and not is_excluded(column)
                ],
                **more,
            }
        )

    def _texts(self, texts: Texts | None, indexes: Sequence[int]) -> dict[str, Any] | None:
        if texts is None:
            return None
        return {
            self.columns[i].name: self._text(self.columns[i], texts[i])
            for i in indexes
            if not isinstance(texts[i], bool) and not is_excluded(self.columns[i])
        }

    def _text(self, column: Column, text: bytes | bool | None) -> str | dict[str, str] | None:
        if not isinstance(text, bytes):
            return None
        shown = hide(text, column.option)
        try:
            return shown.decode()
        except UnicodeDecodeError:
            return {"hex": shown.hex()}
