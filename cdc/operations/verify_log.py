"""`tailrace verify --log`: prove from the topics alone that no record is missing, added or torn.

The source is not queried. The proof uses the position records, and assumes that they are correct and that Kafka
transactions are atomic; `tailrace verify` compares with the source.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tailrace.cdc.operations.log_proof import Block, Finding, Newest, Tally, Timed, TopicCheck
from tailrace.cdc.operations.progress import OnProgress, no_display
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.layout import TableStatus
from tailrace.schemas.records.position import PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates
from tailrace.sinks.control.positions import TIMEOUT, Reader
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import NOT_OURS, Record, open_consumer, read_to

_BLOCK_RECORDS: Final = 2000
_BLOCK_BYTES: Final = 4_194_304
"""Limits of a block of position records, each of which names every partition.

Together with `_BATCH` data records, they bound the memory.
"""

_BATCH: Final = 500
_TAIL_S: Final = 30.0
"""Longest wait for a position record after its data records: transaction markers arrive separately."""


@dataclass(frozen=True, slots=True)
class LogProof:
    """The result; its JSON form is a contract. `first` and `last`: LSNs of the oldest and newest cut."""

    slot: str
    first: int
    last: int
    topics: int
    tally: Tally
    seconds: float

    @property
    def holds(self) -> bool:
        return not self.tally.found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        tally = self.tally
        return {
            "slot": self.slot,
            "holds": self.holds,
            "first": format_lsn(self.first),
            "last": format_lsn(self.last),
            "topics": self.topics,
            "position_records": tally.position_records,
            "records": tally.records,
            "compacted": tally.compacted,
            "uncounted": tally.uncounted,
            "found": tally.found,
            "findings": [finding.to_dict() for finding in tally.findings],
            "seconds": round(self.seconds, 3),
        }


def verify_log(config: Config, *, limit: int = 20, on_progress: OnProgress = no_display) -> LogProof:
    """Check all topics of the pipeline, up to the records committed at the start.

    At most `limit` findings are stored. Raises ConfigError (TR-139) with at-least-once delivery; SinkError if there is
    no position record (TR-348) or Kafka cannot be read.
    """
    if config.delivery.guarantee != "exactly-once":
        raise ConfigError(
            "TR-139",
            'verify --log needs delivery.guarantee = "exactly-once"',
            detail="With at-least-once, the counts may not include all records between two cuts.",
            hint="To compare the topics with the source: tailrace verify",
        )
    began = time.monotonic()
    proof = _Proof(config, Tally(limit), on_progress)
    proof.run()
    last = proof.before
    if last is None:
        raise SinkError(
            "TR-348",
            f'slot "{config.source.slot}" has no position record',
            detail=f'None is on topic "{Topics(config.kafka.prefix).progress}".',
            hint="tailrace run  # has it been started with this configuration?",
        )
    topics = len(last.record.here.offsets)
    return LogProof(
        config.source.slot, proof.first, last.record.here.flushed_lsn, topics, proof.tally, time.monotonic() - began
    )


@dataclass(slots=True)
class _Proof:
    """The proof in progress: it reads the progress topic block by block."""

    config: Config
    tally: Tally
    on_progress: OnProgress
    before: Timed | None = None
    first: int = 0
    newest: dict[tuple[str, int], Newest] = field(default_factory=dict)
    existing: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    def run(self) -> None:
        kafka = self.config.kafka
        self.existing = set(self._ends())
        with Reader(kafka, Topics(kafka.prefix).progress) as reader:
            bounds = reader.bounds()
            if bounds is None:
                return
            low, high = bounds
            self.on_progress("position records", 0, high - low)
            for block in _blocks(self._positions(self._shown(reader.span(low, high), low, high))):
                self._judge(block)
            self.on_progress("records after the last position record", 0, None)
            if self.before is not None:
                self._tail(reader)
                self._report_deleted(self.before.record)

    def _shown(self, messages: Iterator[Message], low: int, high: int) -> Iterator[Message]:
        for message in messages:
            yield message
            self.on_progress("position records", (message.offset() or low) + 1 - low, high - low)

    def _positions(self, messages: Iterator[Message]) -> Iterator[tuple[Timed, int]]:
        key = position_key(self.config.source.slot)
        for message in messages:
            raw = message.value()
            if message.key() == key and raw is not None:
                yield Timed(PositionRecord.from_json(raw), message.timestamp()[1]), len(raw)

    def _judge(self, timed: Sequence[Timed]) -> None:
        block = Block(self.before, timed)
        if self.before is None:
            self.first = timed[0].record.here.flushed_lsn
        block.check_cuts(self.tally)
        moved, lost = block.moved(), block.lost(Topics(self.config.kafka.prefix))
        for topic in lost:
            self.tally.forgive(topic)
        for topic in sorted(moved.keys() | block.counted()):
            if topic not in self.existing:
                self.deleted.add(topic)
                continue
            check = TopicCheck(topic, block, self.newest, self.tally, self._horizon_ms, lost.get(topic, -1))
            starts, ends = moved.get(topic, ([], []))
            for record in self._read(topic, ends, starts):
                check.take(record.partition, record.offset, record.key, record.position)
            check.finish()
        self.before = timed[-1]

    def _report_deleted(self, last: PositionRecord) -> None:
        """Report the topics that do not exist any more, except those of tables that are no longer captured."""
        if not self.deleted:
            return
        topics = Topics(self.config.kafka.prefix)
        left = {
            topics.table(*names)
            for table, state in stored_reads(self.config).states.items()
            if state.status in (TableStatus.GONE, TableStatus.UNPUBLISHED)
            or (state.parked is not None and state.parked.left_out)
            for names in candidates(table)
        }
        for topic in sorted(self.deleted - left):
            ends = last.here.offsets.get(topic, [])
            detail = f"the topic does not exist; the last cut has {sum(ends)} offsets of it"
            self.tally.add(Finding("deleted", topic, detail))

    def _horizon_ms(self) -> int:
        return round(time.time() * 1000) - self.config.kafka.min_compaction_lag_ms

    def _read(self, topic: str, ends: Sequence[int], starts: Sequence[int]) -> Iterator[Record]:
        if list(ends) == list(starts):
            return
        for records in read_to(client_options(self.config.kafka), topic, ends, starts, batch=_BATCH):
            yield from records

    def _tail(self, reader: Reader) -> None:
        """Check the records committed after the last cut: their position record must become visible soon."""
        behind = self._behind()
        deadline = time.monotonic() + _TAIL_S
        while behind and time.monotonic() < deadline:
            for block in _blocks(self._positions(reader.more(0.5))):
                self._judge(block)
            assert self.before is not None
            offsets = self.before.record.here.offsets
            behind = {
                (topic, partition): last
                for (topic, partition), last in behind.items()
                if partition >= len(offsets.get(topic, [])) or offsets[topic][partition] <= last
            }
        for (topic, partition), last in sorted(behind.items()):
            detail = "committed after the last cut, but no position record includes it"
            self.tally.add(Finding("unaccounted", topic, detail, partition, last))

    def _behind(self) -> dict[tuple[str, int], int]:
        """Return the offset of the last committed record of each partition that has one after the last cut."""
        assert self.before is not None
        offsets = self.before.record.here.offsets
        behind: dict[tuple[str, int], int] = {}
        for topic, ends in self._ends().items():
            known = offsets.get(topic)
            starts = [*(known or ()), *[0] * (len(ends) - len(known or ()))]
            try:
                for record in self._read(topic, ends, starts):
                    behind[topic, record.partition] = record.offset
            except SinkError as error:
                # no cut has ever named it: a foreign topic whose name has the same prefix
                if known is not None or error.code != NOT_OURS:
                    raise
        return behind

    def _ends(self) -> dict[str, list[int]]:
        """Return the committed end offsets of all topics of the pipeline that may be in cuts."""
        kafka = self.config.kafka
        topics = Topics(kafka.prefix)
        consumer = open_consumer(client_options(kafka))
        try:
            found = consumer.list_topics(timeout=TIMEOUT).topics
            return {
                name: [_end(consumer, name, partition) for partition in range(len(topic.partitions))]
                for name, topic in found.items()
                if topics.may_be_in_cuts(name)
            }
        except KafkaException as error:
            raise kafka_error(kafka, error.args[0]) from None
        finally:
            consumer.close()


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)[1]


def _blocks(positions: Iterator[tuple[Timed, int]]) -> Iterator[list[Timed]]:
    block: list[Timed] = []
    size = 0
    for timed, length in positions:
        block.append(timed)
        size += length
        if len(block) >= _BLOCK_RECORDS or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
