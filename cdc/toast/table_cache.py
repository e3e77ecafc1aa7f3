"""Cache of one table's large values, filled by stream and snapshot, for updates that omit them."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cdc.toast.catalog_facts import ToastShape
from tailrace.cdc.toast.store import Shape, ToastCache
from tailrace.schemas.encode.copy_text import split_copy
from tailrace.schemas.encode.row_codec import split_tuple
from tailrace.schemas.envelope import FRAMING_SIZE, Record
from tailrace.schemas.relation import Relation

Texts = list[bytes | bool | None]
"""The texts of a new row: None for NULL, False for a value that is not in the WAL."""

_MOST = 8_388_608
"""Maximum bytes of one cached row. Larger ones are reread: caching needs three more copies."""


class TableToast:
    """The cached large values of one table with one shape."""

    def __init__(self, cache: ToastCache, relation: Relation, shape: ToastShape) -> None:
        self._cache = cache
        self._oid = relation.oid
        self._columns = [(i, relation.columns[i].name, least) for i, least in shape.least.items()]
        self._size = shape.size
        self._kept = Shape("", None, 0, False)

    @property
    def size(self) -> int:
        """The minimum size, in bytes, of messages and COPY lines that must be passed to the cache."""
        return 0 if self._cache.has(self._oid) else self._size

    def seen(self, topic: str, mark: str | None, until: int) -> None:
        """Process a Relation message: clear the cache unless the catalog proves the table unaltered."""
        kept = self._cache.shape(self._oid)
        if kept is not None and kept.sure and kept.topic == topic and kept.shape is not None and kept.shape == mark:
            self._kept = kept
            return
        self._cache.clear(self._oid)
        self._set(Shape(topic, mark, until, sure=False))

    def vouch(self) -> None:
        """Note that the table was not altered between the catalog query and the rows that come now."""
        self._kept.sure = True
        self._set(self._kept)

    def _set(self, shape: Shape) -> None:
        self._kept = shape
        self._cache.set_shape(self._oid, shape)

    def took(self, message: bytes, pos: int, lsn: int, records: Sequence[Record]) -> int:
        """Process a sent change, with its first tuple's mark at `pos`, committed at `lsn`; return `size`."""
        if not self._kept.sure and lsn >= self._kept.until:
            self.vouch()  # no Relation message since the catalog query, and the stream has passed its LSN
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
        """Process a snapshot row, a line in COPY text format."""
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
        """Fill missing values in `texts` from the cache; return the number of values filled.

        With `old_key`, the values belonged to that key until now. A reread value may be that of a row that gets the key
        later. That is good enough for the same key, because no cut is a state until then, but not for another key.
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
        """Cache reread values for False in `texts`; until the LSN `until` they may be newer than the stream."""
        for i, name, _ in self._columns:
            field = fields[i]
            if texts[i] is not False:
                continue
            if field is None:
                self._cache.erase(self._oid, key[FRAMING_SIZE:], [name])
            else:
                self._cache.put(self._oid, key[FRAMING_SIZE:], name, field, until=until)

    def gone(self, key: bytes) -> None:
        """Erase a row that is missing in the source on a reread, because its change is not sent."""
        self._cache.erase(self._oid, key[FRAMING_SIZE:])

    def refused(self, records: Sequence[Record]) -> None:
        """Erase the rows of a refused change, given its substitute records."""
        for _, key, _ in records:
            self.gone(key)

    def clear(self) -> None:
        """Erase all values of the table, as after a truncate."""
        self._cache.clear(self._oid)
