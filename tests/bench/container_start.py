"""Time from `docker run` of the daemon's image to the first change, with an existing slot.

    python -m tests.bench.container_start [--rounds 5]

A row is committed while no daemon runs; the time ends when a read_committed consumer has it. PostgreSQL and one
broker are containers, too; `docker/local-images` builds missing images, and starts an engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

import psycopg
from confluent_kafka import Consumer, TopicPartition

from tailrace.schemas.records.topics import Topics
from tests.containers.engine import running_engine
from tests.containers.servers import Daemon, Servers, servers
from tests.support.daemon import wait_for_state

_PREFIX = "start"


def measure(servers: Servers, rounds: int) -> list[float]:
    """Return the seconds of each round."""
    found = []
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        with Daemon(servers, servers.dsn, _PREFIX) as daemon:
            wait_for_state(daemon.config, connection)
            kafka = daemon.config.kafka
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap, "group.id": "bench", "isolation.level": "read_committed"}
        )
        topic = Topics(kafka.prefix).table("public", "item")
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(kafka.partitions)])
        for number in range(rounds):
            connection.execute("INSERT INTO item VALUES (%s)", (number,))
            daemon = Daemon(servers, servers.dsn, _PREFIX)
            began = time.monotonic()
            with daemon:
                while (message := consumer.poll(60)) is not None and message.error() is not None:
                    pass
                assert message is not None, "nothing came"
                found.append(time.monotonic() - began)
        consumer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with running_engine(), servers(1) as started:
        seconds = measure(started, arguments.rounds)
    report = {"median_s": round(statistics.median(seconds), 2), "seconds": [round(each, 2) for each in seconds]}
    print(json.dumps({"machine": platform.platform(), "cpus": os.cpu_count(), **report}, indent=2))


if __name__ == "__main__":
    main()
