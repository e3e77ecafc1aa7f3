"""The service's handling of errors; sessions are stubs, for PostgreSQL fails so only by chance."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import pytest
from structlog.testing import capture_logs
from tenacity import wait_fixed, wait_none

from tailrace.cdc.daemon import service
from tailrace.cdc.health.health import Health
from tailrace.cdc.postgres.connect import DECODING_FAILED
from tailrace.schemas.config.model import Config, Delivery, Source
from tailrace.schemas.errors import SourceError


class _Session:
    """Fails if transactions are streamed in progress, and stops the service otherwise."""

    streamed: ClassVar[list[bool]] = []
    begun = True

    def __init__(self, config: Config, stop: threading.Event, health: Health) -> None:
        self._stop = stop
        self.streamed.append(config.source.streaming)

    def start(self) -> None: ...

    def run(self) -> None:
        if self.streamed[-1]:
            raise SourceError(DECODING_FAILED, "could not map filenumber")
        self._stop.set()

    def close(self) -> None: ...


def test_the_service_continues_without_streaming_if_decoding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Session", _Session)
    monkeypatch.setattr(service, "settle", lambda: None)
    service.Service(Config(source=Source(dsn="", streaming=True)), threading.Event(), Health("s")).run()
    assert _Session.streamed == [True, False]


class _NoServer(_Session):
    """Runs once, then cannot connect for three attempts, runs again, and cannot connect once more."""

    attempts: ClassVar[int] = 0

    def __init__(self, config: Config, stop: threading.Event, health: Health) -> None:
        type(self).attempts += 1
        if self.attempts in (2, 3, 4, 6):
            raise SourceError("TR-201", "cannot connect")
        self._stop, self._health = stop, health

    def run(self) -> None:
        self._health.sessions += 1
        if self.attempts == 7:
            self._stop.set()
            return
        raise SourceError("TR-211", "a connection was lost")


class _NeverThere(_Session):
    """Cannot connect, at any attempt."""

    def __init__(self, config: Config, stop: threading.Event, health: Health) -> None:
        raise SourceError("TR-201", "cannot connect")


def test_a_server_that_never_answers_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `start_timeout_s`, and not before."""
    monkeypatch.setattr(service, "Session", _NeverThere)
    monkeypatch.setattr(service, "settle", lambda: None)
    monkeypatch.setattr(service, "wait_random_exponential", lambda **_: wait_fixed(0.02))
    config = Config(source=Source(dsn="host=none"), delivery=Delivery(start_timeout_s=0.3))
    began = time.monotonic()
    with pytest.raises(SourceError, match="cannot connect"):
        service.Service(config, threading.Event(), Health("s")).run()
    assert time.monotonic() - began >= 0.3


def test_the_same_error_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Session", _NoServer)
    monkeypatch.setattr(service, "settle", lambda: None)
    monkeypatch.setattr(service, "wait_random_exponential", lambda **_: wait_none())
    with capture_logs() as lines:
        service.Service(Config(source=Source(dsn="host=none")), threading.Event(), Health("s")).run()
    assert [(line["code"], line["times"]) for line in lines] == [
        ("TR-211", 1),
        ("TR-201", 1),
        ("TR-211", 3),
        ("TR-201", 1),
    ]
