"""The whole path from the stream's bytes to records, without servers, compiled and interpreted."""

from __future__ import annotations

import io
import json
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import fastavro
from confluent_kafka import Producer
from pydantic import SecretStr

from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.cdc.wal.spool import Spool
from tailrace.cdc.wal.streamed import InProgress
from tailrace.schemas.avro import value_schema, without_logical_types
from tailrace.schemas.config.model import Config, Source
from tailrace.schemas.errors import SourceError
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo, ValueType, value_type
from tests.fuzz.corpus import TYPES
from tests.fuzz.replication import ReplicationStream
from tests.support.interpreted import interpreted

Outcome = tuple[Any, ...]
OnError = Literal["stop", "divert"]
ON_ERROR: tuple[OnError, ...] = ("stop", "divert")

_ALLOWED = {"DecodeError", "SourceError", "ColumnRefused", "UnchangedToast"}


class Finding(AssertionError):
    """A result that must not occur."""


def forms() -> list[dict[str, ModuleType]]:
    """Return two forms of the modules: as they are installed, and interpreted."""
    plain = interpreted()
    return [{name: sys.modules[name] for name in plain if name in sys.modules}, plain]


def agreed(outcomes: list[Outcome]) -> Outcome:
    """Return the common outcome of all forms; Finding if they differ, or if an error is not one of ours."""
    first = outcomes[0]
    for other in outcomes[1:]:
        if other != first:
            records = next((pair for pair in zip(first[0], other[0], strict=False) if pair[0] != pair[1]), "")
            raise Finding(f"compiled and interpreted differ: {first[1:]} {other[1:]}; first record {records}")
    error = first[-1]
    if error is not None and (error[0] not in _ALLOWED or (error[0] == "DecodeError" and error[2] < 0)):
        raise Finding(f"{error[0]} must not come out: {error[1]}")
    return first


def _error(error: Exception) -> Outcome:
    return type(error).__name__, str(error), getattr(error, "offset", None)


class Collecting:
    """A producer that collects its records."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def produce(self, *arguments: Any) -> None:
        self.records.append(arguments)


class RealCollecting(Producer):
    """The same on librdkafka's: the compiled outbox then takes rows from the encoder's own buffers.

    Records that are displaced by others of their partition go to librdkafka itself and are not seen here.
    """

    def __init__(self) -> None:
        super().__init__({"log_level": 0})  # no brokers; nothing gets that far
        self.records: list[Any] = []

    def produce(self, *arguments: Any) -> None:
        self.records.append(arguments)


class Chain:
    """Assembler, row path, encoders, spool and outbox of one form; Kafka and catalog are stand-ins."""

    def __init__(
        self,
        form: dict[str, ModuleType],
        folder: Path,
        spool_bytes: int,
        producer: Collecting | RealCollecting,
        on_error: OnError,
    ) -> None:
        self._form = form
        self._producer = producer
        producer.records = []
        self.held: list[Any] = []
        """The last record of every partition, for each message."""
        outbox = form["tailrace.sinks.kafka.outbox"]
        self.outbox = outbox.Outbox(producer, lambda: None, None, lambda *_: None, lambda: None)
        self._in_progress = InProgress(Spool(folder, spool_bytes))
        self._tables: dict[int, CapturedTable] = {}
        self.shapes: list[Relation] = []
        """Every relation that was seen: a record's schema id is its index here plus 1."""
        rows = cast("Any", form["tailrace.cdc.changes.row_path"])
        rows.time_ns = lambda: 1_800_000_000_000_000_000  # records contain the time
        config = Config(source=Source(dsn=SecretStr(""), on_table_error=on_error))
        refusals = form["tailrace.cdc.changes.dead_letters"].Refusals(config, self.outbox, self)
        progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
        unchanged = form["tailrace.cdc.changes.toast_completion"].Unchanged(self, progress, lambda _: None)
        self._assembler = form["tailrace.cdc.changes.assembler"].Assembler(
            self, self, progress, unchanged, self._in_progress, self, refusals
        )

    def run(self, messages: list[bytes]) -> Outcome:
        """Feed all messages; return the records, the last position, and the error if there was one."""
        error = None
        try:
            for message in messages:
                self._assembler.feed([message])
                # before the next message, which sends a partition's held-back record to librdkafka
                self._flush()
                while self._assembler.release(1):
                    self._flush()
        except Exception as raised:
            error = _error(raised)
        finally:
            self._flush()
            self._in_progress.close()
        if isinstance(self._producer, RealCollecting):
            self._producer.purge()
        rows = self._assembler.rows
        return self._producer.records, rows.open, rows.flushed_lsn, rows.commit_us, rows.position_ordinal, error

    def _flush(self) -> None:
        before = len(self._producer.records)
        self.outbox.flush()
        self.held += self._producer.records[before:]

    # stands in for `Tables`

    def see(self, relation: Relation, commit_lsn: int = 0) -> None:
        keys = [i for i, column in enumerate(relation.columns) if column.is_key]
        if not keys or len(relation.columns) > 100:
            raise SourceError("TR-205", "no key")
        types = _types(relation)
        self.shapes.append(relation)
        kinds = [value_type(column, types) for column in relation.columns]
        encoder = encoder_of(self._form, kinds, keys, len(self.shapes))
        destination = self._form["tailrace.sinks.kafka.outbox"].Destination(relation.name, [0, 0])
        names = tuple(column.name for column in relation.columns)
        self._tables[relation.oid] = CapturedTable(relation, keys, destination, encoder, relation.columns, names)

    def park(self, *_: object) -> bool:
        return False

    def is_ignored(self, oid: int) -> bool:
        return False

    def captured(self, oid: int, lsn: int = 0) -> CapturedTable | None:
        if oid not in self._tables:
            # the mutation has removed the relation; Tables raises the same error
            raise self._form["tailrace.cdc.changes.row_path"].DecodeError(f"change of relation {oid}", 1, 1, 0)
        return self._tables[oid]

    # stands in for `Destinations`

    def beside(self, topic: str) -> Any:
        return self._form["tailrace.sinks.kafka.outbox"].Destination(topic, [0])

    # stands in for `Reread`

    def row(self, relation: Relation, keys: list[int], texts: list[bytes | bool | None]) -> tuple[Any, int]:
        return [b"1" if text is False else text for text in texts], 0

    # stands in for `Messages`

    def send(self, *_: object) -> None:
        pass


def _types(relation: Relation) -> dict[int, TypeInfo]:
    return {column.type_oid: TypeInfo(column.type_oid, "?", "b") for column in relation.columns} | TYPES


@lru_cache(maxsize=500)
def _schema(relation: Relation) -> Any:
    plain = without_logical_types(json.loads(value_schema(relation, _types(relation), "t")))
    return fastavro.parse_schema(plain)


def check_records(records: list[Any], shapes: list[Relation]) -> None:
    """Finding if a record is not valid Avro: damage that cannot be detected must give valid records."""
    for topic, value, *_ in records:
        if topic.endswith(".tailrace.dead"):
            json.loads(value)
            continue
        if value is None:
            continue
        raw = io.BytesIO(value[5:])
        try:
            fastavro.schemaless_reader(raw, _schema(shapes[int.from_bytes(value[1:5], "big") - 1]), None)
        except UnicodeDecodeError:
            continue  # only the server guarantees that its texts are UTF-8
        except Exception as error:
            raise Finding(f"not Avro: {value!r}") from error
        if raw.read():
            raise Finding(f"not Avro, bytes are left over: {value!r}")


def encoder_of(form: dict[str, ModuleType], kinds: list[ValueType], keys: list[int], schema_id: int = 1) -> Any:
    """Return a TableEncoder of a form."""
    module = form["tailrace.schemas.encode.encoder"]
    return module.TableEncoder(module.Names("v", "n", "d", "s", "t"), kinds, keys, schema_id, schema_id)


def copied(form: dict[str, ModuleType], line: bytes) -> Outcome:
    """Encode a line of COPY as the first snapshot does."""
    columns = [Column(info.name, oid, -1, True) for oid, info in TYPES.items() if oid != 23]
    relation = Relation(1, "s", "t", ReplicaIdentity.DEFAULT, tuple(columns))
    encoder = encoder_of(form, [value_type(column, TYPES) for column in relation.columns], [0])
    encoder.begin_snapshot(5000, 1, 2)
    try:
        return encoder.snapshot(line, 1), None
    except Exception as error:
        return None, _error(error)


def read_stream(form: dict[str, ModuleType], stream: ReplicationStream, raws: list[bytes]) -> Outcome:
    """Read messages from a replication connection, as the daemon's reader does."""
    stream.send(raws)
    messages: list[bytes] = []
    keepalives: list[bytes] = []
    error = None
    try:
        form["tailrace.cdc.wal.copydata"].read(stream.connection, 50, messages, keepalives.append)
    except Exception as raised:
        error = _error(raised)
    stream.drain()
    return messages, keepalives, error
