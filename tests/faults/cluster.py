"""Kafka with one broker or three, optionally behind proxies; each broker can be killed and paused.

Every node is broker and controller (KRaft). Three nodes have three replicas of everything, two of which must be in
sync. Clients of the proxied listener are told the proxies' addresses, so that all their traffic goes through them.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tailrace.cdc.dev import kafka
from tailrace.cdc.dev.process import Process, alive, end, free_ports, spawn
from tailrace.cdc.dev.server import Server
from tailrace.cdc.launch import java
from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.jars import jars

_JVM = ["-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-XX:TieredStopAtLevel=1"]


def replicated(brokers: int) -> dict[str, str]:
    """Return broker properties for `brokers` replicas of everything, two of them in sync."""
    replicas, in_sync = str(brokers), str(min(brokers, 2))
    properties = {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
    if brokers > 1:
        # so that a dead or frozen broker is detected within a round
        properties |= {
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "3000",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1500",
        }
    return properties


class Node:
    """One broker on its ports: its proxied listener binds `proxied` and advertises `proxy`."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / f"kafka{number}"
        self.folder.mkdir(parents=True)
        self.number = number
        self.port, self.controller, self.proxied, self.proxy = free_ports([None] * 4)
        self.process: Process | None = None
        self._killed = False
        (self.folder / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")
        jdk, files = java.find_java("Kafka", java.KAFKA), jars("kafka")
        self._command = [
            str(jdk.executable),
            *_JVM,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(map(str, files)),
            *archive_options("kafka", jdk, files, write=False),
        ]

    def format(self, nodes: list[Node], cluster_id: str) -> None:
        """Write the settings and format the empty log folder."""
        listeners = {"PLAINTEXT": self.port, "PROXIED": self.proxied, "CONTROLLER": self.controller}
        properties = (
            kafka.PROPERTIES
            | {
                "node.id": str(self.number),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self.proxy}",
                "controller.quorum.voters": ",".join(f"{each.number}@127.0.0.1:{each.controller}" for each in nodes),
                "log.dirs": str(self.folder / "data"),
            }
            | replicated(len(nodes))
        )
        kafka.write_properties(self.folder / "server.properties", properties)
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        subprocess.run(
            [*self._command, *tool, "--config", str(self.folder / "server.properties")],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def start(self, *, alone: bool) -> None:
        """Start it without waiting. If it was killed and is `alone`, fence it first, as `cdc.dev.kafka` does."""
        if self._killed and alone:
            kafka.fence(self._command, self._server, lambda server: None)
        self._killed = False
        self.process = spawn(
            [*self._command, "kafka.Kafka", str(self.folder / "server.properties")],
            log=self.folder / "kafka.log",
            folder=self.folder,
            record=lambda process: None,
        )

    def ready(self) -> None:
        """Return when the broker answers."""
        assert self.process is not None
        kafka.await_ready(self._server(self.process))

    def kill(self) -> None:
        assert self.process is not None
        self._killed = True
        end(self.process, politely=signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.resume()
            end(self.process)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        if alive(self.process):
            os.kill(self.process.pid, signal.SIGCONT)

    def _server(self, process: Process) -> Server:
        ports = {"broker": self.port, "controller": self.controller}
        return Server("kafka", process, self.folder / "kafka.log", self.folder / "data", ports)


class Cluster:
    """A Kafka cluster of one node or three."""

    def __init__(self, folder: Path, size: int) -> None:
        self.nodes = [Node(folder, number) for number in range(1, size + 1)]
        cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        with ThreadPoolExecutor(size) as threads:
            list(threads.map(lambda node: node.format(self.nodes, cluster_id), self.nodes))
        try:
            for node in self.nodes:
                node.start(alone=size == 1)
            for node in self.nodes:
                node.ready()
        except BaseException:
            self.stop()
            raise

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def proxied_bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.proxy}" for node in self.nodes)

    def start(self, node: Node) -> None:
        """Start a node that was stopped or killed, and wait until it answers."""
        node.start(alone=len(self.nodes) == 1)
        node.ready()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
