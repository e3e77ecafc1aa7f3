"""Schemas without a registry: the compacted topic ``{prefix}.tailrace.schemas`` holds id → schema.

A record's key is the id (4 bytes, big-endian), its value JSON: `id`, `subject` (``{topic}-key`` or ``{topic}-value``),
`schema` (Avro, as a string). Ids count up from 1; a larger id of a subject is a newer shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import orjson


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A record of the schemas topic."""

    id: int
    subject: str
    schema: str

    def key(self) -> bytes:
        return self.id.to_bytes(4, "big")

    def value(self) -> bytes:
        return orjson.dumps({"id": self.id, "subject": self.subject, "schema": self.schema})

    @classmethod
    def from_value(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        return cls(value["id"], value["subject"], value["schema"])
