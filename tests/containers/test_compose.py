"""docker/compose.yaml as it is, but for images and ports: views on a Spark cluster that loses a worker in mid-batch."""

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

from schemas.lsn import parse_lsn
from tests.daemon import ROOT, wait_until

_FILE = ROOT / "docker" / "compose.yaml"
_JOBS = "/opt/tailrace/lib/python3.11/site-packages/spark_jobs"
_WITHOUT_IMAGE = ("opensearch", "registry")
_PATIENCE_S = 600
_QUICK = "-Xms128m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Compose:
    """A project of `docker compose`."""

    project: str
    files: tuple[Path, ...]

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        files = [part for file in self.files for part in ("--file", str(file))]
        program = str(Path(sys.executable).with_name("docker-compose"))
        done = subprocess.run(
            [program, "--project-name", self.project, *files, *arguments], capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def execute(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("exec", "-T", service, *command, check=check)

    def sql(self, statement: str) -> str:
        return self.execute("postgres", "psql", "-U", "postgres", "-Atc", statement, "app").stdout.strip()

    def views(self) -> list[dict[str, Any]]:
        """Return what `tailrace views status` says; nothing as long as it cannot."""
        done = self.execute("views", "tailrace", "views", "status", "--json", check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
        return found

    def wait_for_views(self) -> None:
        """Return when all views have what the database has now."""
        target = parse_lsn(self.sql("SELECT pg_current_wal_insert_lsn()"))
        self.sql("SELECT pg_logical_emit_message(true, 'test', 'x')")

        def there() -> bool:
            views = self.views()
            return bool(views) and all(parse_lsn(view["flushed_lsn"] or "0/0") >= target for view in views)

        try:
            wait_until(there, _PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{self.views()}\n{self.run('logs', '--tail', '20').stdout}") from None

    def batches(self) -> list[tuple[float, float]]:
        """Return begin and end of all batches that changed something, in seconds since 1970."""
        logged = self.run("logs", "--no-log-prefix", "--timestamps", "views").stdout
        found = re.findall(r'^(\S+) (\{"event":"batch".*\})$', logged, re.MULTILINE)
        ends = [(datetime.fromisoformat(at).timestamp(), json.loads(line)["ms"]) for at, line in found]
        return [(end - sum(spent.values()) / 1000, end) for end, spent in ends]


@contextmanager
def up(folder: Path) -> Iterator[Compose]:
    """Start what there are images of; all is gone afterwards."""
    described = yaml.safe_load(_FILE.read_text())
    services = described["services"]
    wanted = [name for name in services if name not in _WITHOUT_IMAGE]
    toml = (_FILE.parent / described["configs"]["tailrace"]["file"]).read_text().partition("[views.orders_search]")[0]
    (folder / "tailrace.toml").write_text(toml)
    changed: dict[str, Any] = {name: {"image": f"tailrace-local/{services[name]['image']}"} for name in wanted}
    for name in wanted:
        if "KAFKA_HEAP_OPTS" in services[name].get("environment", {}):
            changed[name]["environment"] = {"KAFKA_HEAP_OPTS": _QUICK}
    config = {"tailrace": {"file": str(folder / "tailrace.toml")}}
    override = yaml.safe_dump({"services": changed, "configs": config})
    # ports of the machine's own may be taken
    for name in wanted:
        override = re.sub(rf"^(  {name}:)$", r"\1\n    ports: !reset []", override, flags=re.MULTILINE)
    (folder / "override.yaml").write_text(override)
    compose = Compose(f"t{uuid.uuid4().hex[:8]}", (_FILE, folder / "override.yaml"))
    try:
        compose.run("up", "--detach", "--no-build", "--pull", "never", *wanted)
        yield compose
    finally:
        compose.run("down", "--volumes", "--timeout", "5")


@pytest.mark.xfail(reason="issue 8: it has not passed yet, and takes minutes to say so", run=False)
@pytest.mark.timeout(1500)
def test_views_are_right_though_a_worker_dies_in_mid_batch(engine: None, tmp_path: Path) -> None:
    with up(tmp_path) as compose:
        compose.wait_for_views()
        _settings_are_the_brokers_own(compose)

        assert _killed_in_mid_batch(compose)
        compose.wait_for_views()
        _assert_equal(compose)

        submit = ("spark-submit", "--master", "spark://spark-master:7077", f"{_JOBS}/rebuild.py", "orders", "spending")
        compose.execute("views", *submit)
        compose.sql("DELETE FROM orders WHERE id % 7 = 0")
        compose.wait_for_views()
        assert {view["generation"] for view in compose.views()} == {2}
        _assert_equal(compose)


def _killed_in_mid_batch(compose: Compose) -> bool:
    """Kill workers, one after the other, until one was killed while a batch ran; none of them stays away."""
    for attempt in range(6):
        worker = f"spark-worker{attempt % 2 + 1}"
        before = len(compose.batches())
        compose.sql("UPDATE orders SET total = total + 1")
        time.sleep(1 + attempt / 2)
        compose.run("kill", "--signal", "KILL", worker)
        killed = time.time()
        wait_until(lambda: len(compose.batches()) > before, _PATIENCE_S)  # noqa: B023  # it is called here
        compose.run("start", worker)
        if any(begin < killed < end for begin, end in compose.batches()[before:]):
            return True
    return False


def _assert_equal(compose: Compose) -> None:
    done = compose.execute("views", "tailrace", "verify", "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {line["view"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: result["equal"] for name, result in results.items()} == {"orders": True, "spending": True}
    rows = {name: result["comparisons"][-1]["right_rows"] for name, result in results.items()}
    counted = compose.sql("SELECT count(*) || ' ' || count(DISTINCT customer) FROM orders").split()
    assert [rows["orders"], rows["spending"]] == [int(number) for number in counted]


def _settings_are_the_brokers_own(compose: Compose) -> None:
    """A variable whose name is wrong is no error to Kafka's image: it would be a property that nobody reads."""
    program = """
import json
from confluent_kafka.admin import AdminClient, ConfigResource
resource = ConfigResource(ConfigResource.Type.BROKER, "1")
(future,) = AdminClient({"bootstrap.servers": "kafka1:9092"}).describe_configs([resource]).values()
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
