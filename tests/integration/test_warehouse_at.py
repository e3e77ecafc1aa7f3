"""`tailrace.table` selects the state of a warehouse view for an LSN; pyiceberg itself reads the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog import load_catalog

import tailrace
from tailrace.cdc.cli import views as cli
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTopic, now_ms
from tailrace.sinks.target.protocol import HistoryFrom
from tests.support.daemon import write_config


def cut(lsn: int) -> Cut:
    return Cut(Position(0, lsn - 5, 0), lsn, 0, "1", 1)


def test_a_table_as_of_an_lsn_is_its_newest_state_up_to_it(servers: Servers, prefix: str, tmp_path: Path) -> None:
    views = '[views.v]\ntable = "public.t"\n[views.s]\ntable = "public.t"\ntarget = "search"\n'
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "file://{tmp_path}/data"\n'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + views)

    def rows(lsn: str | int | None = None) -> tuple[str, list[int]]:
        found = tailrace.table("v", lsn, config=file)
        return found.lsn, sorted(found.scan.to_arrow().column("n").to_pylist())

    with pytest.raises(TailraceError, match="TR-517"):
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
    add([], None, 2)  # as if another tool had rewritten its files
    assert rows() == ("0/40", [1, 2, 3, 4])
    assert rows("0/40") == rows(0x40) == rows()
    assert rows("0/3F") == ("0/30", [1, 2, 3])
    assert rows("0/30") == ("0/30", [1, 2, 3])
    assert rows("0/2F") == ("0/20", [1, 2])
    for early in ("0/1F", "0/10", "0/1"):  # of another generation, or before all states
        with pytest.raises(TailraceError, match="TR-561"):
            rows(early)
    with pytest.raises(TailraceError, match="TR-562"):
        rows("0/41")
    # a later cut that changed no row is only on the topic
    config = load(file)
    record = ViewRecord("v", "warehouse", 2, cut(0x50), now_ms(), carries.snapshot_id)
    ViewsTopic(config.kafka, Topics(config.kafka.prefix)).publish(record)
    assert rows() == ("0/50", [1, 2, 3, 4])
    assert rows("0/45") == ("0/45", [1, 2, 3, 4])


def test_histories_logs_and_matches_are_read_as_of_an_lsn(servers: Servers, prefix: str, tmp_path: Path) -> None:
    """A history gives its state or its versions, a log and matches their changes, all as of an LSN."""
    views = "".join(
        f'[views.{name}]\ntable = "public.t"\nshape = "{shape}"\n{more}'
        for name, shape, more in (("h", "history", ""), ("l", "log", ""), ("p", "percolate", 'queries_index = "q"\n'))
    )
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "file://{tmp_path}/data"\n'
    sections += '[search]\nhosts = ["http://localhost:9200"]\n'
    more = '[views.v]\ntable = "public.t"\n'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + views + more)
    catalog = load_catalog(
        "tailrace", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/data"
    )
    catalog.create_namespace("views")
    summary = {
        "tailrace.cut": cut(0x50).to_json(),
        "tailrace.generation": "1",
        "tailrace.history_from": HistoryFrom(0x10, 0).to_json(),
    }
    spans = {"valid_from_lsn": pa.int64(), "valid_to_lsn": pa.int64()}
    versions = {"n": [1, 2, 3], "valid_from_lsn": [0x10, 0x20, 0x30], "valid_to_lsn": [0x20, 0x40, None]}
    changes = {"n": [1, 2, 3], "commit_lsn": [0x10, 0x20, 0x40]}
    for name, columns, values in (
        ("h", spans, versions),
        ("l", {"commit_lsn": pa.int64()}, changes),
        ("p", {"commit_lsn": pa.int64()}, changes),
    ):
        schema = pa.schema({"n": pa.int64(), **columns})
        table = catalog.create_table(f"views.{name}", schema)
        table.append(pa.table(values, schema), snapshot_properties=summary)

    def rows(name: str, lsn: str, **how: bool) -> tuple[list[str], list[int]]:
        found = tailrace.table(name, lsn, config=file, **how).scan.to_arrow()
        return found.column_names, sorted(found.column("n").to_pylist())

    assert rows("h", "0/30") == (["n"], [2])
    assert rows("h", "0/50") == (["n"], [3])
    assert rows("h", "0/30", versions=True) == (["n", "valid_from_lsn", "valid_to_lsn"], [1, 2])
    assert rows("h", "0/50", versions=True)[1] == [1, 2, 3]
    for name in ("l", "p"):
        assert rows(name, "0/40") == (["n", "commit_lsn"], [1, 2])
        assert rows(name, "0/50")[1] == [1, 2, 3]
        with pytest.raises(TailraceError, match="TR-561"):
            rows(name, "0/1")
    for name in ("l", "p", "v"):
        with pytest.raises(TailraceError, match="TR-567"):
            tailrace.table(name, config=file, versions=True)


@pytest.mark.parametrize("wrong", ["zz", "", "0/", "0/123456789", -1, 1 << 64, True, 1.5])
def test_a_malformed_lsn_is_refused(tmp_path: Path, wrong: str | int) -> None:
    file = write_config(tmp_path, "host=127.0.0.1", "127.0.0.1:1", "t", '[views.v]\ntable = "public.t"\n')
    with pytest.raises(TailraceError, match="TR-516"):
        tailrace.table("v", wrong, config=file)
    with pytest.raises(TailraceError, match="TR-516"):
        tailrace.wait(wrong, "v", config=file, timeout=0)


def test_an_unreadable_catalog_is_an_error_without_secrets(servers: Servers, prefix: str, tmp_path: Path) -> None:
    """The error is ours and has no secret; a catalog in PostgreSQL is read without Spark."""
    views = '[views.v]\ntable = "public.t"\n'
    (tmp_path / "file").write_text("no database")
    away = "postgresql://127.0.0.1:1/x?user=me&password=hunter2"
    address = servers.dsn.partition("@")[2].partition("?")[0]
    wrong = f"postgresql://{address}_none?user=postgres&password=hunter2&ApplicationName=x"
    for uri in (f"sqlite:{tmp_path}/file", away, wrong):
        sections = f'[warehouse]\nuri = "jdbc:{uri}"\nlocation = "file://{tmp_path}/data"\n'
        file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + views)
        with pytest.raises(TailraceError, match="TR-513") as failed:
            tailrace.table("v", config=file)
        assert "hunter2" not in str(failed.value)
        assert "Error" not in str(failed.value)
        if uri == wrong:
            assert "_none" in failed.value.detail
            assert "does not exist" in failed.value.detail


def test_commands_refuse_a_missing_generation_without_spark(
    servers: Servers, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes before Spark starts: pyspark cannot be imported here."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    views = '[views.v]\ntable = "public.t"\n'
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "file://{tmp_path}/data"\n'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + views)

    def refused(command: str, code: str, **options: Any) -> str:
        run: Any = {"compare": cli.compare, "swap": cli.swap, "rollback": cli.rollback, "drop": cli.drop}[command]
        with pytest.raises(TailraceError, match=code) as failed:
            run("v", file, **options)
        return failed.value.detail

    for command in ("compare", "swap", "rollback", "drop"):
        refused(command, "TR-512")
    assert not (tmp_path / "c.db").exists()
    catalog = load_catalog(
        "tailrace", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/data"
    )
    catalog.create_namespace("views")
    table = catalog.create_table("views.v", pa.schema([("n", pa.int64())]))
    summary = {"tailrace.cut": cut(0x50).to_json(), "tailrace.generation": "3"}
    table.append(pa.table({"n": pa.array([1], pa.int64())}), snapshot_properties=summary)
    for command, code in (("compare", "TR-571"), ("swap", "TR-571"), ("rollback", "TR-572"), ("drop", "TR-575")):
        assert "Generations: 3 (live) at 0/50." in refused(command, code)
    refused("drop", "TR-571", generation=2)
    with pytest.raises(TailraceError, match="TR-110"):  # there is something to drop, so Spark is needed
        cli.drop("v", file, confirm="v")
