"""Iceberg's deletion vectors as bytes, and the Puffin files that hold them.

A vector is the set of deleted positions of one data file: https://iceberg.apache.org/puffin-spec/, blob type
``deletion-vector-v1``. Parsing and writing do no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

_MAGIC: Final = b"PFA1"
_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_POSITION_FIELD: Final = 2147483645
"""Iceberg's reserved field id of `_pos`, over which a vector is computed."""
_CREATED_BY: Final = "Tailrace"


@dataclass(frozen=True, slots=True)
class Blob:
    """The place of one vector in a Puffin file, in bytes, and its number of positions."""

    offset: int
    length: int
    cardinality: int


def puffin(vectors: Mapping[str, Any]) -> tuple[bytes, dict[str, Blob]]:
    """Return a Puffin file with the vectors, and where each is; both by the path of the data file.

    A vector is a `pyroaring.BitMap64`, for that is Iceberg's portable form.
    """
    content, blobs, described = bytearray(_MAGIC), {}, []
    for path, positions in vectors.items():
        blob = _vector(positions)
        blobs[path] = Blob(len(content), len(blob), len(positions))
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITION_FIELD],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        content += blob
    footer = orjson.dumps({"blobs": described, "properties": {"created-by": _CREATED_BY}})
    content += _MAGIC + footer + struct.pack("<i", len(footer)) + bytes(4) + _MAGIC
    return bytes(content), blobs


def positions(blob: bytes) -> Any:
    """Return the positions of a vector as `pyroaring.BitMap64`. ValueError if it is damaged."""
    from pyroaring import BitMap64

    (length,) = struct.unpack_from(">i", blob)
    body = blob[4 : 4 + length]
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if body[:4] != _VECTOR_MAGIC or zlib.crc32(body) != checksum:
        raise ValueError("not a deletion vector, or a damaged one")
    return BitMap64.deserialize(body[4:])


def _vector(positions: Any) -> bytes:
    body: bytes = _VECTOR_MAGIC + positions.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
