"""Options, settings and signals of a Spark job's JVM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.java import Java
from tailrace.cdc.launch.spark_job import class_path, collector
from tailrace.schemas.config.model import Config, Source, Spark
from tailrace.spark_jobs.jobs.submit import submit_files
from tests.support.daemon import ROOT


def config(**conf: str) -> Config:
    return Config(source=Source(dsn=""), spark=Spark(conf=conf))


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    return jar


def test_a_class_archive_is_used_once_it_is_complete(jar: Path, tmp_path: Path) -> None:
    java = Java(tmp_path / "jdk", 17)
    assert archive_options("spark", java, [jar], write=False) == ()
    option = archive_options("spark", java, [jar], write=True)[0]
    assert option.startswith("-XX:ArchiveClassesAtExit=")
    archive = Path(option.partition("=")[2])
    archive.write_bytes(bytes(4096) + b"regions, while it is being written, or of one that was killed")
    assert archive_options("spark", java, [jar], write=True)[0] == option
    archive.write_bytes(b"\xab\x0b\xba\xf0" + bytes(4096))
    assert archive_options("spark", java, [jar], write=False)[0] == f"-XX:SharedArchiveFile={archive}"
    assert archive_options("spark", Java(tmp_path / "another", 17), [jar], write=False) == ()
    assert archive_options("kafka", java, [jar], write=False) == (), "of another program"
    jar.write_bytes(b"2")
    os.utime(jar, ns=(1, 1))
    assert archive_options("spark", java, [jar], write=False) == (), "of other jars"
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder can be made here")
    assert archive_options("spark", java, [jar], write=True) == ()


def test_a_collector_is_set_only_if_the_user_has_set_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert collector(config()) == ("-XX:+UseParallelGC",)
    assert collector(config(**{"spark.driver.extraJavaOptions": "-Da=b -XX:+UseG1GC"})) == ()
    assert collector(config(), "-XX:+UseSerialGC") == ("-XX:+UseSerialGC",)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    assert collector(config()) == collector(config(), "-XX:+UseSerialGC") == ()


def test_a_driver_of_the_users_is_added_to_the_class_path() -> None:
    conf = {"spark.driver.extraClassPath": "/x/driver.jar"}
    files = ("--conf", "spark.hadoop.fs.file.impl=com.globalmentor.apache.hadoop.fs.BareLocalFileSystem")
    assert class_path("local[2]", [Path("/a.jar")], conf) == ("--driver-class-path", "/a.jar:/x/driver.jar", *files)
    two = [Path("/a.jar"), Path("/b.jar")]
    assert class_path("local[2]", two, {}) == ("--driver-class-path", "/a.jar:/b.jar", *files)
    assert class_path("local-cluster[1,1,1]", [Path("/a.jar")], {}) == ("--jars", "/a.jar")


def test_settings_for_spark_submit_are_in_files_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = {"spark.x": " a=b\\c # é\U0001f600\nd", "spark.driver.extraJavaOptions": "-Da='b c' -Dd=\"e\\\\f\""}
    with submit_files(settings) as arguments:
        (folder,) = tmp_path.iterdir()
        assert arguments == ("--properties-file", f"{folder}/spark.conf", "--load-spark-defaults")
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "spark.conf").read_text() == (
            "spark.x=\\ a\\=b\\\\c\\ \\#\\ \\u00e9\\ud83d\\ude00\\u000ad\n"
            f"spark.driver.extraJavaOptions=@{folder}/java_options\n"
        )
        assert (folder / "java_options").read_text() == '"-Da=b c"\n"-Dd=e\\\\f"\n'
    assert not list(tmp_path.iterdir())


_SIGNALLED = """
import os, signal, time
from tailrace.spark_jobs.jobs import command
command._SAME_SIGNAL_S = 0.5
told = command.stopping()
for number, pause in ((signal.SIGTERM, 0.1), (signal.SIGTERM, 0.6)):
    os.kill(os.getpid(), number)
    time.sleep(pause)
print(told.is_set(), flush=True)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(5)
"""


def test_a_signal_to_the_whole_group_is_one_signal() -> None:
    """A job gets it from the system and from the command that started it; a later one ends it at once."""
    done = subprocess.run([sys.executable, "-c", _SIGNALLED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 128 + signal.SIGINT), done.stderr
