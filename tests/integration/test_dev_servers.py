"""The embedded servers from the first start to the purge, and after kill -9."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tailrace.cdc.dev import opensearch, postgres
from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.process import Process, alive, listening, started_at, wait_until
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.dev.state import (
    Servers,
    ended_on_failure,
    running,
    start_program,
    start_servers,
    status,
    stop_servers,
)
from tailrace.cdc.launch import java
from tailrace.cdc.launch.jars import cache_folder
from tailrace.schemas.errors import ConfigError, SinkError
from tests.support.daemon import tailrace
from tests.support.ports import free_base
from tests.support.postgres_own import own_postgres

_SESSION_OPEN = "DUPLICATE_BROKER_REGISTRATION"

ME = Process(os.getpid(), started_at(os.getpid()) or "")


def by_name(state_dir: Path) -> dict[str, Server]:
    return {shown.server.name: shown.server for shown in status(state_dir)}


def make_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(30)


def write(bootstrap: str, topic: str, value: bytes, *, transactional_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def first_value(bootstrap: str, topic: str) -> bytes | None:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        message = reader.poll(30)
        return None if message is None else message.value()
    finally:
        reader.close()


def ask(url: str, method: str, path: str, document: object = None) -> dict[str, object]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status in (200, 201), answer.read()
        return dict(json.loads(answer.read()))
    finally:
        connection.close()


@pytest.fixture
def own_state(tmp_path: Path) -> Iterator[Path]:
    """The test's own state folder, for servers that it kills."""
    folder = tmp_path / "state"
    yield folder
    if folder.exists():
        stop_servers(folder)


def test_postgres_is_set_up_for_logical_replication(servers: Servers, database: str) -> None:
    wanted = {
        "wal_level": "logical",
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "track_commit_timestamp": "off",
        "listen_addresses": "127.0.0.1",
        "server_encoding": "UTF8",
    }
    with psycopg.connect(database) as connection:
        for name, value in wanted.items():
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,), name
    with psycopg.connect(servers.socket_dsn) as connection:
        assert connection.execute("SELECT inet_server_addr(), version()").fetchone() is not None
        assert connection.info.server_version // 10000 == 18


def test_postgres_does_not_run_as_root(servers: Servers, state_dir: Path) -> None:
    running = Path(f"/proc/{by_name(state_dir)['postgres'].process.pid}")
    assert running.stat().st_uid != 0


def test_every_port_is_on_loopback_only(servers: Servers, search_url: str, state_dir: Path) -> None:
    ours = {port for server in by_name(state_dir).values() for port in server.ports.values()}
    assert len(ours) == 5
    listening_on: dict[int, set[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and int(port, 16) in ours:
                listening_on.setdefault(int(port, 16), set()).add(address)
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(listening_on) == ours
    assert set.union(*listening_on.values()) <= loopback


def test_dropping_a_test_database_drops_its_slots(servers: Servers) -> None:
    from tests.support.servers import drop_database

    dsn = create_database(servers.dsn, "slotted")
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('s1', 'pgoutput')")
    drop_database(servers.dsn, "slotted")
    with psycopg.connect(servers.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's1'").fetchone() == (0,)


def test_kafka_takes_transactions_and_makes_no_topic_by_itself(servers: Servers, prefix: str) -> None:
    make_topic(servers.bootstrap, f"{prefix}.t")
    write(servers.bootstrap, f"{prefix}.t", b"one", transactional_id=prefix)
    assert first_value(servers.bootstrap, f"{prefix}.t") == b"one"
    AdminClient({"bootstrap.servers": servers.bootstrap}).list_topics(f"{prefix}.typo", 10)
    topics = AdminClient({"bootstrap.servers": servers.bootstrap}).list_topics(timeout=10).topics
    assert f"{prefix}.t" in topics
    assert f"{prefix}.typo" not in topics


def test_a_document_is_indexed_and_found(search_url: str, prefix: str) -> None:
    ask(
        search_url,
        "PUT",
        f"/{prefix}/_doc/1?refresh=true&version=7&version_type=external_gte",
        {"a": "hello you"},
    )
    found = ask(search_url, "POST", f"/{prefix}/_search", {"query": {"match": {"a": "hello"}}})
    assert '"hello you"' in json.dumps(found)


def test_starting_again_finds_what_runs(servers: Servers, state_dir: Path) -> None:
    before = by_name(state_dir)
    again = start_servers(state_dir, search=False)
    assert (again.dsn, again.bootstrap) == (servers.dsn, servers.bootstrap)
    assert by_name(state_dir) == before


def test_killed_servers_come_back_with_their_data_on_their_ports(own_state: Path) -> None:
    """Twice, because the second start of the broker reads the records of the first fencing."""
    first = start_servers(own_state, search=False, kafka_properties={"log.cleaner.backoff.ms": "100"})
    with psycopg.connect(first.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
    make_topic(first.bootstrap, "kept")
    write(first.bootstrap, "kept", b"value", transactional_id="t")
    killed = by_name(own_state)
    for server in killed.values():
        os.kill(server.process.pid, signal.SIGKILL)
    again = start_servers(own_state, search=False)
    assert (again.dsn, again.bootstrap) == (first.dsn, first.bootstrap)
    assert by_name(own_state)["kafka"].process != killed["kafka"].process
    with psycopg.connect(again.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
    assert first_value(again.bootstrap, "kept") == b"value"
    # The marker of a committed record is lost only by chance; but a session that is still open is always logged.
    assert _SESSION_OPEN not in by_name(own_state)["kafka"].log.read_text()
    # None means the settings of the last start.
    broker = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": again.bootstrap})
    (answer,) = admin.describe_configs([broker]).values()
    assert answer.result(10)["log.cleaner.backoff.ms"].value == "100"

    # Other programs have taken its ports meanwhile, and another setting is requested.
    make_topic(again.bootstrap, "second")
    write(again.bootstrap, "second", b"committed", transactional_id="second")
    kafka = by_name(own_state)["kafka"]
    os.kill(kafka.process.pid, signal.SIGKILL)
    assert wait_until(lambda: not listening(kafka.ports["broker"]), ME, 10)
    with socket.create_server(("127.0.0.1", kafka.ports["broker"])):
        with socket.create_server(("127.0.0.1", kafka.ports["controller"])):
            moved = start_servers(own_state, search=False, postgres_settings={"work_mem": "5MB"})
        assert moved.bootstrap != first.bootstrap
        assert first_value(moved.bootstrap, "kept") == b"value"
        assert first_value(moved.bootstrap, "second") == b"committed"
        assert _SESSION_OPEN not in by_name(own_state)["kafka"].log.read_text()
    assert moved.dsn == first.dsn
    with psycopg.connect(moved.dsn) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)

    running = by_name(own_state)
    assert sorted(stop_servers(own_state, purge=True)) == ["kafka", "postgres"]
    assert not any(alive(server.process) for server in running.values())
    assert not own_state.exists()


def test_a_postmaster_that_nobody_reaps_does_not_keep_its_data_locked() -> None:
    with own_postgres({}) as server:
        assert server.data is not None
        lock = server.data / "postmaster.pid"
        os.kill(server.process.pid, signal.SIGKILL)
        # as root, it must be of the server's user: a process of another user does not count as a postmaster
        user = server.data.stat().st_uid if os.geteuid() == 0 else None
        with subprocess.Popen(["/bin/true"], user=user) as zombie:
            assert wait_until(lambda: started_at(zombie.pid) is None, ME, 5)
            lock.write_text(lock.read_text().replace(str(server.process.pid), str(zombie.pid), 1))
            again = postgres.start(server.data.parent, server, None, lambda started: None)
            try:
                psycopg.connect(postgres.dsn(again)).close()
            finally:
                stop(again)


def commands_run(state_dir: Path) -> bool:
    """Whether the shell of each server has been replaced by the server's command."""
    return not any(psutil.Process(each.process.pid).name() == "sh" for each in by_name(state_dir).values())


def test_a_launcher_that_is_killed_leaves_servers_that_are_found(own_state: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tailrace.cdc.dev.state import start_servers\n"
        "start_servers(Path(sys.argv[1]), search=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(own_state)]) as launcher:
        state_file = own_state / "servers.json"
        # a launcher that is killed between the record and the command of a server leaves no such server
        assert wait_until(
            lambda: state_file.exists() and len(by_name(own_state)) == 2 and commands_run(own_state), ME, 120
        )
        launcher.send_signal(signal.SIGKILL)
    half_started = by_name(own_state)
    servers = start_servers(own_state, search=False)
    assert by_name(own_state) == half_started
    psycopg.connect(servers.dsn).close()


def test_a_path_too_long_for_a_socket_gets_another_folder(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    servers = start_servers(long, search=False)
    try:
        with psycopg.connect(servers.socket_dsn) as connection:
            assert connection.execute("SELECT inet_server_addr()").fetchone() == (None,)
        sockets = by_name(long)["postgres"].socket
        assert sockets is not None
        assert not sockets.is_relative_to(long)
    finally:
        stop_servers(long, purge=True)
    assert not sockets.exists()


def test_search_is_left_out_without_a_jdk_for_it(
    servers: Servers, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_fits(component: str, accepts: object) -> java.Java:
        raise ConfigError("TR-600", "no Java for OpenSearch: it needs a JDK 21 or later", hint="Install one")

    monkeypatch.setattr(java, "find_java", none_fits)
    found = start_servers(state_dir)
    assert found.opensearch is None
    assert "JDK 21 or later" in found.messages[0]


def test_a_server_that_cannot_start_says_why(own_state: Path) -> None:
    with pytest.raises(SinkError) as caught:
        start_servers(own_state, search=False, kafka_properties={"log.cleaner.threads": "none"})
    assert caught.value.code == "TR-605"
    assert "log.cleaner.threads" in str(caught.value)
    # PostgreSQL had already started and was stopped with the rest.
    assert "postgres" in by_name(own_state)
    assert running(own_state) == set()
    assert stop_servers(own_state) == []


_START = (
    "import sys, pathlib; from tailrace.cdc.dev.state import start_servers;start_servers(pathlib.Path(sys.argv[1]))"
)


def test_a_start_that_is_interrupted_leaves_nothing(own_state: Path) -> None:
    code = _START
    with subprocess.Popen([sys.executable, "-c", code, str(own_state)], stderr=subprocess.PIPE, text=True) as launcher:
        state_file = own_state / "servers.json"
        assert wait_until(lambda: state_file.exists() and "kafka" in by_name(own_state), ME, 120)
        launcher.send_signal(signal.SIGINT)
        _, said = launcher.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert running(own_state) == set()


def test_a_start_that_is_interrupted_early_can_be_purged(own_state: Path) -> None:
    """In the middle of initdb, before any server has been recorded."""
    code = _START
    with subprocess.Popen([sys.executable, "-c", code, str(own_state)], stderr=subprocess.PIPE, text=True) as launcher:
        assert wait_until((own_state / "postgres").exists, ME, 120)
        launcher.send_signal(signal.SIGINT)
        _, said = launcher.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert stop_servers(own_state, purge=True) in ([], ["postgres"])
    assert not own_state.exists()


def test_a_failure_ends_what_it_has_started_and_nothing_else(own_state: Path) -> None:
    def fail(name: str, code: str) -> None:
        with ended_on_failure(own_state, told.append, but_for=("TR-610",)):
            start_program(own_state, name, ["/bin/sleep", "60"])
            raise SinkError(code, "failed")

    start_program(own_state, "before", ["/bin/sleep", "60"])
    told: list[str] = []
    for name, code in (("after", "TR-611"), ("slow", "TR-610")):
        with pytest.raises(SinkError):
            fail(name, code)
    assert {name: each.process in running(own_state) for name, each in by_name(own_state).items()} == {
        "before": True,
        "after": False,
        "slow": True,
    }
    assert len(told) == 1
    assert "stopped again: after" in told[0]


def test_a_dev_up_whose_daemon_cannot_start_leaves_nothing_running(own_state: Path, tmp_path: Path) -> None:
    (tmp_path / "tailrace.toml").write_text("# Written by `tailrace dev up` for its demo shop.\nnonsense = 1\n")
    done = tailrace("dev", "up", "--state-dir", str(own_state), "--rate", "0", cwd=tmp_path, timeout=240)
    assert done.returncode != 0
    assert "nonsense" in done.stderr
    started = {"postgres", "kafka", "opensearch"}
    assert started <= by_name(own_state).keys()
    assert started <= set(done.stderr.partition("stopped again: ")[2].partition(";")[0].split(", "))
    assert running(own_state) == set()


def test_servers_use_fixed_ports_and_move_to_others(own_state: Path) -> None:
    """A taken port starts and stops nothing; programs, which have the old addresses, end before the servers move."""
    base = free_base(10)
    other = base + 5
    first = start_servers(own_state, port_base=base)
    assert first.dsn == f"postgresql://postgres@127.0.0.1:{base}/postgres"
    assert (first.bootstrap, first.opensearch) == (f"127.0.0.1:{base + 1}", f"http://127.0.0.1:{base + 3}")
    assert [dict(by_name(own_state)[name].ports) for name in ("kafka", "opensearch")] == [
        {"broker": base + 1, "controller": base + 2},
        {"http": base + 3, "transport": base + 4},
    ]
    assert all(listening(base + n) for n in range(5))
    make_topic(first.bootstrap, "kept")
    write(first.bootstrap, "kept", b"value", transactional_id="t")
    ask(first.opensearch or "", "PUT", "/kept/_doc/1", {"a": 1})
    program = start_program(own_state, "load", ["/bin/sleep", "600"])
    before = by_name(own_state)
    with socket.create_server(("127.0.0.1", other + 3)):
        done = tailrace("dev", "up", "--state-dir", str(own_state), "--port-base", str(other), "--rate", "0")
    assert done.returncode == 3
    assert f"TR-616  port {other + 3} on 127.0.0.1 is taken: OpenSearch cannot use it" in done.stderr
    assert "tailrace dev up --port-base " in done.stderr
    assert by_name(own_state) == before
    assert running(own_state) == {each.process for each in before.values()}
    assert start_servers(own_state, port_base=base) == start_servers(own_state) == first
    assert by_name(own_state) == before
    moved = start_servers(own_state, port_base=other)
    assert (moved.bootstrap, moved.opensearch) == (f"127.0.0.1:{other + 1}", f"http://127.0.0.1:{other + 3}")
    assert first_value(moved.bootstrap, "kept") == b"value"
    assert ask(moved.opensearch or "", "GET", "/kept/_doc/1")["found"] is True
    assert not alive(program.process)
    # a start takes half as long with the archive of classes that the broker has written when it ended
    maps = Path(f"/proc/{by_name(own_state)['kafka'].process.pid}/maps").read_text()
    assert f"{cache_folder()}/classes/kafka-" in maps


def test_a_killed_search_node_comes_back_with_its_index(search_url: str, state_dir: Path, prefix: str) -> None:
    ask(search_url, "PUT", f"/{prefix}/_doc/1", {"a": 1})
    os.kill(by_name(state_dir)["opensearch"].process.pid, signal.SIGKILL)
    again = start_servers(state_dir)
    assert again.opensearch == search_url == opensearch.url(by_name(state_dir)["opensearch"])
    assert ask(search_url, "GET", f"/{prefix}/_doc/1")["found"] is True
