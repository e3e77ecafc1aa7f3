"""The compacted topic ``{prefix}.tailrace.views``: each view's applied cut, for `status` and `wait`.

Keys are ``[view]`` in JSON. The target itself is authoritative; the topic adds what a target cannot store: cuts that
changed no row, and the time at which a view was last known to be at the newest cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import TIMEOUT, Reader
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.target.protocol import HistoryFrom

WAITS_FOR_TABLE: Final = "TR-584"
"""Code in `ViewRecord.error` of a view that waits for tables to be read; `status` shows details of the tables."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of the newest comparison of a view with its content, recomputed from the topics (`[verify]`).

    `keys` is the number of keys that differed, in the view and in the base tables that its query reads, when
    `generation` was at `lsn`. `at_ms` is the time of that state, in milliseconds since 1970.
    """

    at_ms: int
    generation: int
    lsn: int
    keys: int

    def to_dict(self) -> dict[str, Any]:
        return {"at_ms": self.at_ms, "generation": self.generation, "lsn": format_lsn(self.lsn), "keys": self.keys}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(value["at_ms"], value["generation"], parse_lsn(value["lsn"]), value["keys"])


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The state of a view's live generation.

    `snapshot_id` (warehouse) is the newest Iceberg snapshot with a cut of its own at the time of writing: the record's
    cut is valid only as long as that is the newest. `current_ms` is the last known time, in milliseconds since 1970, at
    which the view's topics had nothing after the record's cut. `error` is the reason if the view does not advance.
    `history_from` is the begin of a history. `verified` is of this generation; it is absent from the JSON if None, so
    that versions without it read the records of pipelines that do not use it.
    """

    view: str
    target: str
    generation: int
    cut: Cut | None
    current_ms: int
    snapshot_id: int | None = None
    error: str | None = None
    history_from: HistoryFrom | None = None
    verified: Verified | None = None

    def key(self) -> bytes:
        return orjson.dumps([self.view])

    def value(self) -> bytes:
        return orjson.dumps(
            {
                "view": self.view,
                "target": self.target,
                "generation": self.generation,
                "cut": self.cut.to_dict() if self.cut else None,
                "current_ms": self.current_ms,
                "snapshot_id": self.snapshot_id,
                "error": self.error,
                "history_from": self.history_from.to_json() if self.history_from else None,
                **({"verified": self.verified.to_dict()} if self.verified else {}),
            }
        )

    @classmethod
    def from_value(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        cut = Cut.from_dict(value.pop("cut")) if value["cut"] else value.pop("cut")
        begins, verified = value.pop("history_from", None), value.pop("verified", None)
        return cls(
            cut=cut,
            history_from=HistoryFrom.from_json(begins) if begins else None,
            verified=Verified.from_dict(verified) if verified else None,
            **value,
        )


def read_views(kafka: Kafka, topics: Topics, timeout: float = TIMEOUT) -> dict[str, ViewRecord]:
    """Return the newest record of every view; none if there is no topic yet."""
    with ViewsTail(kafka, topics, timeout, once=True) as tail:
        return tail.newest()


class ViewsTail(Closes):
    """The newest record of every view, by one consumer that reads each record only once.

    Memory: one record per view.
    """

    def __init__(self, kafka: Kafka, topics: Topics, timeout: float = TIMEOUT, *, once: bool = False) -> None:
        self._reader = Reader(kafka, topics.views, timeout, once=once)
        self._newest: dict[str, ViewRecord] = {}
        self._assigned = False

    def close(self) -> None:
        self._reader.close()

    def newest(self, wait: float = 0.0) -> dict[str, ViewRecord]:
        """Return the newest records by view; none if there is no topic yet.

        The first call reads to the end as of the call; later ones wait up to `wait` seconds for new records.
        """
        if self._assigned:
            self._keep(self._reader.more(wait))
        elif (bounds := self._reader.bounds()) is not None:
            self._keep(self._reader.span(*bounds))
            self._assigned = True
        else:
            time.sleep(wait)
        return dict(self._newest)

    def _keep(self, records: Iterator[Message]) -> None:
        for record in records:
            raw, key = record.value(), record.key()
            if raw is not None:
                view = ViewRecord.from_value(raw)
                self._newest[view.view] = view
            elif key is not None:
                self._newest.pop(orjson.loads(key)[0], None)


_SETTINGS: Final = {"cleanup.policy": "compact"}


class ViewsTopic:
    """Writes the records; creates the topic if it is missing."""

    def __init__(self, kafka: Kafka, topics: Topics) -> None:
        self._kafka = kafka
        self._topic = topics.views
        self._lock = threading.Lock()
        ensure_topics(kafka, [TopicSpec(self._topic, 1, _SETTINGS)])
        self._producer = Producer(
            {
                **client_options(kafka),
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(TIMEOUT * 1000),
                "log_level": 0,
            }
        )

    def publish(self, record: ViewRecord) -> None:
        """Write one record and wait for Kafka's acknowledgement."""
        self._send(record.key(), record.value())

    def forget(self, view: str) -> None:
        """Delete a view's record from the topic, by a tombstone."""
        self._send(orjson.dumps([view]), None)

    def _send(self, key: bytes, value: bytes | None) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        # another thread's flush could consume our report, and might not have delivered it when our flush returns
        with self._lock:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                raise self._refused(reason(error)) from None
            if self._producer.flush(TIMEOUT) or failed:
                raise self._refused(failed[0].str() if failed else f"no answer within {TIMEOUT:.0f} s")

    def _refused(self, reason: str) -> SinkError:
        return SinkError(
            "TR-510",
            f'the applied cut of a view cannot be written to topic "{self._topic}"',
            detail=f'Kafka at "{self._kafka.bootstrap}": {reason}.',
            hint=f"kcat -b {self._kafka.bootstrap} -L  # is the broker running, and reachable from this host?",
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000
