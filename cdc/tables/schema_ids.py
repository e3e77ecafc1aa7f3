"""Schemas of all topics and their ids, as stored on the schemas topic.

Ids are assigned sequentially, or by a schema registry. The registry is called only for new schemas, so tables with a
known shape continue while it is unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing

import structlog

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError, StateError
from tailrace.schemas.evolution import column_names
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.http.registry import COPY_ANEW, Registry, another_registry
from tailrace.sinks.kafka.producer import KafkaSink

log = structlog.get_logger()


class SchemaIds:
    """The newest schema of each subject. Bounded by the number of shapes that tables have ever had."""

    def __init__(
        self, sink: KafkaSink, topic: str, stored: Iterable[StoredSchema], registry: Registry | None = None
    ) -> None:
        """`stored` are the schemas on `topic`, oldest first.

        StateError (TR-347) if their ids were not assigned by the source that is configured now.
        """
        self._sink = sink
        self._topic = topic
        self._registry = registry
        self._newest: dict[str, StoredSchema] = {}
        self._all: dict[str, list[str]] = {}
        self._by_id: dict[int, StoredSchema] = {}
        self._last = 0
        for schema in stored:
            check_origin(schema, registered=registry is not None)
            self._keep(schema)

    def newest(self, subject: str) -> str | None:
        known = self._newest.get(subject)
        return known.schema if known else None

    def columns_ever(self, subject: str) -> set[str]:
        """Return all column names in all value schemas that the subject has ever had."""
        return {name for schema in self._all.get(subject, ()) for name in column_names(schema)}

    def id_of(self, subject: str, schema: str) -> int:
        """Return the id of a schema. A new schema is written in the Kafka transaction of its first record.

        A former schema that returns is written again, because readers use the last one of a subject. Raises SinkError
        or StateError if the schema must be registered and that fails.
        """
        known = self._newest.get(subject)
        if known is None or known.schema != schema:
            known = self._numbered(subject, schema)
            self._sink.send_ahead(self._topic, known.key(), known.value())
            self._keep(known)
        return known.id

    def _numbered(self, subject: str, schema: str) -> StoredSchema:
        if self._registry is None:
            return StoredSchema(self._last + 1, subject, schema)
        found = StoredSchema(self._registry.register(subject, schema), subject, schema, registered=True)
        other = self._by_id.get(found.id, found)
        if other != found:
            raise _taken(found, other)
        return found

    def _keep(self, stored: StoredSchema) -> None:
        self._last = max(self._last, stored.id)
        self._by_id[stored.id] = stored
        self._newest[stored.subject] = stored
        self._all.setdefault(stored.subject, []).append(stored.schema)


def check_origin(stored: StoredSchema, *, registered: bool) -> None:
    """Raise StateError (TR-347) if the id of `stored` was not assigned by the source that is configured now."""
    if stored.registered != registered:
        raise _another_origin(stored)


def check_registry(config: Config) -> None:
    """Raise SinkError if a registry is configured and does not answer. Called before anything is created."""
    if config.registry is not None:
        with closing(Registry(config.registry)) as registry:
            registry.check(None)


def open_registry(config: Config, stored: Sequence[StoredSchema], opened: ExitStack) -> Registry | None:
    """Return the configured registry, to be closed with `opened`, or None. Log if it does not answer.

    StateError (TR-346) if the newest of `stored` has its id from another registry.
    """
    if config.registry is None:
        return None
    registry = Registry(config.registry)
    opened.callback(registry.close)
    try:
        registry.check(stored[-1] if stored and stored[-1].registered else None)
    except SinkError as error:
        details = {"code": error.code, "error": error.message, "detail": error.detail}
        log.warning("schema registry unavailable: continuing until a new schema appears", **details)
    return registry


def _another_origin(stored: StoredSchema) -> StateError:
    now, before = ("not set", "assigned by a registry") if stored.registered else ("set", "assigned by Tailrace")
    return StateError(
        "TR-347",
        f"registry.url is {now}, but the ids of the schemas on the topics are {before}",
        detail=f'Schema {stored.id} of subject "{stored.subject}" is one of them. One id could have two'
        " schemas, and readers could use the wrong one.",
        hint=f"Undo the change of registry.url, or {COPY_ANEW}",
    )


def _taken(found: StoredSchema, other: StoredSchema) -> StateError:
    return another_registry(
        f'the registry assigns id {found.id} to a schema of subject "{found.subject}", but another schema has it',
        f'On the topics, this id belongs to subject "{other.subject}".',
    )
