"""The format of a topic's records: header names, keys and values, and the rules for readers.

* Key: Confluent's framing (a zero byte, a 4-byte schema id) and the primary key in Avro.
* Value: the same framing and Debezium's envelope in Avro: `before`, `after`, `source`, `op`, `ts_ms`.
* A delete is its event (`op` d, `after` null) and then a tombstone (null value).
* A changed key is a delete and a tombstone of the old key and a create (`op` c) of the new one.
* A truncate is a control record with the key `TRUNCATE_KEY` in *every* partition: it deletes the rows of all earlier
  records of that partition. Latest wins: within a partition, of all records with one key after the last truncate, the
  last one is the state of that key; a null value, or op d, means that the row does not exist.
"""

from __future__ import annotations

import struct
from typing import Final

POSITION_HEADER: Final = "tailrace.position"
"""20 bytes, `Position.to_bytes`, on every record, including tombstones."""

SNAPSHOT_HEADER: Final = "tailrace.snapshot"
"""4 bytes, big-endian: the number of the table's snapshot run; only on snapshot rows."""

TRUNCATE_KEY: Final = b"\x00\x00\x00\x00\x00truncate"
"""No row can have this key, because schema ids start at 1."""

Record = tuple[int, bytes, bytes | None]
"""Part of the change (0 to 3), key (empty if the table has none), value (None for a tombstone)."""

_FRAMING = struct.Struct(">BI")
FRAMING_SIZE: Final = _FRAMING.size


def framing(schema_id: int) -> bytes:
    """Return the five bytes of Confluent's wire format before an Avro body."""
    return _FRAMING.pack(0, schema_id)


def schema_id_of(raw: bytes) -> int:
    """Return the schema id of a framed key or value; ValueError if it is not framed."""
    if len(raw) < FRAMING_SIZE or raw[0] != 0:
        raise ValueError("not in Confluent's wire format")
    return int(_FRAMING.unpack_from(raw)[1])
