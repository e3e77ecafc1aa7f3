"""Faults that once shared a code with others have their own: what a person has to do about them differs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.cdc.operations.wait import AppliedViews
from tailrace.schemas.config.model import Config, Kafka, Registry, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.sinks.http import registry
from tailrace.sinks.iceberg import catalog


def test_a_registry_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is missing, not a certificate."""
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigError, match="TR-110") as refused:
        registry.Registry(Registry(url="http://127.0.0.1:1"))
    assert refused.value.hint == "pip install 'tailrace[registry]'"


def test_a_warehouse_without_a_location(tmp_path: Path) -> None:
    """The configuration is wrong, while TR-513 is a catalog or a folder that fails."""
    with pytest.raises(ConfigError, match="TR-104"):
        catalog.check(Warehouse(uri=f"jdbc:sqlite:{tmp_path}/catalog.db", location=" "))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SinkError, match="TR-513"):
        catalog.check(Warehouse(uri=f"jdbc:sqlite:{tmp_path}/catalog.db", location=f"{tmp_path}/file/below"))


def test_a_wait_that_is_ended_by_its_process() -> None:
    """Nothing is wrong with the question, as it is with TR-578."""
    config = Config(source=Source(dsn=""), kafka=Kafka(bootstrap="127.0.0.1:1"), views={"v": View(table="public.t")})
    applied = AppliedViews(config)
    applied.close()
    with pytest.raises(SinkError, match="TR-586"):
        applied.wait(1, ["v"], 10)
