"""Load the three sides of a table, source, topic and view, into the comparison in canonical form.

`cdc.operations.verify` decides on the data to read and when; this module converts them to comparable keys and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.hidden import hide
from tailrace.schemas.types import Kind, ValueType
from tailrace.sinks.kafka.read_topic import Decoder, Record
from tailrace.snapshot.verify.canonical import Canon, from_avro, from_text, from_view, packed, row_of
from tailrace.snapshot.verify.comparison import Comparison
from tailrace.snapshot.verify.value_kinds import Field, Form, key_fields, row_fields


@dataclass(frozen=True, slots=True)
class TableForm:
    """The newest shape of a table on its topic: its columns, and the indexes of the key columns."""

    fields: tuple[Field, ...]
    key: tuple[int, ...]
    _own: dict[str, list[Field | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: str, key_schema: str | None, value_schema: str | None) -> Self:
        """Return the shape from the newest schemas of key and value.

        Raises SinkError (TR-341) if there are none yet, ConfigError (TR-344) if the table has no key.
        """
        if key_schema is None and value_schema is not None:
            raise ConfigError(
                "TR-344",
                f'table "{table}" cannot be compared, because it has no key',
                detail="Its topic is a log of events: no column identifies the newest record of a row.",
                hint="Leave the view out, or give the table a primary key and start with another kafka.prefix.",
            )
        if key_schema is None or value_schema is None:
            raise SinkError(
                "TR-341",
                f'table "{table}" has no records on Kafka yet',
                detail="The schemas topic has no schema of it.",
                hint="tailrace status  # does the daemon run? source.tables must select the table",
            )
        fields = tuple(row_fields(value_schema))
        columns = [each.column for each in fields]
        return cls(fields, tuple(columns.index(each.column) for each in key_fields(key_schema)))

    @property
    def columns(self) -> list[str]:
        """The column names in PostgreSQL."""
        return [each.column for each in self.fields]

    def pair(self, row: Sequence[Canon]) -> tuple[bytes, bytes]:
        """Return key and row in the form in which they are stored."""
        return packed([row[index] for index in self.key]), packed(row)

    def older(self, schema: str) -> list[Field | None]:
        """Return, for each column of the newest shape, its field in an older schema, None if it had none."""
        if schema not in self._own:
            by_column = {each.column: each for each in row_fields(schema)}
            self._own[schema] = [by_column.get(column) for column in self.columns]
        return self._own[schema]


def load_source(
    into: Comparison,
    rows: Iterable[Sequence[str | None]],
    form: TableForm,
    option: Callable[[str], ValueType | None] = lambda column: None,
) -> None:
    """Add the source's rows: texts in the order of `form.columns`.

    `option` returns the configured type of a column on the topic, for example masked or hashed.
    """
    readers = [_reader(each.form, option(each.column)) for each in form.fields]
    into.add_source(form.pair([read(text) for read, text in zip(readers, row, strict=True)]) for row in rows)


def _reader(form: Form, option: ValueType | None) -> Callable[[str | None], Canon]:
    """Return the function that converts the source's text to canonical form, hidden as on the topic."""
    if option is None or option.kind not in (Kind.MASKED, Kind.HASHED):
        return lambda text: from_text(form, text)
    return lambda text: None if text is None else hide(text.encode(), option).decode()


def load_view(into: Comparison, rows: Iterable[Mapping[str, Any]], form: TableForm) -> None:
    """Add the view's rows (column → value); a column that the view lacks is NULL."""
    into.add_view(form.pair([from_view(each.form, row.get(each.column)) for each in form.fields]) for row in rows)


def load_topic(
    into: Comparison, batches: Iterable[list[Record]], form: TableForm, decoder: Decoder, epoch: int, x: int
) -> None:
    """Add the topic's records up to the cut; those committed before `x` also belong to the state at X."""
    for batch in batches:
        waiting: list[tuple[bytes, int, bytes, bytes | None, bool]] = []
        for record in batch:
            position = record.position
            before_x = (position.epoch, position.commit_lsn) < (epoch, x)
            if record.key == TRUNCATE_KEY:
                into.add_records(waiting)
                waiting = []
                into.truncate(record.partition, before_x)
                continue
            key = packed(row_of(_key_fields(decoder.schema(record.key)), decoder.decode(record.key)))
            row = _row(record, form, decoder)
            waiting.append((key, record.partition, position.to_bytes(), row, before_x))
        into.add_records(waiting)


_key_fields = lru_cache(maxsize=64)(key_fields)


def _row(record: Record, form: TableForm, decoder: Decoder) -> bytes | None:
    if record.value is None:
        return None
    after = decoder.decode(record.value)["after"]
    if after is None:
        return None
    fields = form.older(decoder.schema(record.value))
    return packed([None if each is None else from_avro(each.form, after[each.name]) for each in fields])
