"""The large values of one table: kept as stream and snapshot show them, given to updates that leave them out."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cdc.toast.catalog_facts import ToastShape
from tailrace.cdc.toast.store import Shape, ToastCache
from tailrace.schemas.encode.copy_text import split_copy
from tailrace.schemas.encode.row_codec import split_tuple
from tailrace.schemas.envelope import FRAMING_SIZE, Record
from tailrace.schemas.relation import Relation

Texts = list[bytes | bool | None]
"""A new row: None is NULL, False is not in the WAL."""

_MOST = 8_388_608
"""Bytes of values that are kept of one row. Larger ones are read again: to keep them takes three more copies."""


class TableToast:
    """The large values of one table of one shape."""

    def __init__(self, cache: ToastCache, relation: Relation, shape: ToastShape) -> None:
        self._cache = cache
        self._oid = relation.oid
        self._columns = [(i, relation.columns[i].name, least) for i, least in shape.least.items()]
        self._size = shape.size
        self._kept = Shape("", None, 0, False)

    @property
    def size(self) -> int:
        """The size of message, or of line of COPY, from which on the changes of the table must be shown to us."""
        return 0 if self._cache.has(self._oid) else self._size

    def seen(self, topic: str, mark: str | None, until: int) -> None:
        """Take a Relation message: forget all, unless the catalog proves that nothing has happened to the table."""
        kept = self._cache.shape(self._oid)
        if kept is not None and kept.sure and kept.topic == topic and kept.shape is not None and kept.shape == mark:
            self._kept = kept
            return
        self._cache.clear(self._oid)
        self._set(Shape(topic, mark, until, sure=False))

    def vouch(self) -> None:
        """Say that nothing has happened to the table between the rows that come now and the look at the catalog."""
        self._kept.sure = True
        self._set(self._kept)

    def _set(self, shape: Shape) -> None:
        self._kept = shape
        self._cache.set_shape(self._oid, shape)

    def took(self, message: bytes, pos: int, lsn: int, records: Sequence[Record]) -> int:
        """Take a change that has been sent, its first tuple's mark at `pos`, its commit at `lsn`; return `size`."""
        if not self._kept.sure and lsn >= self._kept.until:
            self.vouch()  # no Relation message since the catalog was asked, and the stream has passed that moment
        if not records:
            return self.size
        _, key, value = records[-1]
        key = key[FRAMING_SIZE:]
        if len(records) > 1:
            self._cache.erase(self._oid, records[0][1][FRAMING_SIZE:])
        if value is None or (len(message) < self._size and not self._cache.may_have(self._oid, key)):
            return self.size
        if message[pos] != 78:  # N
            _, pos = split_tuple(message, pos + 1, 0)
        self._put(key, split_tuple(message, pos + 1, _MOST)[0], evict=True)
        return self.size

    def row(self, key: bytes, line: bytes) -> None:
        """Take a row of a snapshot, a line of COPY's text format."""
        if len(line) > _MOST:
            self.gone(key)
        else:
            self._put(key[FRAMING_SIZE:], split_copy(line), evict=False)

    def _put(self, key: bytes, texts: Sequence[bytes | bool | None], *, evict: bool) -> None:
        there = self._cache.names(self._oid, key)
        for i, name, least in self._columns:
            text = texts[i]
            if text is False:
                continue
            if isinstance(text, bytes) and len(text) >= least:
                self._cache.put(self._oid, key, name, text, evict=evict)
            elif name in there:
                self._cache.erase(self._oid, key, [name])

    def fill(self, texts: Texts, key: bytes, old_key: bytes | None, lsn: int) -> int:
        """Put what is here in place of the values that are missing; return their number.

        With `old_key` they belonged to that key until now. A value that was read again may be that of a row that will
        have the key later: good enough for the key, whose cuts are no states until then, but not to go elsewhere with.
        """
        hits = 0
        key, source = key[FRAMING_SIZE:], (old_key or key)[FRAMING_SIZE:]
        for i, name, _ in self._columns:
            found = self._cache.get(self._oid, source, name) if texts[i] is False else None
            if found is None or (old_key is not None and found[1] > lsn):
                continue
            texts[i] = found[0]
            hits += 1
            if old_key is not None:
                self._cache.put(self._oid, key, name, found[0])
        return hits

    def reread(self, texts: Texts, key: bytes, fields: Sequence[bytes | None], until: int) -> None:
        """Keep what was missing in `texts` and read again: it may be newer than the stream up to the LSN `until`."""
        for i, name, _ in self._columns:
            field = fields[i]
            if texts[i] is not False:
                continue
            if field is None:
                self._cache.erase(self._oid, key[FRAMING_SIZE:], [name])
            else:
                self._cache.put(self._oid, key[FRAMING_SIZE:], name, field, until=until)

    def gone(self, key: bytes) -> None:
        """Forget a row that is not there any more when it is read again: what comes of it is not sent."""
        self._cache.erase(self._oid, key[FRAMING_SIZE:])

    def refused(self, records: Sequence[Record]) -> None:
        """Forget the rows of a change that could not be stored, given what is sent in its place."""
        for _, key, _ in records:
            self.gone(key)

    def clear(self) -> None:
        """Forget all values: the table was truncated."""
        self._cache.clear(self._oid)
