"""Checks every cut called a state, not only the newest: its topics are the tables as of its LSN.

Reads the topics with confluent-kafka and fastavro; the text of a value comes from `snapshot.verify.canonical`, which
shares no code with the encoder.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro

from tailrace.schemas.avro import without_logical_types
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut, PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.snapshot.verify.canonical import from_avro, from_text
from tailrace.snapshot.verify.value_kinds import Field, row_fields
from tests.ddl.ledger import Contents, Entry, Key, Ledger, Texts
from tests.support.topics import read_all

_NO_TABLE = Contents((), (), {})


@dataclass(frozen=True, slots=True)
class Difference:
    """A table that differs from its topic at a cut. `after` is the statement that comes before the cut."""

    topic: str
    where: str
    after: str
    what: str

    def __str__(self) -> str:
        return f"{self.topic} at {self.where}, after {self.after}: {self.what}"


@dataclass(frozen=True, slots=True)
class Record:
    """A record: `row` is None if it deletes its key; `truncate` if it deletes all keys of the partition."""

    offset: int
    key: bytes
    truncate: bool
    fields: list[Field]
    row: dict[str, Any] | None


class States:
    """All committed records on the topics of a pipeline, at one moment."""

    def __init__(self, config: Config, tables: Iterable[str]) -> None:
        """`tables` are the topics of tables with a key; topics that do not exist have no records."""
        self._topics = topics = Topics(config.kafka.prefix)
        there = existing_topics(config.kafka.bootstrap, config.kafka.prefix)
        self._tables = sorted(set(tables) & there)
        messages = read_all(config.kafka.bootstrap, [topics.progress, topics.schemas, *self._tables])
        self._schemas: dict[int, tuple[list[Field], Any]] = {}
        for message in messages[topics.schemas]:
            stored = json.loads(message.value())
            if stored["subject"].endswith("-value") and stored["subject"].removesuffix("-value") in self._tables:
                plain = fastavro.parse_schema(without_logical_types(json.loads(stored["schema"])))
                self._schemas[stored["id"]] = row_fields(stored["schema"]), plain
        key = position_key(config.source.slot)
        own = [message for message in messages[topics.progress] if message.key() == key]
        self.positions = [(message.offset(), PositionRecord.from_json(message.value())) for message in own]
        self._written_ms = {message.offset(): message.timestamp()[1] for message in own}
        self._lines: dict[str, dict[int, list[Record]]] = {topic: {} for topic in self._tables}
        for topic in self._tables:
            for message in messages[topic]:
                self._lines[topic].setdefault(message.partition(), []).append(self._record(message))

    def counts(self) -> dict[str, int]:
        """Return the number of records on each topic."""
        return {topic: sum(map(len, lines.values())) for topic, lines in self._lines.items()}

    def at(self, cut: Cut, expected: dict[str, Contents]) -> dict[str, str]:
        """Compare the topics at one cut with contents; return the differences by topic."""
        reader = _Reader(self._lines)
        reader.read_to(cut)
        wrong = {topic: what for topic in expected if (what := reader.compare(topic, expected[topic]))}
        return {topic: f"{what} ({self._read(topic, cut)})" for topic, what in wrong.items()}

    def check(self, ledger: Ledger) -> Iterator[Difference]:
        """Compare each cut after the first entry with the tables as of its LSN.

        Tables that the cut calls incomplete are skipped. A cut is a state of each table by itself, even while others
        are being read.

        A look at the catalog does not show changes that were reverted before it, such as an ATTACH PARTITION and a
        DETACH, or a name that a table had for a moment. So, for each later statement that began before the record was
        written, a topic may also be
        - what its table was then, or what that table was at the cut, perhaps under another name,
        - where no table had its name then: empty, or what it had become until the cut.
        """
        reader = _Reader(self._lines)
        for offset, position in self.positions:
            reader.read_to(position.here)
            if position.open is not None:
                continue
            incomplete = {self._topics.table(*name.split(".", 1)) for name in position.incomplete_tables}
            found: list[list[tuple[str, str]]] = []
            near = entries_at(ledger.entries, position.here.flushed_lsn)
            for entry in near:
                # an unpublished table that never was published has no topic
                known = (name for name, each in entry.tables.items() if each.published or name in position.here.offsets)
                complete = (topic for topic in known if topic not in incomplete)
                wrong = ((topic, reader.compare(topic, entry.tables[topic])) for topic in complete)
                found.append([(topic, what) for topic, what in wrong if what])
            if all(found):
                undone = self._undone(ledger, position.here.flushed_lsn, offset)
                past = [entry for entry in ledger.entries if entry.before < position.here.flushed_lsn]
                found = [
                    [each for each in wrong if not _is_any(reader, each[0], near, past, undone)] for wrong in found
                ]
            if found and all(found):
                where = f"{format_lsn(position.here.flushed_lsn)} (progress offset {offset})"
                after = f"{near[0].what} ({format_lsn(near[0].before)} to {format_lsn(near[0].after)})"
                for topic, what in found[0]:
                    yield Difference(topic, where, after, f"{what} ({self._read(topic, position.here)})")

    def _read(self, topic: str, cut: Cut) -> str:
        """Describe both ends: a cut that ends too early differs from a record that is missing or not readable."""
        lines = self._lines.get(topic, {})
        last = {partition: records[-1].offset for partition, records in sorted(lines.items()) if records}
        return f"the cut ends at {cut.offsets.get(topic, [])}, the last records read are {last}"

    def _undone(self, ledger: Ledger, lsn: int, offset: int) -> list[Entry]:
        """Return the entries after a cut whose catalog its writer may have seen."""
        return [entry for entry in ledger.entries if entry.before >= lsn and entry.began_ms <= self._written_ms[offset]]

    def _record(self, message: Any) -> Record:
        offset, key, value = message.offset(), message.key(), message.value()
        if key == TRUNCATE_KEY or value is None:
            return Record(offset, key, key == TRUNCATE_KEY, [], None)
        fields, schema = self._schemas[int.from_bytes(value[1:5], "big")]
        envelope = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        assert isinstance(envelope, dict)
        return Record(offset, key, False, fields, None if envelope["op"] == "d" else envelope["after"])


def _is_any(reader: _Reader, topic: str, near: list[Entry], past: list[Entry], undone: list[Entry]) -> bool:
    """Return whether a topic matches a look at the catalog after one of the statements `undone`.

    `near` are the entries at the cut, `past` all up to it.
    """
    for then in (entry.tables.get(topic) for entry in undone):
        if then is None or not then.published:
            may_be = [_NO_TABLE, *(entry.tables[topic] for entry in past if topic in entry.tables)]
        else:
            may_be = [then, *(each for entry in near for each in entry.tables.values() if each.oid == then.oid)]
        if any(not reader.compare(topic, contents) for contents in may_be):
            return True
    return False


def entries_at(entries: list[Entry], lsn: int) -> list[Entry]:
    """Return the entries that may describe the tables at `lsn`: one, or two inside a statement's interval."""
    past = [entry for entry in entries if entry.before < lsn]
    if not past:
        return []
    if past[-1].after <= lsn:
        return past[-1:]
    return past[-2:]


class _Reader:
    """State of a consumer that reads each topic up to one cut after another."""

    def __init__(self, lines: dict[str, dict[int, list[Record]]]) -> None:
        self._lines = lines
        self._read: dict[tuple[str, int], int] = {}
        self._rows: dict[str, dict[tuple[int, bytes], Record]] = {topic: {} for topic in lines}
        self._compared: dict[str, tuple[Contents, str]] = {}

    def read_to(self, cut: Cut) -> None:
        for topic, partitions in self._lines.items():
            ends = cut.offsets.get(topic, [])
            for partition, records in partitions.items():
                end = ends[partition] if partition < len(ends) else 0
                at = self._read.get((topic, partition), 0)
                while at < len(records) and records[at].offset < end:
                    self._take(topic, partition, records[at])
                    at += 1
                    self._compared.pop(topic, None)
                self._read[topic, partition] = at

    def _take(self, topic: str, partition: int, record: Record) -> None:
        rows = self._rows[topic]
        if record.truncate:
            self._rows[topic] = {place: each for place, each in rows.items() if place[0] != partition}
        elif record.row is None:
            rows.pop((partition, record.key), None)
        else:
            rows[partition, record.key] = record

    def compare(self, topic: str, contents: Contents) -> str:
        """Return the number of differences between topic and table, and the first; "" if they are equal."""
        before = self._compared.get(topic)
        if before is not None and before[0] is contents:
            return before[1]
        wrong = _compare(self._rows.get(topic, {}).values(), contents)
        self._compared[topic] = contents, wrong
        return wrong


def _compare(records: Iterable[Record], contents: Contents) -> str:
    missing = dict(contents.rows)
    wrong: list[str] = []
    for record in records:
        assert record.row is not None
        values = {field.column: (field, record.row[field.name]) for field in record.fields}
        key: Key = tuple(_text(*values[name]) if name in values else None for name in contents.key)
        row = missing.pop(key, None)
        if row is None:
            if key in contents.rows:
                wrong.append(f"key {key} has two records")
            elif key not in contents.left:
                wrong.append(f"key {key} is on the topic, not in the table")
        elif different := _differing(values, contents.columns, row):
            wrong.append(f"key {key}: {different}")
    wrong += [f"key {key} is in the table, not on the topic" for key in missing]
    return f"{len(wrong)} of {len(contents.rows)} rows, first: {wrong[0]}" if wrong else ""


def _differing(values: dict[str, tuple[Field, Any]], columns: tuple[str, ...], row: Texts) -> str:
    for name, text in zip(columns, row, strict=True):
        if name not in values:
            if text is not None:
                return f"{name} has no value, not {_short(text)}"
            continue
        field, value = values[name]
        if from_avro(field.form, value) != from_text(field.form, text):
            return f"{name} is {_short(value)}, not {_short(text)}"
    return ""


def _text(field: Field, value: Any) -> str | None:
    text = from_avro(field.form, value)
    return text if text is None or isinstance(text, str) else repr(text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}... ({len(text)} characters)"


def existing_topics(bootstrap: str, prefix: str) -> set[str]:
    """Return the existing topics of a prefix."""
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {topic for topic in found if topic.startswith(f"{prefix}.")}
