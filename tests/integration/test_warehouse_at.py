"""`tailrace.table`: which state of a view in the warehouse stands for an LSN. The table is pyiceberg's own work."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog import load_catalog

import tailrace
from cdc.dev.state import Servers
from schemas.configfile import load
from schemas.errors import TailraceError
from schemas.lsn import Position
from schemas.progress import Cut
from schemas.topics import Topics
from sinks.views_topic import ViewRecord, ViewsTopic, now_ms
from tests.daemon import write_config


def cut(lsn: int) -> Cut:
    return Cut(Position(0, lsn - 5, 0), lsn, 0, "1", 1)


def test_as_of_an_lsn(servers: Servers, prefix: str, tmp_path: Path) -> None:
    views = '[views.v]\ntable = "public.t"\n[views.s]\ntable = "public.t"\ntarget = "search"\n'
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "file://{tmp_path}/data"\n'
    file = write_config(tmp_path, "none", servers.bootstrap, prefix, sections + views)

    def rows(lsn: str | int | None = None) -> tuple[str, list[int]]:
        found = tailrace.table("v", lsn, config=file)
        return found.lsn, sorted(found.scan.to_arrow().column("n").to_pylist())

    with pytest.raises(TailraceError, match="TR-511"):
        tailrace.table("s", config=file)
    catalog = load_catalog(
        "tailrace", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/data"
    )
    catalog.create_namespace("views")
    with pytest.raises(TailraceError, match="TR-512"):
        rows()
    table = catalog.create_table("views.v", pa.schema([("n", pa.int64())]))

    def add(numbers: list[int], lsn: int | None, generation: int) -> None:
        summary = {"tailrace.cut": cut(lsn).to_json(), "tailrace.generation": str(generation)} if lsn else {}
        table.append(pa.table({"n": pa.array(numbers, pa.int64())}), snapshot_properties=summary)

    add([1], 0x10, 1)
    add([2], 0x20, 2)
    add([3], 0x30, 2)
    add([4], 0x40, 2)
    carries = table.refresh().current_snapshot()
    assert carries is not None
    add([], None, 2)  # as a rewrite of its files by another tool
    assert rows() == ("0/40", [1, 2, 3, 4])
    assert rows("0/40") == rows(0x40) == rows()
    assert rows("0/3F") == ("0/30", [1, 2, 3])
    assert rows("0/30") == ("0/30", [1, 2, 3])
    assert rows("0/2F") == ("0/20", [1, 2])
    for early in ("0/1F", "0/10", "0/1"):  # of another generation, or before all
        with pytest.raises(TailraceError, match="TR-561"):
            rows(early)
    with pytest.raises(TailraceError, match="TR-562"):
        rows("0/41")
    # a later cut that changed no row is on the topic alone
    config = load(file)
    record = ViewRecord("v", "warehouse", 2, cut(0x50), now_ms(), carries.snapshot_id)
    ViewsTopic(config.kafka, Topics(config.kafka.prefix)).publish(record)
    assert rows() == ("0/50", [1, 2, 3, 4])
    assert rows("0/45") == ("0/45", [1, 2, 3, 4])
