"""Check that the views of docker/compose.yaml are right although Spark loses workers.

The file is used as it is, but for images, ports, JVM sizes and timeouts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace.cdc.launch.java import SMALL_SPARK
from tests.support.daemon import ROOT, wait_until

_FILE = ROOT / "docker" / "compose.yaml"
_REBUILD = "/opt/tailrace/lib/python3.11/site-packages/tailrace/spark_jobs/jobs/rebuild.py"
_WORKERS = ("spark-worker1", "spark-worker2")
_PATIENCE_S = 600
_ATTEMPTS = 4
_SMALL = "-Xms64m -Xmx{} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_HERE = {
    "apache/kafka": {
        "KAFKA_HEAP_OPTS": _SMALL.format("256m"),
        # no broker dies, but eleven containers may start slowly on two cores
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "60000",
        "KAFKA_CONTROLLER_QUORUM_FETCH_TIMEOUT_MS": "20000",
        # see cdc.dev.kafka
        "KAFKA_METADATA_MAX_IDLE_INTERVAL_MS": "0",
    },
    "opensearchproject/opensearch": {"OPENSEARCH_JAVA_OPTS": _SMALL.format("512m")},
    "apicurio/apicurio-registry": {"JAVA_OPTS_APPEND": _SMALL.format("256m")},
    # Spark sets the sizes of its JVMs itself
    "tailrace-spark": {"JAVA_TOOL_OPTIONS": SMALL_SPARK},
}
_SPENDING = """
import tailrace
rows = tailrace.table("spending").scan.to_arrow().to_pylist()
print(*sorted(f"{row['customer']}|{row['orders']}|{row['total']}" for row in rows), sep="\\n")
"""


@dataclass(frozen=True)
class Compose:
    """A project of `docker compose`."""

    project: str
    files: tuple[Path, ...]

    def command(self, *arguments: str) -> list[str]:
        files = [part for file in self.files for part in ("--file", str(file))]
        program = str(Path(sys.executable).with_name("docker-compose"))
        return [program, "--project-name", self.project, *files, *arguments]

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def execute(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("exec", "-T", service, *command, check=check)

    def sql(self, statement: str) -> str:
        return self.execute("postgres", "psql", "-U", "postgres", "-Atc", statement, "app").stdout.strip()

    def wait_for_views(self) -> None:
        """Return when all views have everything that the database has now."""
        lsn = self.sql("SELECT pg_current_wal_insert_lsn()")
        self.sql("SELECT pg_logical_emit_message(true, 'test', 'x')")
        # until Kafka answers, the views' container exits and is restarted
        wait = ("views", "tailrace", "wait", "--lsn", lsn, "--timeout", "60")
        try:
            wait_until(lambda: self.execute(*wait, check=False).returncode == 0, _PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{self.run('ps').stdout}\n{self.run('logs', '--tail', '20').stdout}") from None

    def kill(self, *services: str) -> float:
        """Kill services and return the time of it, in seconds since 1970."""
        self.run("kill", "--signal", "KILL", *services)
        return time.time()

    def batches(self) -> list[tuple[float, float]]:
        """Return start and end of each batch of `follow` that changed something, in seconds since 1970."""
        logged = self.run("logs", "--no-log-prefix", "--timestamps", "views").stdout
        found = [(at, _event(line)) for at, line in re.findall(r"^(\S+) (\{.*\})$", logged, re.MULTILINE)]
        batches = [(at, event) for at, event in found if event.get("event") == "batch applied"]
        ends = [(datetime.fromisoformat(at).timestamp(), event["ms"]) for at, event in batches]
        return [(end - sum(spent.values()) / 1000, end) for end, spent in ends]


def _event(line: str) -> dict[str, Any]:
    """Parse one line of a job's log; return an empty dict if it is not JSON."""
    try:
        found: dict[str, Any] = json.loads(line)
        return found
    except ValueError:
        return {}


def _is(line: str, event: str, view: str) -> bool:
    found = _event(line)
    return (found.get("event"), found.get("view")) == (event, view)


@contextmanager
def up(folder: Path) -> Iterator[Compose]:
    """Start all services; remove them after the block."""
    services = yaml.safe_load(_FILE.read_text())["services"]
    changed: dict[str, Any] = {
        name: {"image": f"tailrace-local/{image}", "environment": _HERE.get(image.partition(":")[0], {})}
        for name, image in ((name, service["image"]) for name, service in services.items())
    }
    override = yaml.safe_dump({"services": changed})
    # the machine may use these ports already
    override = re.sub(r"^(  [\w-]+:)$", r"\1\n    ports: !reset []", override, flags=re.MULTILINE)
    (folder / "override.yaml").write_text(override)
    compose = Compose(f"t{uuid.uuid4().hex[:8]}", (_FILE, folder / "override.yaml"))
    try:
        compose.run("up", "--detach", "--no-build", "--pull", "never")
        yield compose
    finally:
        compose.run("down", "--volumes", "--timeout", "2")


@pytest.mark.timeout(900)
def test_views_are_right_though_spark_workers_die_in_mid_batch(engine: None, tmp_path: Path) -> None:
    with up(tmp_path) as compose:
        compose.wait_for_views()
        _settings_are_the_brokers_own(compose)

        assert any(_killed_in_follow(compose) for _ in range(_ATTEMPTS))
        compose.wait_for_views()
        _assert_equal(compose)

        rebuilds = next(count for count in range(1, _ATTEMPTS + 1) if _killed_in_rebuild(compose))
        compose.sql("DELETE FROM orders WHERE id % 7 = 0")
        compose.wait_for_views()
        status = json.loads(compose.execute("views", "tailrace", "views", "status", "--json").stdout)
        generations = {view["name"]: view["generation"] for view in status}
        assert generations == {"orders": 1 + rebuilds, "spending": 1 + rebuilds, "orders_search": 1}
        _assert_equal(compose)


def _killed_in_follow(compose: Compose) -> bool:
    """Kill a worker after the first of three views, restart it; return whether a batch was interrupted."""
    before = len(compose.batches())
    compose.sql("UPDATE orders SET total = total + 1")
    wait_until(lambda: len(compose.batches()) > before, _PATIENCE_S)
    killed = compose.kill("spark-worker1")
    wait_until(lambda: len(compose.batches()) >= before + 3, _PATIENCE_S)
    compose.run("start", "spark-worker1")
    assert "Lost executor" in compose.run("logs", "views").stdout
    return any(begin < killed < end for begin, end in compose.batches()[before:])


def _killed_in_rebuild(compose: Compose) -> bool:
    """Rebuild two views by spark-submit, kill the workers after one; return whether executors were lost.

    The workers restart at once: otherwise `follow` could take all that is left of the cluster.
    """
    submit = ("spark-submit", "--master", "spark://spark-master:7077", _REBUILD, "orders", "spending")
    command = compose.command("exec", "-T", "views", *submit)
    before: list[str] = []
    after: list[str] = []
    # in client mode, the job's stderr arrives on spark-submit's stdout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            before.append(line)
            if _is(line, "rebuild batch applied", "orders"):
                compose.kill(*_WORKERS)
                compose.run("start", *_WORKERS)
                after.extend(job.stdout)
    log = "".join([*before, "KILLED\n", *after])
    assert job.returncode == 0, log
    assert any(_is(line, "generation swapped", "spending") for line in after), log
    return any("Lost executor" in line for line in after)


def _assert_equal(compose: Compose) -> None:
    done = compose.execute("views", "tailrace", "verify", "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {line["view"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: result["equal"] for name, result in results.items()} == {"orders": True, "orders_search": True}
    rows = {result["comparisons"][-1]["right_rows"] for result in results.values()}
    assert rows == {int(compose.sql("SELECT count(*) FROM orders"))}
    spending = compose.sql("SELECT customer, count(*), sum(total) FROM orders GROUP BY customer").splitlines()
    assert compose.execute("views", "python", "-c", _SPENDING).stdout.split() == sorted(spending)


def _settings_are_the_brokers_own(compose: Compose) -> None:
    """Check that the broker knows each property: Kafka's image accepts misspelled variables silently."""
    program = """
import json
from confluent_kafka.admin import AdminClient, ConfigResource
resource = ConfigResource(ConfigResource.Type.BROKER, "1")
admin = AdminClient({"bootstrap.servers": "kafka1:9092"})
(future,) = admin.describe_configs([resource]).values()
print(json.dumps({name: entry.value for name, entry in future.result(20).items()}))
"""
    found = json.loads(compose.execute("views", "python", "-c", program).stdout)
    given = yaml.safe_load(_FILE.read_text())["services"]["kafka1"]["environment"]
    properties = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
        for name, value in given.items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    assert len(properties) > 10
    assert {name: found.get(name) for name in properties} == properties
