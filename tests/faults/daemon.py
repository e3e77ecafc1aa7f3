"""The real daemon, killing itself at a named point; the product's methods are wrapped for it.

python -m tests.faults.daemon CONFIG [POINT:WHEN:PASS] [--spool-bytes N]

WHEN is `before`, `after` or `during` (within 10 ms of the call's start, from another thread); PASS counts from 1.

    receive    messages of the WAL are read from the connection (passes that bring none do not count)
    spool      a change of a transaction in progress is stored
    produce    messages are decoded and their records handed to librdkafka
    flush      librdkafka waits until all records of the Kafka transaction are acknowledged
    record     the position record has been made (before), or the broker has it and the transaction is open (after)
    commit     the Kafka transaction is committed: before the request, while it is under way, after the answer
    confirm    the LSN up to which PostgreSQL may discard WAL is confirmed
    snapshot   rows of the first copy are handed to librdkafka, or the end of their chunk is recorded
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS = ("receive", "spool", "produce", "flush", "record", "commit", "confirm", "snapshot")


class Killer:
    """Counts the passes of one point and ends the process at the requested one."""

    def __init__(self, point: str, when: str, number: int) -> None:
        self.point, self.when, self._left = point, when, number

    def around(self, call: Callable[..., Any], counts: Callable[[tuple[Any, ...]], bool]) -> Callable[..., Any]:
        """Wrap `call` so that the process dies before, during or after it; `counts` tells which calls count."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self.when != "after" and self._left == 1 and counts(arguments):
                self._die()
            result = call(*arguments, **named)
            if counts(arguments):
                self._left -= 1
                if self._left == 0 and self.when == "after":
                    kill()
            return result

        return wrapped

    def _die(self) -> None:
        if self.when == "before":
            kill()
        threading.Thread(target=_kill_soon, daemon=True).start()


def kill() -> None:
    """End this process by SIGKILL, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_soon() -> None:
    time.sleep(random.uniform(0, 0.01))
    kill()


class Producer:
    """Wraps a confluent-kafka producer, whose methods cannot be replaced."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def install(killer: Killer) -> None:
    """Wrap the method of the killer's point. If this fails, the product has renamed it: update this list."""
    from tailrace.cdc.backfill.first_snapshot import FirstSnapshot
    from tailrace.cdc.changes.assembler import Assembler
    from tailrace.cdc.wal.connection import Wal
    from tailrace.cdc.wal.spool import Spool
    from tailrace.sinks.kafka.producer import KafkaSink

    always: Callable[[tuple[Any, ...]], bool] = lambda arguments: True  # noqa: E731
    brings: Callable[[tuple[Any, ...]], bool] = lambda arguments: bool(arguments[-1])  # noqa: E731
    methods: dict[str, tuple[Any, str, Callable[[tuple[Any, ...]], bool]]] = {
        "receive": (Wal, "read", always if killer.when == "before" else brings),
        "spool": (Spool, "append", always),
        "produce": (Assembler, "feed", brings),
        "confirm": (Wal, "confirm", always),
        "snapshot": (FirstSnapshot, "_take", always),
    }
    if killer.point in methods:
        owner, name, counts = methods[killer.point]
        setattr(owner, name, killer.around(getattr(owner, name), counts))
        return
    if killer.point == "record":
        _wrap_record(KafkaSink, killer)
        return
    made = KafkaSink.__init__

    def init(sink: Any, *arguments: Any, **named: Any) -> None:
        made(sink, *arguments, **named)
        producer = Producer(sink.producer)
        name = {"flush": "flush", "commit": "commit_transaction"}[killer.point]
        setattr(producer, name, killer.around(getattr(producer, name), always))
        sink.producer = producer

    KafkaSink.__init__ = init  # type: ignore[method-assign,assignment]


def _wrap_record(sink_class: Any, killer: Killer) -> None:
    committed = sink_class.commit
    if killer.when == "before":
        sink_class.commit = killer.around(committed, lambda arguments: True)
        return

    def commit(sink: Any, key: bytes, value: bytes) -> Any:
        producer, sink.producer = sink.producer, Producer(sink.producer)

        at_broker = killer.around(lambda: producer.flush(10), lambda arguments: True)

        def commit_transaction(*arguments: Any) -> Any:
            at_broker()
            return producer.commit_transaction(*arguments)

        sink.producer.commit_transaction = commit_transaction
        try:
            return committed(sink, key, value)
        finally:
            sink.producer = producer

    sink_class.commit = commit


def main(arguments: list[str]) -> None:
    """Run the daemon with the command line's arguments."""
    if "--spool-bytes" in arguments:
        from tailrace.schemas.config.model import Memory

        at = arguments.index("--spool-bytes")
        spool_bytes = int(arguments[at + 1])
        Memory.spool_bytes = property(lambda _: spool_bytes)  # type: ignore[assignment, method-assign]
        del arguments[at : at + 2]
    if len(arguments) > 1:
        point, when, number = arguments[1].split(":")
        install(Killer(point, when, int(number)))
    import typer

    from tailrace.cdc.cli.run import run

    try:
        run(Path(arguments[0]))
    except typer.Exit as ended:  # the error is in the log
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
