"""The daemon's lag is asked for at its recorded address, and accepted only from that daemon."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest

from tailrace.cdc.operations.read_lag import ask_daemon
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.daemon import DaemonRecord

CONFIG = Config.model_validate({"source": {"dsn": "host=none"}, "kafka": {"bootstrap": "127.0.0.1:1"}})


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Answer every request with `body`; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def recorded(address: str | None, host: str | None = None) -> DaemonRecord:
    return DaemonRecord("running", 1, host or socket.gethostname(), os.getpid(), "1", address)


def answer(**changes: object) -> bytes:
    values = {"slot": CONFIG.source.slot, "prefix": CONFIG.kafka.prefix, "pid": os.getpid(), "lag_seconds": 0.5}
    return orjson.dumps(values | changes)


def test_the_answer_of_the_recorded_daemon_is_accepted() -> None:
    with answering(answer()) as address:
        found = ask_daemon(recorded(address), CONFIG)
        assert found is not None
        assert found["lag_seconds"] == 0.5
        assert ask_daemon(recorded(address, "another-host"), CONFIG) is None
    assert ask_daemon(recorded(address), CONFIG) is None
    assert ask_daemon(recorded(None), CONFIG) is None


@pytest.mark.parametrize(
    "body",
    [answer(slot="other"), answer(prefix="other"), answer(pid=1), b"[]", b"not JSON", b"null"],
    ids=["slot", "prefix", "pid", "list", "no JSON", "null"],
)
def test_the_answer_of_another_program_is_ignored(body: bytes) -> None:
    with answering(body) as address:
        assert ask_daemon(recorded(address), CONFIG) is None
