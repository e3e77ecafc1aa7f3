"""Follow a table's topic and show each change in readable form."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import orjson
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates
from tailrace.sinks.control.positions import TIMEOUT, read_schemas
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import PASSING, Decoder, Record, open_consumer, record_of
from tailrace.snapshot.verify.canonical import Canon, row_of
from tailrace.snapshot.verify.value_kinds import Form, Kind, key_fields, row_fields

_WIDTH: Final = 40

_QUOTED: Final = re.compile(r'[{}",\\\s]')
"""Characters because of which PostgreSQL quotes an item of an array."""

_REAL_DIGITS: Final = 6
_DOUBLE_DIGITS: Final = 15
"""The decimal exponents from which on PostgreSQL prints a real and a double with an exponent."""


@dataclass(frozen=True, slots=True)
class Line:
    """A change. `before` is None if the source does not log old values (no REPLICA IDENTITY FULL)."""

    table: str
    record: Record
    op: str
    key: dict[str, Canon]
    before: dict[str, Canon] | None
    after: dict[str, Canon] | None
    latency_ms: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; values are in PostgreSQL's text form."""
        position = self.record.position
        return {
            "table": self.table,
            "epoch": position.epoch,
            "commit_lsn": format_lsn(position.commit_lsn),
            "ordinal": position.ordinal,
            "partition": self.record.partition,
            "offset": self.record.offset,
            "op": self.op,
            "key": self.key,
            "before": self.before,
            "after": self.after,
            "latency_ms": self.latency_ms,
        }

    def __str__(self) -> str:
        position = self.record.position
        latency = "" if self.latency_ms is None else f"  ({self.latency_ms} ms)"
        place = f"{format_lsn(position.commit_lsn)}:{position.ordinal}"
        return f"{place:<18} {self.op} {self.table} {_words(self.key)}{self._changes()}{latency}"

    def _changes(self) -> str:
        if self.after is None:
            return ""
        old, key = self.before, self.key
        if old is None:
            changes = {name: _short(value) for name, value in self.after.items() if name not in key}
        else:
            changes = {
                name: f"{_short(old.get(name))} -> {_short(value)}"
                for name, value in self.after.items()
                if old.get(name) != value
            }
        return "".join(f"  {name}: {change}" for name, change in changes.items())


def tail(config: Config, table: str, *, from_start: bool) -> Iterator[Line]:
    """Yield the changes of a table as they are committed to Kafka, without end.

    Raises ConfigError TR-111 if the table has no topic, SinkError TR-330 if Kafka cannot be read.
    """
    topics = Topics(config.kafka.prefix)
    possible = [topics.table(*each) for each in candidates(table)]
    topic = possible[0]
    decoder = Decoder(lambda: {stored.id: stored.schema for stored in read_schemas(config.kafka, topics)})
    consumer = open_consumer(client_options(config.kafka))
    try:
        for topic in possible:
            found = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic]
            if found.error is None and found.partitions:
                break
        else:
            raise _no_topic(table, possible[0])
        start = OFFSET_BEGINNING if from_start else OFFSET_END
        consumer.assign([TopicPartition(topic, partition, start) for partition in found.partitions])
        while True:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    line = change(table, decoder, record_of(message))
                    if line is not None:
                        yield line
                elif error.code() not in (*PASSING, KafkaError._PARTITION_EOF) and not error.retriable():
                    raise KafkaException(error)
    except KafkaException as error:
        raise SinkError(
            "TR-330",
            f'Kafka at "{config.kafka.bootstrap}" cannot be read',
            detail=f'Topic "{topic}": {error.args[0].str()}.',
            hint="Is the broker running, and does kafka.bootstrap name it?",
        ) from None
    finally:
        consumer.close()


def change(table: str, decoder: Decoder, record: Record) -> Line | None:
    """Return the change of a record; None for a tombstone: the record before it reports the delete."""
    if record.key == TRUNCATE_KEY:
        return Line(table, record, "t", {}, None, None, None)
    if record.value is None:
        return None
    envelope = decoder.decode(record.value)
    fields = _row_fields(decoder.schema(record.value))
    committed_ms = envelope["source"]["ts_ms"] if envelope["op"] != "r" else 0
    return Line(
        table,
        record,
        envelope["op"],
        _key(decoder, record.key) if record.key else {},
        _row(fields, envelope["before"]),
        _row(fields, envelope["after"]),
        max(0, record.timestamp_ms - committed_ms) if committed_ms else None,
    )


_row_fields = lru_cache(maxsize=256)(row_fields)


def _key(decoder: Decoder, raw: bytes) -> dict[str, Canon]:
    fields = key_fields(decoder.schema(raw))
    return _row(fields, decoder.decode(raw)) or {}


def _row(fields: Sequence[Any], values: dict[str, Any] | None) -> dict[str, Canon] | None:
    if values is None:
        return None
    shown = zip(fields, row_of(fields, values), strict=True)
    return {field.column: _as_printed(field.form, value) for field, value in shown}


def _as_printed(form: Form, value: Canon) -> Canon:
    """Return a canonical value with floats as PostgreSQL prints them: 1.2 for a real, NaN, 1e+20."""
    if isinstance(value, list) and form.item is not None:
        return [_as_printed(form.item, item) for item in value]
    if isinstance(value, str) and form.kind in (Kind.FLOAT, Kind.DOUBLE):
        return float_text(float(value), single=form.kind is Kind.FLOAT)
    return value


def float_text(value: float, *, single: bool) -> str:
    """Return the shortest text that identifies a float, a real if `single`, in PostgreSQL's form."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    number = _shortest(value, *("fI" if single else "dQ")).normalize()
    exponent = number.adjusted()
    if -4 <= exponent < (_REAL_DIGITS if single else _DOUBLE_DIGITS):
        return f"{number:f}"
    mantissa = number.scaleb(-exponent)
    return f"{mantissa:f}e{exponent:+03d}"


def _shortest(value: float, form: str, bits_form: str) -> Decimal:
    """Return the shortest decimal strictly between the middles to the next floats, as PostgreSQL does."""
    (bits,) = struct.unpack(bits_form, struct.pack(form, abs(value)))
    (below,) = struct.unpack(form, struct.pack(bits_form, bits - 1))
    exact = Fraction(abs(value))
    low = (exact + Fraction(below)) / 2
    try:
        (above,) = struct.unpack(form, struct.pack(bits_form, bits + 1))
        high = (exact + Fraction(above)) / 2
    except OverflowError:  # the largest float; the next one is infinity
        high = exact + (exact - low)
    # repr has the fewest digits for a double; a real needs at most nine, usually fewer
    least = len(Decimal(repr(value)).as_tuple().digits) if form == "d" else 1
    for digits in range(least, 18):
        near = (Context(prec=digits, rounding=way).create_decimal(value) for way in (ROUND_FLOOR, ROUND_CEILING))
        inside = [each for each in near if low < abs(Fraction(each)) < high]
        if inside:
            return min(inside, key=lambda each: (abs(abs(Fraction(each)) - exact), each.as_tuple().digits[-1] % 2))
    raise AssertionError(value)


def _words(values: dict[str, Canon]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Canon) -> str:
    text = "NULL" if value is None else _text(value)
    # a line break inside a value must not end the line
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: _WIDTH + 1])
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _text(value: Canon) -> str:
    """Return a value in PostgreSQL's text form: an array as ``{1,NULL,"a b"}``."""
    if isinstance(value, list):
        return "{" + ",".join(map(_item, value)) + "}"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _item(value: Canon) -> str:
    if value is None:
        return "NULL"
    text = _text(value)
    if isinstance(value, list) or not (_QUOTED.search(text) or text.upper() in ("", "NULL")):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _no_topic(table: str, topic: str) -> ConfigError:
    return ConfigError(
        "TR-111",
        f'table "{table}" has no topic',
        detail=f'Topic "{topic}" does not exist.',
        hint='Is the table captured (source.tables), and has `tailrace run` been started? Write "schema.table".',
    )
