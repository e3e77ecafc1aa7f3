"""The demo's `tailrace.toml`: every kind of view is declared, and a file of the user is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cdc.dev.configuration import demo_configuration
from tailrace.cdc.dev.shop import TABLES
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import FILE_NAME, load
from tailrace.spark_jobs.views import declare
from tailrace.spark_jobs.views.lower import in_order

_QUERIES = {"spending", "sales_by_hour", "items_then"}


def servers(opensearch: str | None) -> Servers:
    return Servers("host=127.0.0.1 dbname=shop", "host=/s dbname=shop", "127.0.0.1:9092", opensearch, ())


@pytest.mark.parametrize("opensearch", [None, "http://127.0.0.1:9201"])
def test_every_kind_of_view_is_declared(tmp_path: Path, opensearch: str | None) -> None:
    file, _ = demo_configuration(servers(opensearch), tmp_path / "state", tmp_path)
    config = load(file)
    wanted = {*TABLES, *_QUERIES, "price_history"}
    if opensearch is not None:
        wanted |= {"products_search", "orders_search", "order_documents", "alerts"}
    assert set(config.views) == wanted
    declared = {name: declare(config, name) for name in in_order(config, config.views)}
    assert declared["items_then"].views == ("price_history",)
    assert {name for name, view in declared.items() if view.text is not None} == {
        *_QUERIES,
        *({"order_documents"} if opensearch else ()),
    }


def test_a_file_for_other_servers_is_not_changed(tmp_path: Path) -> None:
    theirs = tmp_path / FILE_NAME
    theirs.write_text('[source]\ndsn = "host=db.example"\n[kafka]\nbootstrap = "broker:9092"\n')
    before = theirs.read_text()
    (tmp_path / "state").mkdir()
    file, said = demo_configuration(servers(None), tmp_path / "state", tmp_path)
    assert (file, theirs.read_text()) == (tmp_path / "state" / FILE_NAME, before)
    assert "does not belong to the demo" in said
