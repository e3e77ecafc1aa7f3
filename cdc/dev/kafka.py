"""The embedded Kafka 4.3: one broker that is its own controller (KRaft), on loopback.

https://kafka.apache.org/documentation/#kraft
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.cdc.dev.process import Process, end, free_ports, listening, reason, spawn, start_hint, tail, wait_until
from tailrace.cdc.dev.server import Record, Server, reusable, wanted_settings
from tailrace.cdc.launch import java
from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.jars import jars
from tailrace.schemas.errors import SinkError

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Topics are created explicitly, with their settings; a misspelled name must not create one.
    "auto.create.topics.enable": "false",
    # There is only one broker.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 partitions each would only slow the first start down.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # A record every half second is two fifths of an idle broker's load.
    "metadata.max.idle.interval.ms": "0",
    # Tailrace has to cope with compaction, so it should happen soon.
    "log.cleaner.backoff.ms": "1000",
}

_START_SECONDS = 60.0

_JVM = ("-Xms128m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError")


def start(
    folder: Path,
    old: Server | None,
    settings: Mapping[str, str] | None,
    record: Record,
    java_options: Sequence[str] = java.SMALL,
    ports: Mapping[str, int] | None = None,
) -> Server:
    """Return a broker that answers: the old one if it runs, else a new one with its data and ports.

    `settings` are broker properties that override ours, `ports` fixed ones for a broker that does not run. Raises
    SinkError (TR-605) if it does not start.
    """
    settings = wanted_settings(old, settings)
    if reusable(old, settings, ready, _START_SECONDS):
        return old
    jdk, files = java.find_java("Kafka", java.KAFKA), jars("kafka")
    folder.mkdir(parents=True, exist_ok=True)
    data, log, properties = folder / "data", folder / "kafka.log", folder / "server.properties"
    before = [old.ports["broker"], old.ports["controller"]] if old else [None, None]
    broker, controller = free_ports(before) if ports is None else (ports["broker"], ports["controller"])
    write_properties(properties, {**PROPERTIES, **_addresses(broker, controller), "log.dirs": str(data), **settings})
    (folder / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")
    jvm = [
        str(jdk.executable),
        *_JVM,
        *java_options,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-cp",
        os.pathsep.join(map(str, files)),
    ]
    command = [*jvm, *archive_options("kafka", jdk, files, write=False)]

    def server(process: Process) -> Server:
        return Server("kafka", process, log, data, {"broker": broker, "controller": controller}, settings)

    if not (data / "meta.properties").exists():
        _format(command, properties)
    elif not (data / ".kafka_cleanshutdown").exists():
        fence(command, server, record)

    process = spawn(
        [*jvm, *archive_options("kafka", jdk, files, write=True), "kafka.Kafka", str(properties)],
        log=log,
        folder=folder,
        record=lambda process: record(server(process)),
    )
    await_ready(server(process))
    return server(process)


def bootstrap(server: Server) -> str:
    """Return the `bootstrap.servers` for clients."""
    return f"127.0.0.1:{server.ports['broker']}"


def _addresses(broker: int, controller: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write the configuration of a broker."""
    # In Java's format, a backslash is the escape character.
    lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in properties.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _format(command: list[str], properties: Path) -> None:
    # A hand-written meta.properties would save 0.8 s once, but then the cluster's features (among them
    # transaction.version) stay at 0 instead of the values in a real cluster of this version.
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # one id in 64 begins with a dash, which would be parsed as an option
    tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(properties)]
    done = subprocess.run([*command, *tool], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SinkError("TR-605", "Kafka's storage could not be formatted", detail=reason(done.stderr + done.stdout))


def fence(command: list[str], server: Callable[[Process], Server], record: Record) -> None:
    """Fence a killed broker before it starts again, by a short run of the controller alone.

    Otherwise, the broker leads its partitions again by the old metadata until its old session ends (9 s). A transaction
    that was being committed during the kill is then marked complete although the partition has no commit marker: under
    read_committed, it and all later records stay invisible forever. (Observed with 4.3.1; the log says "these
    partitions are likely deleted already".) Fencing is also faster than waiting for those 9 s.
    """
    planned = server(Process(0, ""))
    assert planned.data is not None
    controller = planned.ports["controller"]
    folder = planned.data.parent
    properties, log = folder / "fence.properties", folder / "fence.log"
    only_controller = {
        "process.roles": "controller",
        "listeners": f"CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": str(planned.data),
        "broker.heartbeat.interval.ms": "100",
        "broker.session.timeout.ms": "200",
    }
    kept = ("node.id", "controller.listener.names", "listener.security.protocol.map")
    write_properties(properties, {**{name: PROPERTIES[name] for name in kept}, **only_controller})
    process = spawn(
        [*command, "kafka.Kafka", str(properties)],
        log=log,
        folder=folder,
        record=lambda process: record(server(process)),
    )

    def said(line: str) -> bool:
        return log.exists() and line in log.read_text(errors="replace")

    # The 10 s below start once the controller is active: on a busy machine, its JVM alone has taken more than 10 s.
    wait_until(lambda: said("Performing controller activation"), process, _START_SECONDS)
    # A broker that was killed before it had registered is not fenced: then this takes the full time. (The line
    # searched for is not the record's own name: at every start, the controller replays earlier fencing records.)
    if wait_until(lambda: said("Fencing broker 1 at epoch"), process, 10):
        # The line is logged some milliseconds before the record is on disk.
        time.sleep(0.3)
    end(process)


def ready(server: Server) -> bool:
    """Return whether the broker answers."""
    # Checked first, because librdkafka writes to stderr about a closed port.
    if not listening(server.ports["broker"]):
        return False
    try:
        client = AdminClient({"bootstrap.servers": bootstrap(server), "log_level": 0})
        return bool(client.list_topics(timeout=1.5).brokers)
    except KafkaException:
        return False


def await_ready(server: Server) -> None:
    """Return once the broker is ready. Raises SinkError (TR-605) if it does not become ready in time."""
    if not wait_until(lambda: ready(server), server.process, _START_SECONDS):
        raise SinkError(
            "TR-605", "the embedded Kafka did not start", detail=tail(server.log), hint=start_hint(server.log)
        )
