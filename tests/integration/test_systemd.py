"""systemd's Type=notify: ready when changes flow, a watchdog that stops with the loop; the unit file."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.daemon.notify import notifying
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.health.health import Health
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.sinks.kafka.skip_offsets import Fill
from tests.support.daemon import ROOT, events, running, write_config

_UNITS = [ROOT / "docker" / name for name in ("tailrace.service", "tailrace-views.service")]
_USAGE = 2


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(30)
        yield supervisor


def _address(supervisor: socket.socket, watchdog_s: float) -> dict[str, str]:
    return {"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}


def _received(supervisor: socket.socket, last: bytes) -> list[bytes]:
    """Return the messages up to and including `last`."""
    said = [supervisor.recv(100)]
    while said[-1] != last:
        said.append(supervisor.recv(100))
    return said


def test_the_daemon_notifies_ready_watchdog_and_stopping(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    supervisor: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in _address(supervisor, watchdog_s=3).items():
        monkeypatch.setenv(name, value)
    config = write_config(tmp_path, database, servers.bootstrap, prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with running(config) as daemon:
        _received(supervisor, b"READY=1")
        assert events(daemon, "stream resumed")
        _received(supervisor, b"WATCHDOG=1")
        assert daemon.stop() == 0
        _received(supervisor, b"STOPPING=1")


def test_a_hanging_loop_ends_the_watchdog_messages(supervisor: socket.socket) -> None:
    health = Health("slot")
    with notifying(health, _address(supervisor, watchdog_s=0.15)):
        assert supervisor.recv(100) == b"WATCHDOG=1"
        health.streaming()
        _received(supervisor, b"READY=1")
        health.turned_at = time.monotonic() - 3600
        supervisor.settimeout(0.5)
        # messages already sent may still arrive
        with pytest.raises(TimeoutError):
            _received(supervisor, b"")


def test_a_start_that_fills_a_topic_gets_more_time_while_it_moves(supervisor: socket.socket) -> None:
    health = Health("slot")
    longer = b"EXTEND_TIMEOUT_USEC=60000000"
    with notifying(health, _address(supervisor, watchdog_s=0.15)):
        for done in (0, 50_000):
            health.fills(Fill("app.public.t", done, 100_000))
            _received(supervisor, longer)
        # the same state gets no more
        assert {supervisor.recv(100) for _ in range(5)} == {b"WATCHDOG=1"}
        health.fills(None)
        health.streaming()
        _received(supervisor, b"READY=1")


def test_notifying_works_without_systemd() -> None:
    with notifying(Health("slot"), {}):
        pass


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit_file(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: apt-get install systemd")
    text = unit.read_text(encoding="utf-8")
    (tmp_path / unit.name).write_text(text.replace("/opt/tailrace/bin", str(Path(sys.executable).parent)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    codes = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    assert codes is not None
    assert [int(code) for code in codes[1].split()] == [_USAGE, ConfigError.exit_code, StateError.exit_code]
