"""The record on a topic: names of headers, forms of keys and values, and what a reader must know to read them.

* Key: Confluent's framing (a zero byte, a 4-byte schema id) and the primary key in Avro.
* Value: the same framing and Debezium's envelope in Avro: `before`, `after`, `source`, `op`, `ts_ms`.
* A delete is its event (`op` d, `after` null) and then a tombstone (no value at all).
* A changed key is delete and tombstone of the old key and a create (`op` c) of the new one.
* A truncate is a control record with the key `TRUNCATE_KEY` in *every* partition: what lies before it in that partition
  is gone. Latest wins: within a partition, of all records with one key behind the last truncate, the last one is
  the state of that key; no value, or op d, means that there is no such row.
"""

from __future__ import annotations

import struct
from typing import Final

POSITION_HEADER: Final = "tailrace.position"
"""20 bytes, `Position.to_bytes`, on every record, tombstones too."""

SNAPSHOT_HEADER: Final = "tailrace.snapshot"
"""4 bytes, big-endian: the number of the snapshot run of that table; on snapshot rows only."""

TRUNCATE_KEY: Final = b"\x00\x00\x00\x00\x00truncate"
"""No row can have it: schema ids start at 1."""

Record = tuple[int, bytes, bytes | None]
"""Part of the change (0 to 3), key (empty: the table has none), value or None for a tombstone."""

_FRAMING = struct.Struct(">BI")
FRAMING_SIZE: Final = _FRAMING.size


def framing(schema_id: int) -> bytes:
    """Return Confluent's five bytes in front of an Avro body."""
    return _FRAMING.pack(0, schema_id)


def schema_id_of(raw: bytes) -> int:
    """Read the schema id of a framed key or value; ValueError if it is not framed."""
    if len(raw) < FRAMING_SIZE or raw[0] != 0:
        raise ValueError("not in Confluent's wire format")
    return int(_FRAMING.unpack_from(raw)[1])
