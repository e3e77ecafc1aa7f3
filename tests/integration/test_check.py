"""`tailrace check` reports what a start refuses, before the start, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.cdc.check.finding import Finding, Severity
from tailrace.cdc.check.run_check import check
from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position
from tailrace.sinks.kafka.one_shot import send_alone
from tests.faults.machine import Clock
from tests.integration.test_start import Pipeline, refusal, start_and_stop
from tests.support.daemon import lose_slot, running, tailrace, wait_for, write_config
from tests.support.servers import drop_slot

_TABLES = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1)"


def stops(config: Config) -> dict[str, Finding]:
    """Return what stops a start, by id."""
    return {each.id: each for each in check(config) if each.severity is Severity.STOP}


@pytest.fixture
def fresh(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Iterator[Pipeline]:
    """A pipeline that has never run."""
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES)
        yield Pipeline(path, load(path), connection, AdminClient({"bootstrap.servers": servers.bootstrap}))


def _everything(pipeline: Pipeline) -> object:
    """Return all that a start would create: slots, publications, topics, files.

    Kafka creates topics of its own, such as that of consumer groups, for any client.
    """
    catalog = pipeline.connection.execute(
        "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication)"
    ).fetchone()
    topics = {topic for topic in pipeline.admin.list_topics(timeout=10).topics if not topic.startswith("__")}
    return catalog, topics, sorted(pipeline.path.parent.rglob("*"))


def test_a_healthy_pipeline_has_no_stop_and_nothing_is_changed(fresh: Pipeline) -> None:
    """Before the first start, after it, and while the daemon runs."""
    before = _everything(fresh)
    assert stops(fresh.config) == {}
    assert _everything(fresh) == before
    with running(fresh.path) as daemon:
        wait_for(fresh.config, lambda record: record.is_state)
        found = {each.id: each for each in check(fresh.config)}
        assert "TR-913" in found, "a daemon reads the slot"
        assert not [each for each in found.values() if each.severity is Severity.STOP]
        assert daemon.stop() == 0
    before = _everything(fresh)
    done = tailrace("check", "--config", str(fresh.path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing stops a start" in done.stdout
    assert _everything(fresh) == before


@dataclass(frozen=True)
class Case:
    """A fault and its code; `source` and `more` are settings. `paste`: the finding's lines of SQL mend it."""

    code: str
    sql: str = ""
    source: str = ""
    more: str = ""
    paste: bool = False


_FIRST: dict[str, Case] = {
    "slot with two_phase": Case("TR-208", "SELECT pg_create_logical_replication_slot('{}', 'pgoutput', false, true)"),
    "slot of another kind": Case("TR-208", "SELECT pg_create_physical_replication_slot('{}')"),
    "slot without a position": Case(
        "TR-423",
        "CREATE PUBLICATION tailrace FOR TABLE t; SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
    ),
    "publication without operations": Case(
        "TR-233", "CREATE PUBLICATION tailrace FOR TABLE t WITH (publish = 'insert, update')", paste=True
    ),
    "publication of more than inserts": Case(
        "TR-233", "CREATE PUBLICATION tailrace FOR TABLE t", source='publish = "insert"\n', paste=True
    ),
    "part of a key": Case(
        "TR-205",
        "CREATE TABLE p (a int, b int, c int, PRIMARY KEY (a, b)); CREATE PUBLICATION tailrace FOR TABLE p (a, c), t",
        paste=True,
    ),
    "pattern without a table": Case("TR-120", source='tables = ["nope.*"]\n'),
    "tables in no publication": Case(
        "TR-120", "CREATE PUBLICATION tailrace FOR TABLE t", source='tables = ["public.u"]\n', paste=True
    ),
    "invalid pattern": Case("TR-127", source='tables = ["public.*", "shop[.*"]\n'),
    "key of no table": Case("TR-121", source='keys = {"public.absent" = ["a"]}\n'),
    "key of no column": Case("TR-122", source='keys = {"public.t" = ["z"]}\n'),
    "key without identity": Case(
        "TR-123",
        "ALTER TABLE t ADD n int NOT NULL DEFAULT 1 UNIQUE",
        source='keys = {"public.t" = ["n"]}\n',
        paste=True,
    ),
    "key that is not unique": Case(
        "TR-124",
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ADD n int NOT NULL DEFAULT 1",
        source='keys = {"public.t" = ["n"]}\n',
        paste=True,
    ),
    "reserved topic": Case(
        "TR-125",
        "CREATE SCHEMA tailrace; CREATE TABLE tailrace.progress (id int PRIMARY KEY)",
        source='tables = ["*.*"]\n',
    ),
    "condition on no table": Case("TR-135", more='[snapshot.where]\n"public.absent" = "true"\n'),
    "condition that fails": Case("TR-136", more='[snapshot.where]\n"public.t" = "nope = 1"\n'),
    "registry that does not answer": Case("TR-340", more='[registry]\nurl = "http://127.0.0.1:1"\n'),
    "unusable Kafka option": Case(
        "TR-306", more='options = { "security.protocol" = "ssl", "ssl.ca.location" = "/nowhere" }\n'
    ),
    "hidden key": Case("TR-128", source='exclude = ["public.t.id"]\n'),
}
"""Faults of a first start."""


@pytest.mark.parametrize("case", _FIRST.values(), ids=_FIRST)
def test_a_fault_of_a_first_start_is_found_before_it(fresh: Pipeline, case: Case) -> None:
    path = write_config(
        fresh.path.parent,
        fresh.config.source.dsn.get_secret_value(),
        fresh.config.kafka.bootstrap,
        fresh.name,
        case.more,
        case.source,
    )
    broken = replace(fresh, config=load(path))
    for statement in filter(None, case.sql.format(fresh.name).split(";")):
        broken.execute(statement)
    before = _everything(broken)
    found = stops(broken.config)
    assert case.code in found
    assert _everything(broken) == before
    error = refusal(broken.config)
    assert error.code == case.code
    assert error.message in found[case.code].seen
    if case.paste:
        _paste(broken, found[case.code])
        assert stops(broken.config) == {}


def _paste(pipeline: Pipeline, finding: Finding) -> None:
    """Run the lines of SQL; what follows "then" is only needed if changes have been lost."""
    for n, line in enumerate(finding.paste.splitlines()):
        if n == 0 or line.endswith(";"):
            pipeline.execute(line.partition(";  -- ")[0])
        if "-- then" in line:
            break


@pytest.fixture
def stopped(fresh: Pipeline) -> Pipeline:
    start_and_stop(fresh.config)
    return fresh


def _record(pipeline: Pipeline, change: Callable[[PositionRecord], PositionRecord]) -> None:
    """Write a changed position record, as it would be for another history of the server."""
    kafka, topics = pipeline.config.kafka, Topics(pipeline.name)
    stored = read_position(kafka, topics, pipeline.name)
    assert stored is not None
    position = stored.here.position
    # of two records with one position, the first is the newest
    later = replace(stored, here=replace(stored.here, position=replace(position, ordinal=position.ordinal + 1)))
    send_alone(kafka, {topics.progress: {position_key(pipeline.name): change(later).to_json()}})


def _another_system(record: PositionRecord) -> PositionRecord:
    return replace(record, here=replace(record.here, system_identifier="1"))


def _another_timeline(record: PositionRecord) -> PositionRecord:
    return replace(record, here=replace(record.here, timeline=7))


def _later_wal(record: PositionRecord) -> PositionRecord:
    return replace(record, here=replace(record.here, flushed_lsn=record.here.flushed_lsn + (1 << 40)))


_REGISTRY = '[registry]\nurl = "http://127.0.0.1:1"\n'

_LATER: dict[str, tuple[str, Callable[[Pipeline], None], str]] = {
    "slot advanced": (
        "TR-401",
        lambda of: _run(
            of, "INSERT INTO t VALUES (2)", f"SELECT pg_replication_slot_advance('{of.name}', pg_current_wal_lsn())"
        ),
        "command",
    ),
    "slot dropped": ("TR-402", lambda of: drop_slot(of.connection, of.name), "command"),
    "another server": ("TR-403", lambda of: _record(of, _another_system), "command"),
    "timeline not in the history": ("TR-421", lambda of: _record(of, _another_timeline), "command"),
    "restored backup": ("TR-422", lambda of: _record(of, _later_wal), "command"),
    "publication recreated": (
        "TR-404",
        lambda of: of.execute("DROP PUBLICATION tailrace; CREATE PUBLICATION tailrace FOR TABLE t, u"),
        "command",
    ),
    "publication missing": ("TR-404", lambda of: of.execute("DROP PUBLICATION tailrace, tailrace_nokey"), "command"),
    "operation left out": (
        "TR-426",
        lambda of: of.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete')"),
        "sql",
    ),
    "progress topic deleted": ("TR-423", lambda of: of.delete(f"{of.name}.tailrace.progress"), ""),
    "schemas topic deleted": ("TR-424", lambda of: of.delete(f"{of.name}.tailrace.schemas"), ""),
    "slot and progress topic deleted": ("TR-425", lambda of: _forget(of), ""),
    "topic setting": ("TR-302", lambda of: of.alter(f"{of.name}.public.t", cleanup_policy="delete"), ""),
    "slot invalidated": ("TR-204", lambda of: _lose_slot(of), "command"),
    "key of another column": ("TR-122", lambda of: None, ""),
    "ids of another origin": ("TR-347", lambda of: None, ""),
}
"""Faults of a later start: code, what makes it, and what its finding has to paste."""


def _run(pipeline: Pipeline, *statements: str) -> None:
    for statement in statements:
        pipeline.execute(statement)


def _lose_slot(pipeline: Pipeline) -> None:
    pipeline.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'")
    try:
        pipeline.execute("SELECT pg_reload_conf()")
        lose_slot(pipeline.connection, pipeline.name)
    finally:
        pipeline.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        pipeline.execute("SELECT pg_reload_conf()")


def _forget(pipeline: Pipeline) -> None:
    drop_slot(pipeline.connection, pipeline.name)
    pipeline.delete(f"{pipeline.name}.tailrace.progress")


@pytest.mark.parametrize(("code", "make", "paste"), _LATER.values(), ids=_LATER)
def test_a_fault_of_a_later_start_is_found_before_it(
    stopped: Pipeline, code: str, make: Callable[[Pipeline], None], paste: str
) -> None:
    make(stopped)
    settings = {
        "TR-122": ("[source]", '[source]\nkeys = {"public.t" = ["z"]}'),
        "TR-347": ("[kafka]", f"{_REGISTRY}[kafka]"),
    }
    if code in settings:
        stopped.path.write_text(stopped.path.read_text().replace(*settings[code]))
        stopped = replace(stopped, config=load(stopped.path))
    before = _everything(stopped)
    found = stops(stopped.config)
    assert code in found, found
    error = refusal(stopped.config)
    assert (error.code, error.message in found[code].seen) == (code, True), str(error)
    assert _everything(stopped) == before
    if paste == "command":
        commands = [line for line in found[code].paste.splitlines() if line.startswith("tailrace ")]
        asked = commands[0].partition("#")[0].split()
        done = tailrace(*asked[1:], "--timeout", "0", cwd=stopped.path.parent)
        assert done.returncode == 0, done.stderr
        assert "TR-921" in {each.id for each in check(stopped.config)}
    elif paste == "sql":
        _paste(stopped, found[code])
    if paste:
        assert stops(stopped.config) == {}
        start_and_stop(stopped.config)


# Rights


_WITHOUT: dict[str, tuple[str, str]] = {
    "replication": ("ALTER ROLE {0} NOREPLICATION", "TR-203"),
    "usage of the schema": ("REVOKE USAGE ON SCHEMA public FROM {0}", "TR-227"),
    "select": ("REVOKE SELECT ON ALL TABLES IN SCHEMA public FROM {0}", "TR-227"),
    "publication": ("DROP PUBLICATION tailrace, tailrace_nokey", "TR-207"),
    "rows": ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "TR-213"),
}


@pytest.mark.parametrize(("without", "code"), _WITHOUT.values(), ids=_WITHOUT)
def test_a_missing_right_is_found_and_its_sql_grants_it(fresh: Pipeline, without: str, code: str) -> None:
    """Begin with what `tailrace init` writes for the role, and undo one right."""
    config = _initialized(fresh, fresh.path.parent / "init" / "tailrace.toml")
    assert stops(config) == {}
    fresh.execute(without.format(fresh.name))
    found = stops(config)
    assert set(found) == {code}
    error = refusal(config)
    assert (error.code, error.message in found[code].seen) == (code, True), str(error)
    for line in found[code].paste.splitlines():
        if line.endswith(";") or ";  --" in line:
            fresh.execute(line)
    assert stops(config) == {}
    fresh.execute(f"DROP OWNED BY {fresh.name}; DROP ROLE {fresh.name}")


def _initialized(pipeline: Pipeline, file: Path) -> Config:
    """Run `tailrace init` for a role of this pipeline's name, and its SQL; return the configuration."""
    file.parent.mkdir()
    pipeline.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    pipeline.execute("CREATE TABLE log (id int)")
    dsn, bootstrap = pipeline.config.source.dsn.get_secret_value(), pipeline.config.kafka.bootstrap
    asked = ("--dsn", dsn, "--kafka", bootstrap, "--role", pipeline.name, "--output", str(file))
    made = tailrace("init", *asked)
    assert made.returncode == 0, made.stderr
    for line in file.with_suffix(".sql").read_text().splitlines():
        if line and not line.startswith("--"):
            pipeline.execute(line)
    # the tests share the slots of a server and the topics of a broker
    text = re.sub(r'^slot = "\w+"', f'slot = "{pipeline.name}"', file.read_text(), flags=re.M)
    file.write_text(re.sub(r'^prefix = "\w+"', f'prefix = "{pipeline.name}"', text, flags=re.M))
    return load(file)


def test_init_writes_what_check_passes_and_run_starts(fresh: Pipeline) -> None:
    """It overwrites nothing, and neither file nor output has the password of the given connection."""
    file = fresh.path.parent / "init" / "tailrace.toml"
    fresh.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY)")
    config = _initialized(fresh, file)
    assert config.source.tables == ["public.*", "shop.*"]
    assert config.kafka.replication_factor == 1
    assert "logs of inserts: public.log" in file.read_text()
    done = tailrace("check", "--config", str(file))
    assert done.returncode == 0, done.stdout
    with running(file):
        wait_for(config, lambda record: record.is_state)
    assert {f"{fresh.name}.{table}" for table in ("public.t", "public.log", "shop.orders")} <= fresh.topics()
    before = {each: each.read_bytes() for each in file.parent.glob("tailrace.*")}
    dsn = fresh.config.source.dsn.get_secret_value()
    with_password = dsn.replace("@", ":s3cret@")
    again = tailrace("init", "--dsn", with_password, "--output", str(file))
    assert (again.returncode, "TR-141" in again.stderr) == (3, True)
    assert {each: each.read_bytes() for each in before} == before
    other = file.with_name("other.toml")
    made = tailrace("init", "--dsn", with_password, "--kafka", "127.0.0.1:1", "--output", str(other))
    assert made.returncode == 0
    assert "s3cret" not in other.read_text() + other.with_suffix(".sql").read_text() + made.stdout + made.stderr
    drop_slot(fresh.connection, fresh.name)
    fresh.execute(f"DROP OWNED BY {fresh.name}; DROP ROLE {fresh.name}")


# Servers


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _break_progress_topic(pipeline: Pipeline) -> None:
    topic = NewTopic(f"{pipeline.name}.tailrace.progress", 1, 1, config={"cleanup.policy": "delete"})
    for future in pipeline.admin.create_topics([topic]).values():
        future.result()


def test_a_server_that_does_not_answer_hides_no_finding_about_the_others(fresh: Pipeline) -> None:
    port, dsn = _free_port(), fresh.config.source.dsn.get_secret_value()
    fresh.execute("CREATE PUBLICATION tailrace FOR TABLE t WITH (publish = 'insert, update')")
    write_config(fresh.path.parent, dsn, f"127.0.0.1:{port}", fresh.name)
    done = tailrace("check", "--json", "--config", str(fresh.path))
    found = {each["id"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.returncode == 7
    assert {"TR-330", "TR-233"} <= {code for code, each in found.items() if each["severity"] == "stop"}
    assert f"127.0.0.1:{port}" in found["TR-330"]["seen"]
    _break_progress_topic(fresh)
    gone = re.sub(r":\d+/", f":{port}/", dsn).replace("@", ":s3cret@")
    write_config(fresh.path.parent, gone, fresh.config.kafka.bootstrap, fresh.name)
    done = tailrace("check", "--config", str(fresh.path))
    assert done.returncode == 7
    assert "TR-201" in done.stdout
    assert "TR-302" in done.stdout, "the topics are checked without PostgreSQL"
    assert "s3cret" not in done.stdout + done.stderr
    only = tailrace("check", "--only", "kafka", "--json", "--config", str(fresh.path))
    assert {each["object"] for each in json.loads(only.stdout)["findings"]} == {"kafka"}


def test_settings_of_a_server_are_found_and_their_sql_mends_them(tmp_path: Path, servers: Servers, prefix: str) -> None:
    started: list[Server] = []
    try:
        settings = {"wal_level": "replica", "max_replication_slots": "1", "fsync": "off"}
        server = postgres.start(tmp_path / "postgres", None, settings, started.append)
        config = load(write_config(tmp_path, postgres.dsn(server), servers.bootstrap, prefix))
        with psycopg.connect(postgres.dsn(server), autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("SELECT pg_create_physical_replication_slot('other')")
            connection.execute(f"CREATE DATABASE {prefix} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0".encode())
            found = stops(config)
            assert set(found) == {"TR-202", "TR-902"}
            assert refusal(config).code == "TR-202"
            for finding in found.values():
                connection.execute(finding.paste.encode())
        stop(server)
        postgres.start(tmp_path / "postgres", server, None, started.append)
        assert stops(config) == {}
        ascii_dsn = re.sub(r"/\w+(?=$|\?)", f"/{prefix}", postgres.dsn(started[-1]))
        found = stops(load(write_config(tmp_path, ascii_dsn, servers.bootstrap, prefix)))
        assert "TR-214" in found
    finally:
        for each in started:
            stop(each)


def test_clocks_that_differ_are_a_warning(fresh: Pipeline) -> None:
    """The check's process has a clock of its own."""
    clock = Clock(fresh.path.parent / "clock")
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "check", "--only", "source", "--json"]

    def found() -> dict[str, str]:
        done = subprocess.run(
            [*command, "--config", str(fresh.path)],
            env=os.environ | clock.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return {each["id"]: each["seen"] for each in json.loads(done.stdout)["findings"]}

    assert "TR-914" not in found()
    for seconds in (3600, -3600):
        clock.jump(seconds)
        assert re.fullmatch(r"The clocks differ by (3599|3600)\.\d s\.", found()["TR-914"])


def test_folders_that_are_too_small_or_not_writable_are_a_warning(fresh: Pipeline, tmp_path: Path) -> None:
    def found(source: str) -> dict[str, Finding]:
        dsn, bootstrap = fresh.config.source.dsn.get_secret_value(), fresh.config.kafka.bootstrap
        write_config(fresh.path.parent, dsn, bootstrap, fresh.name, source=source)
        return {each.seen.split(" ")[0]: each for each in check(load(fresh.path), ["source"]) if each.id == "TR-915"}

    free = shutil.disk_usage(tmp_path).free
    assert "source.toast_cache_dir" not in found("toast_cache_bytes = 1048576\n")
    small = found(f"toast_cache_bytes = {free * 2}\n")["source.toast_cache_dir"]
    assert (small.severity, f"it may need {free * 2}." in small.seen) == (Severity.WARN, True)
    (tmp_path / "file").write_text("")
    refused = found(f'streaming = true\nspool_dir = "{tmp_path}/file/spool"\n')["source.spool_dir"]
    assert "cannot be written" in refused.seen
    assert "cannot be written" not in str(found(f'streaming = true\nspool_dir = "{tmp_path}/spool"\n'))


def test_advice_about_tables_is_no_stop(fresh: Pipeline) -> None:
    fresh.execute(
        "CREATE TABLE log (id int); CREATE TABLE careless (n int); CREATE TABLE missing (id int PRIMARY KEY);"
        "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE);"
        "CREATE TABLE prices (id int PRIMARY KEY, price numeric(9,2));"
        "CREATE TABLE docs (id int PRIMARY KEY, body text); ALTER TABLE docs ALTER body SET STORAGE EXTERNAL;"
        "INSERT INTO docs VALUES (1, repeat('x', 9000));"
        "CREATE PUBLICATION tailrace FOR TABLE t, u WHERE (id > 0), careless, late, prices, docs;"
        "CREATE PUBLICATION tailrace_nokey FOR TABLE log WITH (publish = 'insert, truncate')"
    )
    found = {each.id: each for each in check(fresh.config, ["source"])}
    assert not [each for each in found.values() if each.stops]
    about = {"TR-905": "public.log", "TR-906": "docs", "TR-907": "prices.price", "TR-908": "public.missing"}
    about |= {"TR-904": "public.", "TR-910": "public.u", "TR-919": "late"}
    for code, word in about.items():
        assert word in found[code].seen, code
    for line in found["TR-908"].paste.splitlines():
        fresh.execute(line)
    assert "TR-908" not in {each.id for each in check(fresh.config, ["source"])}


def test_a_table_that_a_start_would_park_is_a_warning(stopped: Pipeline) -> None:
    stopped.execute("ALTER PUBLICATION tailrace DROP TABLE t; ALTER PUBLICATION tailrace_nokey ADD TABLE t")
    stopped.delete(f"{stopped.name}.public.u")
    found = {each.id: each for each in check(stopped.config)}
    assert not [each for each in found.values() if each.stops]
    assert {found["TR-428"].severity, found["TR-424"].severity} == {Severity.WARN}
    assert "would be parked" in found["TR-428"].seen
    source = stopped.config.source.model_copy(update={"on_table_error": "stop"})
    assert "TR-428" in stops(stopped.config.model_copy(update={"source": source}))


def test_a_lock_on_a_table_is_named_and_does_not_last(fresh: Pipeline) -> None:
    fresh.execute("CREATE PUBLICATION tailrace FOR TABLE t, u")
    with psycopg.connect(fresh.config.source.dsn.get_secret_value()) as other:
        other.execute("LOCK TABLE t")
        pid = other.info.backend_pid
        found = {each.id: each for each in check(fresh.config, ["source"])}
    assert found["TR-240"].severity is Severity.WARN
    assert str(pid) in found["TR-240"].seen


def test_run_prints_all_that_refuses_it(fresh: Pipeline) -> None:
    """The error comes first; one that only a later attempt would have met follows."""
    dsn, bootstrap = fresh.config.source.dsn.get_secret_value(), fresh.config.kafka.bootstrap
    write_config(fresh.path.parent, dsn, bootstrap, fresh.name, source='tables = ["nope.*"]\n')
    _break_progress_topic(fresh)
    refused = tailrace("run", "--config", str(fresh.path))
    assert refused.returncode == 3
    codes = re.findall(r"^ERROR  (TR-\d+)", refused.stderr, flags=re.M)
    assert (codes[0], set(codes)) == ("TR-120", {"TR-120", "TR-302"})


def test_a_faulty_configuration_and_view_are_findings(fresh: Pipeline) -> None:
    """The configuration itself, and the declaration of a view, which a job checks without Spark."""
    text = fresh.path.read_text()
    fresh.path.write_text(f"{text}nonsense = 1\n")
    done = tailrace("check", "--json", "--config", str(fresh.path))
    assert (done.returncode, [each["id"] for each in json.loads(done.stdout)["findings"]]) == (7, ["TR-105"])
    folder = fresh.path.parent / "file"
    folder.write_text("")
    fresh.path.write_text(
        f'{text}[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}"\n'
        '[views.t]\nquery = "SELEC id FROM public.t"\nkey = ["id"]\n'
    )
    found = {each.id: each for each in check(load(fresh.path), ["views"], fresh.path)}
    assert {"TR-513", "TR-540"} <= found.keys(), found
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        fresh.path.write_text(f'{text}[health]\nlisten = "127.0.0.1:{listener.getsockname()[1]}"\n')
        assert "TR-112" in stops(load(fresh.path))


def test_a_column_that_a_view_with_soft_deletes_needs_is_a_finding(fresh: Pipeline) -> None:
    """The columns of a captured table are known: `check` reports what would park its view."""
    fresh.execute('ALTER TABLE t ADD "_Deleted_At" timestamptz')
    start_and_stop(fresh.config)
    folder = fresh.path.parent
    views = {"soft": ("t", "soft"), "hard": ("t", "hard"), "other": ("u", "soft")}
    fresh.path.write_text(
        f'{fresh.path.read_text()}[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}"\n'
        + "".join(
            f'[views.{name}]\ntable = "public.{table}"\ndeletes = "{deletes}"\n'
            for name, (table, deletes) in views.items()
        )
    )
    found = [each for each in check(load(fresh.path), ["views"], fresh.path) if each.stops]
    assert [each.id for each in found] == ["TR-538"]
    assert 'view "soft"' in found[0].seen
    assert "_Deleted_At" in found[0].seen
    assert 'deletes = "hard"' in found[0].paste
