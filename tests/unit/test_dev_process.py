"""Processes start only once they are recorded, are identified by start time, and end reliably."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tailrace.cdc.dev.process import (
    Process,
    alive,
    end,
    free_ports,
    listening,
    spawn,
    start_hint,
    started_at,
    tail,
    wait_until,
)
from tailrace.cdc.launch.lock import locked

SLEEP = ["/bin/sleep", "60"]


def start(folder: Path, command: list[str]) -> Process:
    return spawn(command, log=folder / "log", folder=folder, record=lambda process: None)


def test_a_process_runs_detached_with_its_output_in_the_log(tmp_path: Path) -> None:
    process = start(tmp_path, ["/bin/sh", "-c", "echo started; exec sleep 60"])
    assert wait_until(lambda: tail(tmp_path / "log") == "started", process, 5)
    assert os.getsid(process.pid) != os.getsid(0)
    end(process)
    assert not alive(process)


def test_a_process_that_could_not_be_recorded_does_not_run(tmp_path: Path) -> None:
    seen: list[Process] = []

    def record(process: Process) -> None:
        seen.append(process)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        spawn(["/bin/touch", str(tmp_path / "ran")], log=tmp_path / "log", folder=tmp_path, record=record)
    assert wait_until(lambda: not alive(seen[0]), Process(os.getpid(), started_at(os.getpid()) or ""), 5)
    assert not (tmp_path / "ran").exists()


def test_a_process_with_a_recycled_id_is_not_ended(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEP)
    other = Process(process.pid, "another boot/1")
    assert not alive(other)
    end(other)
    assert alive(process)
    end(process)


def test_a_zombie_counts_as_ended() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert started_at(child.pid) is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, ["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    assert wait_until(lambda: tail(tmp_path / "log") == "deaf", process, 5)
    began = time.monotonic()
    end(process, seconds=0.5)
    assert not alive(process)
    assert 0.5 <= time.monotonic() - began < 5


def test_waiting_stops_when_the_process_has_ended(tmp_path: Path) -> None:
    process = start(tmp_path, ["/bin/false"])
    began = time.monotonic()
    assert not wait_until(lambda: False, process, 30)
    assert time.monotonic() - began < 5


def test_free_ports_are_the_wanted_ones_if_free_and_all_differ() -> None:
    first, second = free_ports([None, None])
    assert first != second
    assert free_ports([first, second]) == [first, second]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert listening(first)
        got = free_ports([first, second, second])
        assert got[1] == second
        assert len({first, *got}) == 4
    assert not listening(first)


def test_a_lock_has_one_holder_and_is_released_if_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    code = (
        "import sys, time; from pathlib import Path; from tailrace.cdc.launch.lock import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        got = threading.Event()

        def take() -> None:
            with locked(path):
                got.set()

        waiter = threading.Thread(target=take)
        waiter.start()
        assert not got.wait(0.3)
        holder.send_signal(signal.SIGKILL)
        assert got.wait(5)
        waiter.join()


def test_a_waiter_does_not_get_the_lock_of_a_deleted_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    got = threading.Event()

    def take() -> None:
        with locked(path):
            got.set()
            assert path.exists()

    waiter = threading.Thread(target=take)
    with locked(path):
        waiter.start()
        time.sleep(0.2)
        path.unlink()
    assert got.wait(5)
    waiter.join()
    assert path.exists()


def test_the_hint_of_a_failed_start_recognizes_a_taken_port(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "See " in start_hint(log)
    log.write_text("java.net.BindException: Address already in use\n")
    assert "Repeat the command" in start_hint(log)
    log.write_text('FATAL: lock file "postmaster.pid" already exists\n')
    assert start_hint(log) == f"See {log}."
