"""The schemas of all topics, with their ids: what the schemas topic holds, and what is added to it."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.evolution import column_names
from sinks.kafka import KafkaSink
from sinks.schema_topic import StoredSchema


class SchemaIds:
    """By subject, the newest schema; bounded by the number of shapes that tables ever had."""

    def __init__(self, sink: KafkaSink, topic: str, stored: Iterable[StoredSchema]) -> None:
        """`stored` in the order of their ids, as `topic` holds them."""
        self._sink = sink
        self._topic = topic
        self._newest: dict[str, StoredSchema] = {}
        self._all: dict[str, list[str]] = {}
        self._last = 0
        for schema in stored:
            self._keep(schema)

    def newest(self, subject: str) -> str | None:
        known = self._newest.get(subject)
        return known.schema if known else None

    def columns_ever(self, subject: str) -> set[str]:
        """Return every name that a column of a table's values has ever had."""
        return {name for schema in self._all.get(subject, ()) for name in column_names(schema)}

    def id_of(self, subject: str, schema: str) -> int:
        """Return the id of a schema; a new one is written in the Kafka transaction of its first record.

        A shape that comes back gets a new id: readers take the greatest of a subject for the newest.
        """
        known = self._newest.get(subject)
        if known is None or known.schema != schema:
            known = StoredSchema(self._last + 1, subject, schema)
            self._sink.send_ahead(self._topic, known.key(), known.value())
            self._keep(known)
        return known.id

    def _keep(self, stored: StoredSchema) -> None:
        self._last = max(self._last, stored.id)
        self._newest[stored.subject] = stored
        self._all.setdefault(stored.subject, []).append(stored.schema)
