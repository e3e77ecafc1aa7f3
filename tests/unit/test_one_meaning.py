"""Faults that once shared an error code have their own, because their remedies differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.cdc.operations.wait import AppliedViews
from tailrace.schemas.config.model import Config, Kafka, Registry, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.sinks.http import registry
from tailrace.sinks.iceberg import catalog


def test_a_missing_registry_client_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is missing, not a certificate."""
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigError, match="TR-110") as refused:
        registry.Registry(Registry(url="http://127.0.0.1:1"))
    assert refused.value.hint == "pip install 'tailrace[registry]'"


def test_a_blank_warehouse_location_is_a_configuration_error(tmp_path: Path) -> None:
    """The configuration is wrong, while TR-513 is a catalog or a folder that fails."""
    with pytest.raises(ConfigError, match="TR-104"):
        catalog.check(Warehouse(uri=f"jdbc:sqlite:{tmp_path}/catalog.db", location=" "))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SinkError, match="TR-513"):
        catalog.check(Warehouse(uri=f"jdbc:sqlite:{tmp_path}/catalog.db", location=f"{tmp_path}/file/below"))


def test_a_wait_that_its_process_ends_has_its_own_code() -> None:
    """The request itself is valid, unlike with TR-578."""
    config = Config(source=Source(dsn=""), kafka=Kafka(bootstrap="127.0.0.1:1"), views={"v": View(table="public.t")})
    applied = AppliedViews(config)
    applied.close()
    with pytest.raises(SinkError, match="TR-586"):
        applied.wait(1, ["v"], 10)
