"""The servers of all rounds: started when first needed, then shared by one round after the other."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.process import free_ports
from tests.faults import proxy
from tests.faults.cluster import Cluster
from tests.faults.proxy import Toxiproxy
from tests.faults.source import Pair, Postgres


class World:
    """Lazily started servers; `close` ends all that have been started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pairs = 0

    @cached_property
    def postgres(self) -> Postgres:
        return Postgres(self.folder / "postgres")

    @cached_property
    def one(self) -> Cluster:
        """Kafka with one broker."""
        return self._cluster("one", 1)

    @cached_property
    def three(self) -> Cluster:
        """Kafka with three brokers."""
        return self._cluster("three", 3)

    @cached_property
    def proxies(self) -> Toxiproxy:
        """Links "postgres" and "kafka", the latter to the single broker."""
        made = Toxiproxy(self.folder)
        made.link("postgres", self.proxied_postgres, self.postgres.port)
        (node,) = self.one.nodes
        made.link("kafka", node.proxy, node.proxied)
        return made

    @cached_property
    def proxied_postgres(self) -> int:
        """Port of the link to PostgreSQL."""
        return free_ports([None])[0]

    def pair(self) -> tuple[Pair, Path]:
        """Return a new primary and standby, for one round, and their folder."""
        self._pairs += 1
        folder = self.folder / f"pair{self._pairs}"
        return Pair(folder), folder

    def dsn(self, database: str) -> str:
        return postgres.dsn(self.postgres.server, database)

    def proxied_dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.proxied_postgres}/{database}"

    def close(self) -> None:
        for name in ("proxies", "three", "one", "postgres"):
            if name in self.__dict__:
                self.__dict__[name].stop()
        shutil.rmtree(self.folder / "postgres", ignore_errors=True)

    def _cluster(self, name: str, size: int) -> Cluster:
        folder = self.folder / name
        folder.mkdir()
        return Cluster(folder, size)


def why_not(kind: str) -> str | None:
    """Return the reason if this machine cannot produce a kind of fault."""
    from tests.faults.machine import Clock, SmallDisk

    if kind == "full disk":
        return SmallDisk.why_not()
    if kind == "clock jumps":
        return Clock.why_not()
    return proxy.why_not() if kind.endswith("links") or kind == "reset connections" else None
