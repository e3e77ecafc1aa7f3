"""The jobs as processes: their output, their end with their parent, and their errors for a bad target."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.launch.spark_job import job
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.metrics import VIEWS
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.target.follower import follower
from tests.spark.pipeline import Pipeline, column
from tests.support.daemon import ROOT, tailrace, wait_until, write_config
from tests.support.terminal import alive_in

_COLUMNS = [column("id", "int4"), column("n", "int4")]
_SPARK = f'[spark.conf]\n"spark.driver.extraJavaOptions" = "{SMALL_SPARK}"\n'
_VIEWS = """[views.rows]
table = "public.t"
[views.changes]
table = "public.t"
shape = "log"
[views.versions]
table = "public.t"
shape = "history"
[views.some]
query = "SELECT id, n FROM public.t WHERE n > 3"
key = ["id"]
[views.fragile]
query = "SELECT id, 100 div (n - 51) AS share FROM public.t"
key = ["id"]
[health]
listen = ""
views_listen = "127.0.0.1:0"
"""


def filled(bootstrap: str, prefix: str) -> Pipeline:
    pipeline = Pipeline(Kafka(bootstrap=bootstrap, prefix=prefix), slot=prefix)
    pipeline.table("t", _COLUMNS, ("id",))
    with pipeline.transaction() as tx:
        for number in range(10):
            tx.put("t", {"id": number, "n": number})
    return pipeline


@contextmanager
def following(config: Path) -> Iterator[psutil.Process]:
    """Run `views follow` in its own session, in a writable folder; kill all that is left of it."""
    with (config.parent / "follow.log").open("wb") as log:
        started = psutil.Popen(
            [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(config)],
            stdout=log,
            stderr=log,
            cwd=config.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
            start_new_session=True,
        )
    try:
        yield started
    finally:
        for each in alive_in(started.pid):
            each.kill()
        started.wait(30)


def logged(config: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (config.parent / "follow.log").read_text().splitlines()]


def wait_applied(config: Path, pipeline: Pipeline) -> None:
    def applied() -> bool:
        loaded = load(config)
        records = read_views(loaded.kafka, Topics(loaded.kafka.prefix))
        cuts = [records[name].cut if name in records else None for name in loaded.views]
        assert pipeline.cut is not None
        least = pipeline.cut.flushed_lsn
        return all(cut is not None and cut.flushed_lsn >= least for cut in cuts)

    wait_until(applied, 400)


@contextmanager
def command_lines(session: int) -> Iterator[set[str]]:
    """Collect all arguments of the session's processes during the block, as `ps` would show them."""
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            for each in alive_in(session):
                with suppress(psutil.Error):
                    seen.update(each.cmdline())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_a_job_ends_with_its_parent_and_is_quiet(servers: Servers, prefix: str, tmp_path: Path) -> None:
    pipeline = filled(servers.bootstrap, prefix)
    # the catalog's folder does not exist yet, as at the very first start
    catalog = f"jdbc:sqlite:file:{tmp_path}/new one/c.db?token=hunter1"
    sections = f'[warehouse]\nuri = "{catalog}"\nlocation = "{tmp_path}/wh"\n'
    sections += '[spark.conf]\n"spark.hadoop.planted" = "hunter2"\n'
    sections += f'"spark.driver.extraJavaOptions" = "{SMALL_SPARK} -Dplanted=hunter3"\n'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + _VIEWS)
    with following(file) as follow:
        with command_lines(follow.pid) as seen:
            wait_applied(file, pipeline)
        assert any("SparkSubmit" in each for each in seen)
        assert not [each for each in seen if "hunter" in each]
        first = {each["view"]: each for each in logged(file) if each["event"] == "batch applied"}
        for _ in range(4):  # keepalives: the cut moves, and nothing is logged
            time.sleep(1.2)
            pipeline.idle()
        wait_applied(file, pipeline)
        lines = logged(file)
        assert [each["event"] for each in lines].count("batch applied") == len(first) == 5
        assert {name: each["rows"] for name, each in first.items()} == {
            "rows": 10,
            "changes": 10,
            "versions": 10,
            "some": 6,
            "fragile": 10,
        }
        assert all({"event", "level", "timestamp"} <= each.keys() for each in lines), lines
        assert {each["level"] for each in lines} == {"info"}
        assert len(alive_in(follow.pid)) == 3, "the command, the job, its JVM"
        assert_health_while_all_is_well(file, pipeline)
        assert_health_of_a_parked_view(file, pipeline)
        assert "hunter" not in ask(file, "/readyz")[1] + ask(file, "/metrics")[1]
        assert shown_followers(file) == {"running"}
        follow.kill()
        wait_until(lambda: not alive_in(follow.pid), 15)
        assert shown_followers(file) == {"killed"}
    folders = {each.name for each in tmp_path.iterdir() if each.is_dir()}
    assert folders == {"new one", "wh"}, "no spark-warehouse, nothing with escapes"

    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "n": 50})
    assert_a_view_is_parked_alone_and_a_killed_job_is_reported(file, pipeline)
    with following(file) as follow:
        wait_applied(file, pipeline)
        # as a supervisor does: the JVM is terminated, too, in the middle of its work
        with pipeline.transaction() as tx:
            tx.put("t", {"id": 2, "n": 50})
        for each in alive_in(follow.pid):
            with suppress(psutil.NoSuchProcess):  # it may have ended with another one
                each.send_signal(signal.SIGTERM)
        assert ended(follow, file) == 0, (tmp_path / "follow.log").read_text()
        wait_until(lambda: not alive_in(follow.pid), 15)
    text = (tmp_path / "follow.log").read_text()
    assert "Traceback" not in text
    assert "ERROR" not in text
    assert not [each for each in logged(file) if each["event"] == "view parked"]
    assert shown_followers(file) == {"stopped"}
    assert_one_view_is_followed_up_to_an_lsn(file, pipeline)


def test_the_job_that_verifies_has_a_small_heap_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs beside `views follow`, and spills what does not fit."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    more = '[spark]\ndriver_memory = "3g"\n[verify]\ndriver_memory = "700m"\n'
    config = load(write_config(tmp_path, "", "", "p", more))
    heaps = {name: job(config, name, []).environment for name in ("follow", "verify")}
    assert "--driver-memory 3g " in heaps["follow"]["PYSPARK_SUBMIT_ARGS"]
    assert "MALLOC_ARENA_MAX" not in heaps["follow"]
    assert "--driver-memory 700m " in heaps["verify"]["PYSPARK_SUBMIT_ARGS"]
    assert heaps["verify"]["MALLOC_ARENA_MAX"] == "2"
    assert "-XX:+UseSerialGC" in heaps["verify"]["SPARK_SUBMIT_OPTS"]
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert job(config, "verify", []).environment["MALLOC_ARENA_MAX"] == "8", "the choice of the user"


def test_a_rebuild_of_several_views_ends_with_a_summary(servers: Servers, prefix: str, tmp_path: Path) -> None:
    filled(servers.bootstrap, prefix)
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "{tmp_path}/wh"\n' + _SPARK + _VIEWS
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections)
    done = tailrace("views", "rebuild", "rows", "changes", "--config", str(file), timeout=200)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" is live at ")[0] for line in done.stdout.splitlines()] == [
        "rows: generation 1",
        "changes: generation 1",
    ]


def ended(follow: psutil.Process, file: Path, seconds: float = 60) -> int:
    """Wait for the end of all processes and return the exit code; if one hangs, fail with the stacks of all threads."""
    try:
        return int(follow.wait(seconds))
    except psutil.TimeoutExpired:
        stacks = []
        # the command last: the others end with it
        for each in sorted(alive_in(follow.pid), key=lambda each: -each.pid):
            if "java" in each.name():
                jstack = Path(each.exe()).with_name("jstack")
                done = subprocess.run([jstack, "-l", str(each.pid)], capture_output=True, text=True, timeout=60)
                stacks.append(done.stdout + done.stderr)
            else:
                with suppress(psutil.Error):
                    each.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER writes the stacks into the log
                time.sleep(1)
        raise AssertionError("\n".join([*stacks, (file.parent / "follow.log").read_text()])) from None


def shown_followers(file: Path) -> set[str]:
    """Return the states of the processes that follow the views, of which there is one."""
    config = load(file)
    found = [follower(config, view) for view in config.views]
    return {each.state for each in found if each is not None}


def assert_a_view_is_parked_alone_and_a_killed_job_is_reported(file: Path, pipeline: Pipeline) -> None:
    text = file.read_text()
    pipeline.table("events", _COLUMNS, ())
    pipeline.idle()
    file.write_text(text + '[views.keyless]\ntable = "public.events"\n')

    def lines(event: str, view: str) -> list[dict[str, Any]]:
        return [each for each in logged(file) if (each["event"], each.get("view")) == (event, view)]

    with following(file) as follow:
        wait_until(lambda: lines("view parked", "keyless") and lines("batch applied", "rows"), 120)
        assert lines("view parked", "keyless")[0]["error"].startswith("ERROR  TR-508")
        assert shown_followers(file) == {"running"}
        (job,) = follow.children()
        job.kill()
        assert follow.wait(30) == 128 + signal.SIGKILL
        last = logged(file)[-1]
        assert (last["level"], last["code"]) == ("error", "TR-518"), last
        assert "signal 9 (SIGKILL)" in last["event"]
    done = tailrace("views", "status", "--config", str(file))
    assert "NOT FOLLOWED: `tailrace views follow` (process " in done.stdout, done.stdout + done.stderr
    assert done.returncode == 4  # this test has no PostgreSQL, which comes first
    file.write_text(text)


def assert_one_view_is_followed_up_to_an_lsn(file: Path, pipeline: Pipeline) -> None:
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 4, "n": 40})
    assert pipeline.cut is not None
    lsn = pipeline.cut.flushed_lsn
    done = tailrace("views", "follow", "rows", "--until-lsn", format_lsn(lsn), "--config", str(file), timeout=200)
    assert done.returncode == 0, done.stderr
    config = load(file)
    records = read_views(config.kafka, Topics(config.kafka.prefix))
    cuts = {name: cut for name in config.views if (cut := records[name].cut)}
    assert len(cuts) == 5
    assert {name for name, cut in cuts.items() if cut.flushed_lsn >= lsn} == {"rows"}
    refused = tailrace("views", "follow", "--until-lsn", "12", "--config", str(file))
    assert (refused.returncode, '"12" is not an LSN' in refused.stderr) == (2, True), refused.stderr


def ask(config: Path, path: str) -> tuple[int, str]:
    """Return status and body of the job's answer."""
    (url,) = (each["health"] for each in logged(config) if each["event"] == "views job started")
    assert url.startswith("http://127.0.0.1:")
    try:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(config: Path) -> dict[tuple[str, ...], float]:
    """Return the samples by name and labels, the view first; exactly the metrics of the table are described."""
    status, text = ask(config, "/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    described = {each.name for each in families if each.name.startswith("tailrace_")}
    assert described - {"tailrace_view_batch_seconds_created"} == {f"tailrace_{name}" for name in VIEWS}
    order = ("view", "code", "stage", "le")
    return {
        (each.name, *(each.labels[label] for label in order if label in each.labels)): each.value
        for family in families
        for each in family.samples
    }


def view_of(config: Path, name: str) -> dict[str, Any]:
    """Return what /readyz, which is ready, says about a view."""
    status, body = ask(config, "/readyz")
    assert (status, json.loads(body)["ready"]) == (200, True)
    found: dict[str, Any] = json.loads(body)["views"][name]
    return found


def assert_health_while_all_is_well(config: Path, pipeline: Pipeline) -> None:
    assert pipeline.cut is not None
    lsn = pipeline.cut.flushed_lsn
    names = sorted(load(config).views)
    wait_until(lambda: all(scrape(config).get(("tailrace_view_applied_lsn_bytes", name), 0) >= lsn for name in names))
    wait_until(lambda: all(scrape(config).get(("tailrace_view_lag_records", name)) == 0 for name in names))
    found, now = scrape(config), time.time()
    assert ask(config, "/livez")[0] == 200
    assert ask(config, "/status")[0] == 404
    assert view_of(config, "rows") == {"lag_seconds": 0.0, "lsn": format_lsn(pipeline.cut.flushed_lsn)}
    assert found["tailrace_views_ready",] == 1
    assert {found[f"tailrace_view_lag_{of}", name] for of in ("seconds", "bytes") for name in names} == {0}
    assert {name: found["tailrace_view_batches_total", name] for name in names} == dict.fromkeys(names, 1)
    assert found["tailrace_view_rows_total", "some"] == 6
    assert found["tailrace_view_batch_seconds_count", "rows", "apply"] == 1
    # what would stop the views, by their shapes, and how long it takes
    stops = {tuple(labels) for name, *labels in found if name == "tailrace_view_stop_timestamp_seconds"}
    assert stops == {*((name, "TR-526") for name in names), ("changes", "TR-560"), ("versions", "TR-560")}
    kafka = load(config).kafka
    for code, limit_ms in (("TR-526", kafka.delete_retention_ms), ("TR-560", kafka.min_compaction_lag_ms)):
        left = found["tailrace_view_stop_timestamp_seconds", "changes", code] - now
        assert limit_ms / 1000 - 60 < left <= limit_ms / 1000


def assert_health_of_a_parked_view(config: Path, pipeline: Pipeline) -> None:
    """A division by zero parks one view; the others advance, and the error has no value of the row."""
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 3, "n": 51})
    wait_until(lambda: "parked" in view_of(config, "fragile"), 60)
    wait_until(lambda: scrape(config)["tailrace_view_lag_records", "rows"] == 0)
    found, shown = scrape(config), view_of(config, "fragile")
    code = shown["parked"]["code"]
    assert found["tailrace_view_parked", "fragile", code] == 1
    assert found["tailrace_view_failures_total", "fragile", code] >= 1
    assert found["tailrace_view_lag_records", "fragile"] > 0
    assert found["tailrace_view_lag_seconds", "fragile"] > 0
    assert [key for key in found if key[0] == "tailrace_view_parked"] == [("tailrace_view_parked", "fragile", code)]
    before = found["tailrace_view_stop_timestamp_seconds", "fragile", "TR-526"]
    wait_until(lambda: scrape(config)["tailrace_view_stop_timestamp_seconds", "rows", "TR-526"] > before + 1)
    assert scrape(config)["tailrace_view_stop_timestamp_seconds", "fragile", "TR-526"] == before
    assert "51" not in shown["parked"]["message"]
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 3, "n": 3})
    wait_until(lambda: "parked" not in view_of(config, "fragile"), 60)
    wait_until(lambda: scrape(config)["tailrace_view_lag_records", "fragile"] == 0)


@pytest.mark.parametrize(
    ("command", "uri", "location", "refused", "detail"),
    [
        (
            "follow",
            "jdbc:foo:bar?password=hunter2",
            "{}/wh",
            "Spark has no driver for the catalog of the warehouse at jdbc:foo:bar?password=**********",
            'DETAIL Nothing on its class path takes "jdbc:foo:"',
        ),
        (
            "rebuild rows",
            "jdbc:sqlite:{}/c.db",
            "s3a://KEY:hunter2/x@bucket/wh",
            'Spark cannot use the location of the warehouse, "s3a://KEY:**********@bucket/wh"',
            'DETAIL package "org.apache.hadoop.fs.s3a" is not on the class path.',
        ),
    ],
    ids=["catalog", "location"],
)
def test_a_missing_driver_is_refused_in_three_lines(
    servers: Servers, prefix: str, tmp_path: Path, command: str, uri: str, location: str, refused: str, detail: str
) -> None:
    """Only the JVM knows its drivers."""
    filled(servers.bootstrap, prefix)
    sections = f'[warehouse]\nuri = "{uri.format(tmp_path)}"\nlocation = "{location.format(tmp_path)}"\n{_SPARK}'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + _VIEWS)
    done = tailrace("views", *command.split(), "--config", str(file), timeout=300)
    assert done.returncode == 3, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == f"ERROR  TR-515  {refused}"
    assert lines[1].startswith(detail)
    assert len(lines) == 3, "no noise of its start above"
    assert "hunter2" not in done.stderr
    assert not re.search("Error|Exception", done.stderr)


def test_unreachable_targets_are_refused_before_spark_starts(servers: Servers, prefix: str, tmp_path: Path) -> None:
    """Refused before Spark starts, with the system's reason and without names of classes."""
    filled(servers.bootstrap, prefix)
    (port,) = free_ports([None])
    (tmp_path / "file").write_text("no database")
    good = f"jdbc:sqlite:{tmp_path}/c.db", str(tmp_path / "wh"), ""
    search = f'[search]\nhosts = ["http://127.0.0.1:{port}"]\n[views.s]\ntable = "public.t"\ntarget = "search"\n'
    for uri, location, more, expected in (
        (f"jdbc:postgresql://me:s3cr3t@127.0.0.1:{port}/x?password=hunter2", good[1], "", "Connection refused"),
        (f"http://127.0.0.1:{port}/catalog", "s3://bucket/x", "", "Connection refused"),
        (f"jdbc:sqlite:{tmp_path}/file/c.db", good[1], "", f'"{tmp_path}/file" is not a folder'),
        (f"jdbc:sqlite:{tmp_path}/file", good[1], "", "file is not a database"),
        (good[0], f"{tmp_path}/file/wh", "", f'"{tmp_path}/file" is not a folder'),
        (good[0], f"file://{tmp_path}/file/wh", "", f'"{tmp_path}/file" is not a folder'),
        (good[0], " ", "", "warehouse.location is empty"),
        (good[0], good[1], search, "Connection refused"),
    ):
        sections = f'[warehouse]\nuri = "{uri}"\nlocation = "{location}"\n{_SPARK}{_VIEWS}{more}'
        file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections)
        for command in ("follow", "rebuild") if "postgresql" in uri else ("follow",):
            names = ["rows"] if command == "rebuild" else []
            done = tailrace("views", command, *names, "--config", str(file), timeout=60)
            assert done.returncode == (3 if location == " " else 5), done.stderr
            assert expected in done.stderr
            assert not re.search("Error|Exception|Traceback", done.stderr)
            assert "hunter2" not in done.stderr
            assert "s3cr3t" not in done.stderr
            assert done.stderr.startswith("ERROR  TR-104" if location == " " else "ERROR  TR-5"), done.stderr
            assert len(done.stderr.splitlines()) == 3


def test_an_interrupted_job_prints_nothing(servers: Servers, prefix: str, tmp_path: Path) -> None:
    filled(servers.bootstrap, prefix)
    sections = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "{tmp_path}/wh"\n{_SPARK}'
    file = write_config(tmp_path, "host=127.0.0.1", servers.bootstrap, prefix, sections + _VIEWS)
    with subprocess.Popen(
        [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "rebuild", "rows", "--config", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as job:
        try:
            wait_until(lambda: len(alive_in(job.pid)) == 3, 60)
            os.killpg(job.pid, signal.SIGINT)  # as Ctrl-C does
            assert job.stderr is not None
            assert job.stderr.read() == ""
            assert job.wait(30) == 130
        finally:
            for each in alive_in(job.pid):
                each.kill()
