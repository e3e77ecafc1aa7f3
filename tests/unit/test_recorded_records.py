"""Records that earlier versions wrote to our own topics are read without loss."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.schemas.records.layout import TableState
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.requests import RequestRecord
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.control.views_topic import ViewRecord
from tests.golden.records import FOLDER

_FILES = sorted(FOLDER.glob("records_*.jsonl"))


def _read_and_written(topic: str, kind: str, value: bytes) -> bytes | None:
    """Return a record as this version reads and writes it; None for a kind that is not checked."""
    if topic == "progress":
        return PositionRecord.from_json(value).to_json()
    if topic == "tables" and kind == "table":
        return TableState.from_json(value).to_json()
    if topic == "tables" and kind == "daemon":
        return DaemonRecord.from_json(value).to_json()
    if topic == "requests":
        return RequestRecord.from_json(value).to_json()
    if topic == "views":
        return ViewRecord.from_value(value).value()
    if topic == "schemas":
        return StoredSchema.from_value(value).value()
    return None


def _assert_kept(old: Any, new: Any, where: str) -> None:
    """Assert that all old fields are there; a new version may have added fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            assert name in new, f"{where}: {name} is gone"
            _assert_kept(value, new[name], f"{where}.{name}")
    else:
        assert old == new, where


@pytest.mark.parametrize("file", _FILES, ids=[file.stem for file in _FILES])
def test_records_of_earlier_versions_are_read_without_loss(file: Any) -> None:
    seen: Counter[str] = Counter()
    for number, line in enumerate(file.read_text().splitlines(), 1):
        record = json.loads(line)
        value = record["value"]
        kind = json.loads(record["key"])[1] if record["topic"] == "tables" else ""
        seen[f"{record['topic']} {kind}" if record["topic"] == "tables" else record["topic"]] += value is not None
        if value is None:
            continue
        written = _read_and_written(record["topic"], kind, value.encode())
        if written is not None:
            _assert_kept(json.loads(value), json.loads(written), f"line {number}")
    assert not {"progress", "tables table", "tables daemon", "requests", "views", "schemas"} - set(+seen), seen
