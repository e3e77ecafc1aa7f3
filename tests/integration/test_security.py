"""TLS and credentials of PostgreSQL and Kafka: good ones work, others are refused, no secret leaks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tailrace.schemas.config.file import load
from tailrace.sinks.read.views import read_view
from tests.integration.secured import (
    KAFKA_PASSWORD,
    SECRETS,
    SOURCE_PASSWORD,
    Both,
    Secured,
    add_users,
    secured,
    secured_database,
)
from tests.spark.test_end_to_end import process, sections
from tests.support.daemon import AT_ONCE, ask, running, tailrace, wait_for_state, wait_until
from tests.support.refused import assert_refused
from tests.support.topics import latest, read_topic


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, in_containers: bool) -> Iterator[Both]:
    started = secured
    if in_containers:
        request.getfixturevalue("engine")
        from tests.containers.secured import secured as started
    with started() as servers:
        add_users(servers)
        yield servers


@pytest.fixture
def all_secured(both: Both, tmp_path: Path, prefix: str) -> Iterator[Secured]:
    with secured_database(both, tmp_path, prefix) as found:
        yield found


def test_good_credentials_work_and_stay_secret(all_secured: Secured) -> None:
    config = all_secured.config()
    with running(config, forked=False) as daemon, psycopg.connect(all_secured.database, autocommit=True) as connection:
        wait_for_state(load(config), connection)
        connection.execute("INSERT INTO item VALUES (1, 'a@b.example')")
        wait_for_state(load(config), connection)
        wait_until(lambda: ask(daemon, "/readyz")[0] == 200)
        answers = [ask(daemon, path)[1] for path in ("/livez", "/readyz", "/metrics")]
        command = Path(f"/proc/{daemon.process.pid}/cmdline").read_text()
        assert str(config) in command
        shown = [tailrace(*words, "--config", str(config)) for words in (["config", "show"], ["status", "--json"])]
        in_tls = connection.execute(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'tailrace'"
        ).fetchone()
        # a fault at run time, reported in the log and on /readyz
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        wait_until(lambda: "session failed: restarting" in daemon.log.read_text())
        answers.append(ask(daemon, "/readyz")[1])
        log = daemon.log.read_text()
    assert [each.returncode for each in shown] == [0, 0], [each.stderr for each in shown]
    assert in_tls == (True,), "of the daemon's connections; (None,): it has none"
    assert latest(read_topic(all_secured.kafka.bootstrap, all_secured.prefix, "public.item")).keys() == {(1,)}
    everything = "\n".join([log, command, *answers, *(each.stdout + each.stderr for each in shown)])
    assert "streaming" in everything
    assert [secret for secret in SECRETS if secret in everything] == []


def test_views_are_filled_over_tls(all_secured: Secured) -> None:
    """Spark reads with the Java client, which has other options."""
    config = all_secured.config()
    views = f'{sections(all_secured.folder)}[views.item]\ntable = "public.item"\n'
    config.write_text(config.read_text() + views)
    with psycopg.connect(all_secured.database, autocommit=True) as connection, running(config):
        connection.execute("INSERT INTO item SELECT g, g || '@b.example' FROM generate_series(1, 100) g")
        wait_for_state(load(config), connection)
    seen = set()
    log = all_secured.folder / "rebuild.log"
    with process(log, "tailrace.cdc.cli.main", "views", "rebuild", "item", "--config", str(config)) as rebuild:
        while rebuild.poll() is None:
            for each in [psutil.Process(rebuild.pid), *psutil.Process(rebuild.pid).children(recursive=True)]:
                # per process: a zombie of Spark's script has no command line, but exists as long as the JVM
                with suppress(psutil.Error):
                    seen.add(" ".join(each.cmdline()))
            time.sleep(0.2)
    assert rebuild.returncode == 0, log.read_text()
    rows = {row["id"]: row["email"] for row in read_view(load(config), "item").rows}
    assert rows.keys() == set(range(1, 101))
    assert len(set(rows.values())) == 100
    everything = "\n".join([log.read_text(), *seen])
    assert "java" in everything
    assert [secret for secret in SECRETS if secret in everything] == []


def test_a_client_certificate_replaces_the_password(all_secured: Secured) -> None:
    own = all_secured.certificates.issue("certified", common_name="certified")
    config = all_secured.config(all_secured.dsn("certified", sslcert=own.chain, sslkey=own.key))
    with running(config), psycopg.connect(all_secured.database, autocommit=True) as connection:
        wait_for_state(load(config), connection)


_VERIFY = "certificate verify failed"


@pytest.mark.parametrize(
    ("user", "certificate", "options", "reason"),
    [
        ("tailrace:wrong", "good", {}, 'password authentication failed for user "tailrace"'),
        (f"tailrace:{SOURCE_PASSWORD}", "good", {"sslrootcert": "unknown"}, _VERIFY),
        (f"tailrace:{SOURCE_PASSWORD}", "expired", {}, _VERIFY),
        (f"tailrace:{SOURCE_PASSWORD}", "elsewhere", {}, 'does not match host name "localhost"'),
        (f"tailrace:{SOURCE_PASSWORD}", "good", {"sslmode": "disable"}, "no encryption"),
        ("certified", "good", {}, "requires a valid client certificate"),
    ],
    ids=["wrong password", "unknown CA", "expired", "another host", "no TLS", "no client certificate"],
)
def test_bad_credentials_for_postgresql_are_refused(
    all_secured: Secured, user: str, certificate: str, options: dict[str, str], reason: str
) -> None:
    if "sslrootcert" in options:
        options = {"sslrootcert": str(all_secured.certificates.unknown_ca)}
    all_secured.postgres.show(certificate)
    _assert_refused(all_secured.config(all_secured.dsn(user, **options)), 4, "TR-201", reason)


@pytest.mark.parametrize(
    ("listener", "password", "options", "reason"),
    [
        ("good", "wrong", {}, "SASL authentication error"),
        ("good", KAFKA_PASSWORD, {"ssl.ca.location": "unknown"}, _VERIFY),
        ("expired", KAFKA_PASSWORD, {}, _VERIFY),
        ("elsewhere", KAFKA_PASSWORD, {}, _VERIFY),
    ],
    ids=["wrong password", "unknown CA", "expired", "another host"],
)
def test_bad_credentials_for_kafka_are_refused(
    all_secured: Secured, listener: str, password: str, options: dict[str, str], reason: str
) -> None:
    if options:
        options = {"ssl.ca.location": str(all_secured.certificates.unknown_ca)}
    _assert_refused(all_secured.config("", listener, password, **options), 5, "TR-330", reason)


def test_an_unusable_kafka_option_is_refused(all_secured: Secured) -> None:
    nowhere = all_secured.folder / "nowhere.pem"
    _assert_refused(all_secured.config(**{"ssl.ca.location": str(nowhere)}), 3, "TR-306", "ssl.ca.location failed")


def _assert_refused(config: Path, exit_code: int, error: str, reason: str) -> None:
    """Assert that the start fails with the reason, and that no secret is printed."""
    config.write_text(config.read_text() + AT_ONCE)
    said = assert_refused(config, error, exit_code, reason)
    assert not any(secret in said for secret in SECRETS)
