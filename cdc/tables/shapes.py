"""Topic, schemas and encoder for each table shape that the stream or a snapshot shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import structlog

from tailrace.cdc.postgres.layouts import when_visible
from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.tables.decision import Action, TopicPast, on_key
from tailrace.cdc.tables.destinations import Destinations, record_limit
from tailrace.cdc.tables.registry import Subjects, TableRegistry, is_full
from tailrace.cdc.tables.schema_ids import SchemaIds
from tailrace.cdc.toast.facade import Toast
from tailrace.cdc.toast.table_cache import TableToast
from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.config.columns import ColumnOptions, is_excluded
from tailrace.schemas.config.model import Config
from tailrace.schemas.encode.encoder import Names, TableEncoder
from tailrace.schemas.encode.refused import ColumnRefused, RecordTooLarge
from tailrace.schemas.error_codes import parks_table
from tailrace.schemas.errors import DecodeError, SourceError, StateError, TailraceError
from tailrace.schemas.evolution import key_column_names
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.schemas.types import Column, type_name, value_type
from tailrace.sinks.http.registry import Refusal, SchemaRefused
from tailrace.sinks.kafka.outbox import Destination

log = structlog.get_logger()

_LARGE = frozenset({"text", "varchar", "bpchar", "bytea", "json", "jsonb", "xml", "hstore", "tsvector"})
"""Types with single values that may be too large for a record."""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table as of its newest Relation message.

    `columns` are the relation's columns with their options, `types` the names of their types.
    """

    relation: Relation
    key_columns: list[int]
    destination: Destination
    encoder: TableEncoder
    columns: tuple[Column, ...]
    types: tuple[str, ...]
    toast: TableToast | None = None

    @property
    def name(self) -> str:
        return self.relation.qualified_name

    def shown(self, texts: Sequence[bytes | bool | None]) -> list[bytes | bool | None]:
        """Return the texts of a tuple with NULL for excluded columns, so that none of them is fetched."""
        return [None if is_excluded(column) else text for column, text in zip(self.columns, texts, strict=True)]

    def refused(self, error: ColumnRefused, *others: ColumnRefused) -> SourceError:
        """Return the error, with columns and remedies, for inexact values or for a too large row."""
        if isinstance(error, RecordTooLarge):
            return SourceError(
                "TR-304",
                f'a row of table "{self.name}" makes a record that is larger than Kafka accepts',
                detail=f"{error.reason}: the limit is kafka.max_message_bytes, less 1 KiB for headers.",
                hint="\n       ".join(
                    (
                        "Raise kafka.max_message_bytes, and memory.limit if required.",
                        *self._without_large_columns(),
                        'on_table_error = "divert"  # such changes go to the dead-letter topic, the rest continues',
                    )
                ),
            )
        refused = [error, *others]
        names = {each.index: self.relation.columns[each.index].name for each in refused}

        def listed(indexes: Iterable[int]) -> str:
            return ", ".join(f'"{self.name}.{names[index]}"' for index in indexes)

        remedies = [f"as_text = [{listed(names)}]  # under [source]: the column is text, as PostgreSQL prints it"]
        if hidden := [index for index in names if index not in self.key_columns]:
            remedies.append(f"exclude = [{listed(hidden)}]  # leaves it out of the topic")
        remedies.append('on_table_error = "divert"  # such changes go to the dead-letter topic, the rest continues')
        columns = ", ".join(f'"{name}" ({self.types[index]})' for index, name in names.items())
        what = f"a value of column {columns}" if not others else f"values of columns {columns}"
        reasons = [each.reason if not others else f"{names[each.index]}: {each.reason}" for each in refused]
        return SourceError(
            "TR-220",
            f'{what} of table "{self.name}" cannot be stored exactly',
            detail="; ".join(reasons) + ".",
            hint="\n       ".join(remedies),
        )

    def _without_large_columns(self) -> list[str]:
        """Return the configuration line that excludes a potentially large column, or an empty list."""
        large = [
            f'"{self.name}.{column.name}"'
            for index, (column, kind) in enumerate(zip(self.columns, self.types, strict=True))
            if (kind in _LARGE or kind.endswith("[]")) and index not in self.key_columns and not is_excluded(column)
        ]
        others = f", or {', '.join(large[1:])}" if large[1:] else ""
        return [f"exclude = [{large[0]}]  # under [source]: leaves a large column out{others}"] if large else []


class Tables:
    """All captured tables by oid. Memory is bounded by the number of tables in the publication.

    `on_emptied` is called with a table whose topic must be emptied before the next record. `is_copied_later` says of a
    table without a key that is being read whether its rows will include the changes of the present transaction.
    """

    def __init__(
        self,
        config: Config,
        catalog: SourceCatalog,
        options: ColumnOptions,
        schema_ids: SchemaIds,
        registry: TableRegistry,
        destinations: Destinations,
        toast: Toast,
    ) -> None:
        self.registry = registry
        self.destinations = destinations
        self.toast = toast
        self._catalog = catalog
        self._options = options
        self._schema_ids = schema_ids
        self._kafka = config.kafka
        self._topics = Topics(config.kafka.prefix)
        self._stops = config.source.on_table_error == "stop"
        self._seen: dict[int, tuple[Relation, int]] = {}
        self._by_oid: dict[int, CapturedTable] = {}
        self._outside: set[int] = set()  # oids not captured under the name in their newest Relation message
        self._unchanged: dict[int, CapturedTable] = {}
        """Answers of `captured` that hold until a Relation message or another version of the registry: in transactions
        of a few rows, there are as many questions as rows."""
        self._unchanged_since = 0
        self.on_emptied: Callable[[CapturedTable], None] = lambda table: None
        self.is_copied_later: Callable[[str], bool] = lambda name: True

    def for_record(self, oid: int) -> CapturedTable:
        """Return the table for a record that is about to be sent. Raises the errors of `adopt`."""
        table = self._by_oid.get(oid)
        if table is None or self.registry.must_be_emptied(table.name):
            return self.adopt(oid)
        return table

    def captured(self, oid: int, lsn: int = 0) -> CapturedTable | None:
        """Return the table of a change in the stream; None if the change is to be counted and dropped.

        A table whose shape cannot be adopted is parked, as of the commit at `lsn`, if the configuration says so.
        """
        if self._unchanged_since != self.registry.version:
            self._unchanged.clear()
            self._unchanged_since = self.registry.version
        if (known := self._unchanged.get(oid)) is not None:
            return known
        table = self.for_rows(oid, lsn)
        if table is None:
            return None
        if table.key_columns:
            self._unchanged[oid] = table
        elif self.registry.is_read_whole(table.name) and self.is_copied_later(table.name):
            return None
        return table

    def for_rows(self, oid: int, lsn: int = 0) -> CapturedTable | None:
        """Return the table of rows that are read; otherwise like `captured`."""
        if self.is_ignored(oid):
            if oid in self._outside:
                # the topic of its captured name lacks this change
                self.registry.left(self._seen[oid][0])
            return None
        try:
            return self.for_record(oid)
        except TailraceError as error:
            if not self.park(oid, error, lsn):
                raise
            return None

    def is_ignored(self, oid: int) -> bool:
        """Return whether a table's changes are dropped: its name is outside the capture set, or it is parked."""
        return oid in self._outside or (oid in self._seen and self.registry.is_parked(self._seen[oid][0]))

    def park(self, oid: int, error: TailraceError, lsn: int) -> bool:
        """Park a table for an error that concerns it alone; False if it does not, or if the daemon is to stop."""
        if self._stops or not parks_table(error.code) or oid not in self._seen:
            return False
        self.set_aside(self._seen[oid][0], error, lsn)
        return True

    def set_aside(self, relation: Relation, error: TailraceError, lsn: int) -> None:
        """Park a table, so that it `is_ignored`. The caller must make the row path forget it."""
        table = self._by_oid.pop(relation.oid, None)
        if table is not None and table.toast is not None:
            table.toast.clear()
        self.registry.park(relation, error, lsn)

    def see(self, relation: Relation, commit_lsn: int = 0) -> None:
        """Note a table's shape as of `commit_lsn`, without adopting it.

        After a restart the server shows shapes again that are older than the topic's.
        """
        self._seen[relation.oid] = relation, commit_lsn
        log.debug("shape", table=relation.qualified_name, oid=relation.oid, columns=len(relation.columns))
        self._by_oid.pop(relation.oid, None)
        self._unchanged.pop(relation.oid, None)
        if self._catalog.capture_set.captures(relation.schema, relation.name):
            self._outside.discard(relation.oid)
        else:
            self._outside.add(relation.oid)

    def seen(self, oid: int) -> tuple[Relation, int] | None:
        """Return the newest shape of a table and the LSN as of which it was seen."""
        return self._seen.get(oid)

    def want(self, relation: Relation) -> None:
        """Schedule a full read of a table."""
        self.registry.want(relation)

    def has_key(self, relation: Relation) -> bool:
        """Return whether a table has a key. Raises the errors of `adopt` about its key and its column options."""
        topic = self._topics.table(relation.schema, relation.name)
        keys = self._catalog.keys.of(relation)
        self._check_key(relation, topic, self.past(relation.schema, relation.name), keys)
        self._options.applied(relation, keys)
        return bool(keys)

    def key_schema(self, table: CapturedTable) -> tuple[int, str]:
        """Return the id and the schema of a table's keys; the table must have a key."""
        subject = f"{table.destination.topic}-key"
        schema = self._schema_ids.newest(subject)
        assert schema is not None
        return self._schema_ids.id_of(subject, schema), schema

    def past(self, schema: str, table: str) -> TopicPast:
        """Return the history of a table's topic."""
        topic = self._topics.table(schema, table)
        key = self._schema_ids.newest(f"{topic}-key")
        ever = self._schema_ids.columns_ever(f"{topic}-value")
        return TopicPast(frozenset(ever), tuple(key_column_names(key)) if key else (), bool(ever))

    def adopt(self, oid: int) -> CapturedTable:
        """Adopt the newest shape of a table before a record is sent.

        Query the catalog, decide the action for the topic, create a missing topic, and write the schemas. StateError if
        a person must decide, SinkError if Kafka or the schema registry refuses.
        """
        if oid not in self._seen:
            raise DecodeError(f"change of relation {oid}, which no Relation message has described", 1, 1, 0)
        relation, commit_lsn = self._seen[oid]
        topic = self._topics.table(relation.schema, relation.name)
        key_subject, value_subject = f"{topic}-key", f"{topic}-value"
        old_key, old_value = self._schema_ids.newest(key_subject), self._schema_ids.newest(value_subject)
        old = Subjects(old_key or "", old_value) if old_value else None
        now = when_visible(partial(self._catalog.layout, oid), relation)
        keys = self._key_of(relation, commit_lsn, now, old)
        past = self.past(relation.schema, relation.name)
        self._check_key(relation, topic, past, keys)
        self.registry.check_hidden(relation, now)
        self.destinations.ensure(relation)
        typed = self._options.applied(relation, keys)
        new = Subjects(
            key_schema([typed.columns[i] for i in keys], self._catalog.types, topic) if keys else "",
            value_schema(typed, self._catalog.types, topic),
        )
        emptied = False
        if keys:
            emptied = self.registry.adopt(relation, commit_lsn, now, old, new, past)
        else:
            self.registry.adopt_events(relation, now, old, new, past)
        key_id, value_id = self._ids(relation, topic, new)
        table = CapturedTable(
            relation,
            keys,
            self.destinations.of(topic),
            TableEncoder(
                Names(version("tailrace"), self._kafka.prefix, self._catalog.database, relation.schema, relation.name),
                [value_type(column, self._catalog.types) for column in typed.columns],
                keys,
                key_id,
                value_id,
                record_limit(self._kafka),
            ),
            typed.columns,
            tuple(type_name(column, self._catalog.types) for column in relation.columns),
            self.toast.table(relation, topic, keys, typed.columns),
        )
        self._by_oid[oid] = table
        self.registry.adopted()
        if emptied:
            self.on_emptied(table)
        return table

    def _ids(self, relation: Relation, topic: str, new: Subjects) -> tuple[int, int]:
        """Return the ids of the key schema (0 without a key) and the value schema.

        SchemaRefused, a StateError, with all schemas that the registry refuses.
        """
        ids: list[int] = []
        refused: list[Refusal] = []
        for subject, schema in ((f"{topic}-key", new.key), (f"{topic}-value", new.value)):
            try:
                ids.append(self._schema_ids.id_of(subject, schema) if schema else 0)
            except SchemaRefused as error:
                refused += error.refusals
        if refused and self._stops:
            raise SchemaRefused(refused)
        if refused:
            raise SchemaRefused(refused, f"tailrace table resume {relation.qualified_name}")
        key_id, value_id = ids
        return key_id, value_id

    def _key_of(self, relation: Relation, commit_lsn: int, now: Layout | None, old: Subjects | None) -> list[int]:
        """Return the indexes of the key columns. Under FULL the WAL does not mark them; they stay as before."""
        frozen = old is not None and old.key and is_full(relation) and not self._catalog.keys.is_declared(relation)
        if old is not None and frozen and not self.registry.key_changed(relation, commit_lsn, now):
            index = {column.name: i for i, column in enumerate(relation.columns)}
            names = key_column_names(old.key)
            if all(name in index for name in names):
                return [index[name] for name in names]
        return self._catalog.keys.of(relation)

    def _check_key(self, relation: Relation, topic: str, past: TopicPast, keys: Sequence[int]) -> None:
        """Raise StateError (TR-406), which parks the table, if it has lost its key."""
        if on_key(past, has_key=bool(keys)) is Action.PARK:
            raise StateError(
                "TR-406",
                f'table "{relation.qualified_name}" has lost its key',
                detail=f'The records of its topic "{topic}" have a key, and it cannot hold records without one.',
                hint="Give it a key of the same columns again. Or, instead:\n       "
                f'prefix = "{self._kafka.prefix}_2"  # under [kafka], with another slot: copies all tables again\n'
                f"       tailrace table leave-out {relation.qualified_name}  # or continue without it",
            )

    def schema_id(self, subject: str, schema: str) -> int:
        """Return the id of a schema. A new schema is written in the Kafka transaction of its first record."""
        return self._schema_ids.id_of(subject, schema)
