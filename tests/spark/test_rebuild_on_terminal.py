"""Jobs as a person sees them: a whole rebuild, Ctrl-C in its middle, and a query that Spark refuses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.schemas.config.model import Kafka
from tests.spark.pipeline import Pipeline, column
from tests.support.daemon import wait_until, write_config
from tests.support.terminal import Seen, on_terminal

_ROWS = 20_000
_SECTIONS = """[warehouse]
uri = "jdbc:sqlite:{folder}/new/c.db"
location = "{folder}/wh"
[spark.conf]
"spark.driver.extraJavaOptions" = "{java}"
[views.rows]
table = "public.t"
[views.refused]
query = "SELECT id, date_add(n, 'x') AS d FROM public.t"
key = ["id"]
"""


@pytest.fixture
def folder(servers: Servers, prefix: str, tmp_path: Path) -> Iterator[Path]:
    """A pipeline with a table on Kafka and a view of it; afterwards no process of a job may be left."""
    pipeline = Pipeline(Kafka(bootstrap=servers.bootstrap, prefix=prefix), slot=prefix)
    pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    with pipeline.transaction() as tx:
        for number in range(_ROWS):
            tx.put("t", {"id": number, "n": number})
    sections = _SECTIONS.format(folder=tmp_path, java=SMALL_SPARK)
    write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections)
    yield tmp_path
    wait_until(lambda: not _processes_of(tmp_path), 60)  # a JVM that is starting up ends late


def _processes_of(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if each.pid and _works_in(each, folder)]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder
    except (psutil.Error, OSError):
        return False


def _as_drawn(seen: Seen) -> list[str]:
    """Return the lines of a terminal, including overwritten ones, without the echo of Ctrl-C."""
    return re.split(r"[\r\n]+", seen.text.replace("^C", ""))


def _progress(drawn: list[str]) -> list[str]:
    return [line for line in drawn if line.startswith(("- ", "\\ ", "| ", "/ "))]


@pytest.mark.timeout(900)
def test_a_rebuild_shows_its_progress_and_ends_by_ctrl_c(folder: Path) -> None:
    began = time.monotonic()
    assert on_terminal(["version"], width=80, cwd=folder).code == 0
    started_s = time.monotonic() - began

    whole = on_terminal(["views", "rebuild", "rows"], width=80, cwd=folder, environment={"NO_COLOR": "1"}, seconds=400)
    assert whole.code == 0, whole.text
    assert whole.silent_s < 2 + 4 * started_s, (whole.silent_s, started_s, whole.text)
    assert whole.colors == []
    drawn = _as_drawn(whole)
    assert any("starting Spark" in line for line in _progress(drawn)), whole.text
    assert max(map(len, _progress(drawn))) <= 80
    assert any(re.search(r"rows: (read|write) .* \d+% .*rows.* 0:\d\d:\d\d", line) for line in _progress(drawn))
    (result,) = [line for line in drawn if line.startswith("rows: rebuild")]
    assert re.fullmatch(
        r"rows: rebuild batch applied  lsn 0/\w+  generation 1  rows 20000  read [\d.]+ s, apply [\d.]+ s", result
    )
    for raw in ('{"', "Traceback", "Exception", "WARN", "py4j"):
        assert raw not in whole.text, whole.text

    cut_short = on_terminal(
        ["views", "rebuild", "rows"],
        width=200,
        cwd=folder,
        interrupt_at="rows: ",
        environment={"NO_COLOR": ""},
        seconds=400,
    )
    assert cut_short.code == 130, cut_short.text
    assert cut_short.colors
    drawn = _as_drawn(cut_short)
    assert max(map(len, _progress(drawn))) <= 200
    for raw in ('{"', "Traceback", "Exception", "ERROR", "py4j"):
        assert raw not in cut_short.text, cut_short.text


@pytest.mark.timeout(300)
def test_only_explain_with_check_refuses_what_spark_refuses(folder: Path) -> None:
    explained = on_terminal(["views", "explain", "refused"], width=200, cwd=folder)
    assert explained.code == 0, explained.text
    assert "Spark has not analyzed the query: --check" in explained.text
    explained = on_terminal(["views", "explain", "refused", "--json"], width=200, cwd=folder)
    assert json.loads(explained.text[explained.text.index("{") :])["checked"] is False

    checked = on_terminal(
        ["views", "explain", "refused", "--check"], width=200, cwd=folder, environment={"NO_COLOR": "1"}, seconds=200
    )
    assert checked.code == 3, checked.text
    (error,) = [line for line in _as_drawn(checked) if line.startswith("ERROR")]
    assert error.startswith('ERROR  TR-550  view "refused": Spark cannot run its query [DATATYPE_MISMATCH')
    for raw in ("A change in", '{"', "Traceback", "Exception", "WARN", "py4j"):
        assert raw not in checked.text, checked.text
