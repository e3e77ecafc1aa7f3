"""What the service does with errors; the session is a double, for PostgreSQL fails this way by chance only."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from cdc import service
from cdc.connect import DECODING_FAILED
from cdc.ops.health import Health
from schemas.config import Config, Source
from schemas.errors import SourceError


class _Session:
    """Fails in mid-stream while it streams, and stops the service when it does not."""

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


def test_goes_on_without_streaming_when_decoding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Session", _Session)
    monkeypatch.setattr(service, "settle", lambda: None)
    service.Service(Config(source=Source(dsn="", streaming=True)), threading.Event(), Health("s")).run()
    assert _Session.streamed == [True, False]
