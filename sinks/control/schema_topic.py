"""The compacted schemas topic, ``{prefix}.tailrace.schemas``: id → schema, with or without a registry.

A record's key is the id (4 bytes, big-endian), its value JSON: `id`, `subject` (``{topic}-key`` or ``{topic}-value``),
`schema` (Avro, as a string), `registered` if a registry assigned the id; else ids count up from 1. The last record of a
subject is its newest shape.
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
    registered: bool = False

    def key(self) -> bytes:
        return self.id.to_bytes(4, "big")

    def value(self) -> bytes:
        value = {"id": self.id, "subject": self.subject, "schema": self.schema}
        return orjson.dumps(value | ({"registered": True} if self.registered else {}))

    @classmethod
    def from_value(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        return cls(value["id"], value["subject"], value["schema"], value.get("registered", False))
