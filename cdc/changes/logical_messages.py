"""Send the logical messages of applications (`pg_logical_emit_message`) to ``{prefix}.message``.

A transactional message is a change of its transaction: it is counted, delivered and deduplicated like the others. A
non-transactional message is like a transaction that consists only of its commit: its position is the last byte of its
WAL record, and `flushed_lsn` is the next byte.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from tailrace.cdc.changes.row_path import RowPath
from tailrace.cdc.postgres.capture_set import taken
from tailrace.cdc.tables.shapes import Tables
from tailrace.cdc.wal.pgoutput import Message
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.message import KEY_SCHEMA, VALUE_SCHEMA, message_key, message_value
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.kafka.outbox import Outbox

OWN: Final = "tailrace:"
"""First characters of the message prefixes of our own marks, for any slot."""


class Messages:
    """Send the messages whose prefix matches the configuration."""

    def __init__(self, config: Config, database: str, tables: Tables, outbox: Outbox) -> None:
        self._patterns = config.source.messages
        self._tables = tables
        self._outbox = outbox
        self._topic = Topics(config.kafka.prefix).message
        self._source = {
            "version": version("tailrace"),
            "connector": "postgresql",
            "name": config.kafka.prefix,
            "snapshot": None,
            "db": database,
            "schema": "",
            "table": "",
            "xmin": None,
        }

    def send(self, rows: RowPath, message: Message, ordinal: int) -> None:
        """Send a message at `ordinal` of the transaction in `rows`."""
        if not taken(message.prefix, self._patterns):
            return
        source = self._source | {
            "ts_ms": rows.begin_us // 1000,
            "txId": rows.xid if message.transactional else None,
            "commit_lsn": rows.final_lsn,
            "lsn": message.lsn,
            "ordinal": ordinal,
            "sequence": f'["{rows.final_lsn}","{message.lsn}"]',
        }
        key_id = self._tables.schema_id(f"{self._topic}-key", KEY_SCHEMA)
        value_id = self._tables.schema_id(f"{self._topic}-value", VALUE_SCHEMA)
        self._outbox.send(
            self._tables.destinations.of(self._topic),
            message_key(key_id, message.prefix),
            message_value(value_id, message.prefix, message.content, source, rows.now_ms),
            rows.position(ordinal),
        )
        rows.sent(ordinal)
