"""The jobs with separate executors, as on a cluster: right views, even if one is killed in mid-batch."""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.sinks.read.views import read_view
from tests.spark.conftest import Bench
from tests.spark.pipeline import Pipeline, column
from tests.support.daemon import ROOT, tailrace, wait_until

_ROWS = 20_000
_PATIENCE_S = 400


@contextmanager
def _following(config: Path) -> Iterator[psutil.Process]:
    """Run `views follow` as a user would; it must stop in order."""
    with (config.parent / "follow.log").open("ab") as log:
        follow = psutil.Popen(
            [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(config)],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    try:
        yield follow
        follow.send_signal(signal.SIGTERM)
        assert follow.wait(60) == 0
    finally:
        for process in (*follow.children(recursive=True), follow) if follow.is_running() else ():
            process.kill()
        follow.wait(60)


def _ask(ui: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{ui}/api/v1/applications{path}", timeout=_PATIENCE_S) as answer:
        return json.load(answer)


def _kill_one_that_works(follow: psutil.Process, ui: int) -> None:
    """Kill an executor that is running a task."""
    (application,) = _ask(ui, "")

    def working() -> list[str]:
        executors = _ask(ui, f"/{application['id']}/executors")
        return [found["id"] for found in executors if found["id"] != "driver" and found["activeTasks"]]

    deadline = time.monotonic() + _PATIENCE_S
    while not (found := working()):
        assert time.monotonic() < deadline
    for process in follow.children(recursive=True):
        try:
            arguments = process.cmdline()
        except psutil.Error:
            continue  # Spark runs short-lived helper programs
        if "--executor-id" in arguments and arguments[arguments.index("--executor-id") + 1] == found[0]:
            process.kill()
            return
    raise AssertionError(f"no process of executor {found[0]}")


def _wait_for(config: Config, pipeline: Pipeline) -> None:
    assert pipeline.cut is not None
    target = pipeline.cut.flushed_lsn

    def there() -> bool:
        try:
            return all(read_view(config, name).cut.flushed_lsn >= target for name in config.views)
        except Exception:
            return False

    wait_until(there, _PATIENCE_S)


def test_views_are_right_though_an_executor_dies_in_mid_batch(servers: Servers, prefix: str, tmp_path: Path) -> None:
    (ui,) = free_ports([None])
    file = tmp_path / "tailrace.toml"
    file.write_text(f"""
[source]
dsn = ""
[kafka]
bootstrap = "{servers.bootstrap}"
prefix = "{prefix}"
[warehouse]
uri = "jdbc:sqlite:{tmp_path}/catalog.db"
location = "file://{tmp_path}/data"
[spark]
master = "local-cluster[2,1,1024]"
[spark.conf]
"spark.driver.extraJavaOptions" = "{SMALL_SPARK}"
"spark.executor.extraJavaOptions" = "{SMALL_SPARK}"
"spark.ui.enabled" = "true"
"spark.ui.port" = "{ui}"
[views.item]
table = "public.item"
[views.groups]
query = "SELECT grp, count(*) AS n, max(word) AS word FROM public.item GROUP BY grp"
key = ["grp"]
""")
    config = load(file)
    pipeline = Pipeline(config.kafka)
    pipeline.table("item", [column("id", "int4"), column("grp", "int4"), column("word", "text")], ("id",))
    with pipeline.transaction() as transaction:
        for n in range(_ROWS):
            transaction.put("item", {"id": n, "grp": n % 50, "word": f"word {n}"})
    with _following(file) as follow:
        _wait_for(config, pipeline)
        with pipeline.transaction() as transaction:
            for n in range(_ROWS):
                if n % 3:
                    transaction.put("item", {"id": n, "grp": n % 40, "word": f"again {n}"})
                else:
                    transaction.delete("item", n)
        _kill_one_that_works(follow, ui)
        _wait_for(config, pipeline)
        _assert_right(config, pipeline)
    done = tailrace("views", "rebuild", "item", "groups", "--config", str(file), timeout=_PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert {read_view(config, name).generation for name in config.views} == {2}
    _assert_right(config, pipeline)


def _assert_right(config: Config, pipeline: Pipeline) -> None:
    bench = Bench(config, pipeline, None)  # type: ignore[arg-type]  # `agrees` needs no session
    assert bench.agrees("item", "item") == _ROWS - len(range(0, _ROWS, 3))
    expected: dict[int, tuple[int, str]] = {}
    for row in pipeline.tables["item"].rows.values():
        n, word = expected.get(row["grp"], (0, ""))
        expected[row["grp"]] = n + 1, max(word, row["word"])
    found = {row["grp"]: (row["n"], row["word"]) for row in read_view(config, "groups").rows}
    assert found == expected
