"""The state file, the folders that are refused, and unprivileged users; no server is started here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace.cdc.dev import postgres, unprivileged
from tailrace.cdc.dev.process import Process, alive, started_at, tail, wait_until
from tailrace.cdc.dev.server import Server, reusable, wanted_settings
from tailrace.cdc.dev.state import start_program, start_servers, status, stop_servers
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError, SinkError, SourceError


def test_a_server_is_written_and_read_back() -> None:
    server = Server("kafka", Process(7, "b/9"), Path("/l"), Path("/d"), {"broker": 1}, {"a": "b"}, Path("/s"))
    assert Server.from_json("kafka", json.loads(json.dumps(server.to_json()))) == server
    bare = Server("load", Process(7, "b/9"), Path("/l"))
    assert Server.from_json("load", json.loads(json.dumps(bare.to_json()))) == bare


def test_settings_are_the_given_ones_or_those_of_the_last_start() -> None:
    old = Server("kafka", Process(7, "b/9"), Path("/l"), settings={"a": "1"})
    assert wanted_settings(old, None) == {"a": "1"}
    assert wanted_settings(old, {}) == {}
    assert wanted_settings(None, None) == {}
    assert not reusable(old, {"a": "1"}, lambda server: True, 1)


def test_a_program_is_started_once_and_replaced_if_its_command_changes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    first = start_program(tmp_path / "s", "load", command)
    assert start_program(tmp_path / "s", "load", command) == first
    second = start_program(tmp_path / "s", "load", [*command, "other"])
    assert not alive(first.process)
    assert wait_until(lambda: tail(second.log).endswith("up"), second.process, 10)
    (shown,) = status(tmp_path / "s")
    assert (shown.server, shown.alive, shown.memory > 1_000_000) == (second, True, True)
    assert stop_servers(tmp_path / "s") == ["load"]
    assert not alive(second.process)
    assert stop_servers(tmp_path / "s", purge=True) == []
    assert not (tmp_path / "s").exists()


def test_a_recorded_id_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    me = {"pid": os.getpid(), "started": "an earlier boot/5", "log": "/l", "data": None, "ports": {}}
    kept = {"servers": {"load": {**me, "settings": {}, "socket": None}}}
    (tmp_path / "servers.json").write_text(json.dumps(kept))
    assert [shown.alive for shown in status(tmp_path)] == [False]
    assert stop_servers(tmp_path) == []


def test_purge_refuses_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(ConfigError, match=r"TR-615.*not a state folder"):
        stop_servers(tmp_path, purge=True)
    assert os.listdir(tmp_path) == ["precious"]
    assert stop_servers(tmp_path / "none", purge=True) == []


def test_servers_do_not_start_in_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="is not a state folder") as caught:
        start_servers(tmp_path)
    assert caught.value.code == "TR-615"
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_server_starts_while_the_jars_of_others_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_starts, fetched = threading.Event(), []

    def fetch(name: str, _: object) -> list[Path]:
        assert name == "kafka" or kafka_starts.wait(20)
        fetched.append(name)
        return []

    def start_kafka(*_: object, **__: object) -> Server:
        assert fetched == ["kafka"]
        kafka_starts.set()
        raise SinkError("TR-605", "planted")

    monkeypatch.setattr("tailrace.cdc.dev.state.jars", fetch)
    monkeypatch.setattr("tailrace.cdc.dev.state.kafka.start", start_kafka)
    for other in ("postgres", "opensearch"):
        monkeypatch.setattr(
            f"tailrace.cdc.dev.state.{other}.start", lambda *_, **__: Server("", Process(7, "b"), tmp_path)
        )
    monkeypatch.setattr("tailrace.cdc.dev.state.java.find_java", lambda *_: None)
    with pytest.raises(SinkError, match="planted"):
        start_servers(tmp_path / "s", more_jars=["spark"])
    assert fetched[:2] == ["kafka", "opensearch"]


def test_a_start_that_was_interrupted_at_once_can_be_purged(tmp_path: Path) -> None:
    with locked(tmp_path / "s" / "lock"):
        pass
    assert stop_servers(tmp_path / "s", purge=True) == []
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"servers": {"kafka": {}}}'])
def test_a_damaged_state_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "servers.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        status(tmp_path)
    assert caught.value.code == "TR-609"
    assert "servers.json" in caught.value.message


def test_the_narrower_capability_to_read_files_is_kept(tmp_path: Path) -> None:
    status_file = tmp_path / "status"
    for permitted, kept in (("6", "dac_read_search"), ("2", "dac_override"), ("0", None)):
        status_file.write_text(f"CapInh:\t0\nCapPrm:\t000000000000000{permitted}\n")
        assert unprivileged.kept_capability(unprivileged.permitted_capabilities(status_file)) == kept


def test_an_unprivileged_user_may_run_programs_in_roots_folders(tmp_path: Path) -> None:
    program = tmp_path / "closed" / "program"
    program.parent.mkdir(mode=0o700)
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    ask = [sys.executable, "-c", "import os, sys; sys.exit(not os.access(sys.argv[1], os.X_OK))", str(program)]
    assert subprocess.run([*unprivileged.prefix(unprivileged.NOBODY), *ask], check=False).returncode == 0


def test_only_root_switches_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged.prefix(65534) == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SourceError, match="setpriv"):
        unprivileged.prefix(65534)


def test_database_and_socket_path_are_quoted_in_a_dsn() -> None:
    server = Server("postgres", Process(1, "x"), Path("/l"), ports={"sql": 5}, socket=Path("/a b/run"))
    assert postgres.dsn(server, "a/b") == "postgresql://postgres@127.0.0.1:5/a%2Fb"
    assert postgres.socket_dsn(server) == "postgresql://postgres@/postgres?host=%2Fa%20b%2Frun&port=5"


def test_our_own_process_is_alive() -> None:
    assert alive(Process(os.getpid(), started_at(os.getpid()) or ""))
