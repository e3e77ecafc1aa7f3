"""Excluded, masked and hashed columns: by snapshot and stream, topics equal PostgreSQL's own results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.topics import latest, read_raw, read_topic, schemas
from tests.support.verified import differing_keys

_OPTIONS = """[source]
exclude = ["public.*.secret", "public.person.nam"]
mask = { "public.*.phone" = 4, "public.*.born" = 2 }
hash = ["public.*.email"]
hash_salt = "pe'pper"
"""
_SECRETS = (b"TOPSECRET", b"@example.org", b"+49 30 12")

# Computed by the server: its own string functions, and HMAC built from its sha256 as in RFC 2104.
_EXPECTED = """
SELECT id, name,
       (SELECT repeat('*', CASE WHEN n > 4 THEN n - 4 ELSE n END) || right(phone, CASE WHEN n > 4 THEN 4 ELSE 0 END)
          FROM char_length(phone) AS n),
       repeat('*', char_length(born::text) - 2) || right(born::text, 2),
       encode(sha256(outer_pad || sha256(inner_pad || convert_to(email, 'UTF8'))), 'hex'),
       body
FROM {table}, (SELECT string_agg(decode(lpad(to_hex(k # 54), 2, '0'), 'hex'), '' ORDER BY i) AS inner_pad,
                      string_agg(decode(lpad(to_hex(k # 92), 2, '0'), 'hex'), '' ORDER BY i) AS outer_pad
                 FROM (SELECT i, CASE WHEN i < 7 THEN get_byte('pe''pper'::bytea, i) ELSE 0 END AS k
                         FROM generate_series(0, 63) AS i) AS padded) AS pads
"""


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    path.write_text(path.read_text().replace("[source]\n", _OPTIONS))
    return path


def test_snapshot_and_stream_exclude_mask_and_hash_alike(
    servers: Servers, database: str, prefix: str, config_path: Path
) -> None:
    config = load(config_path)
    with psycopg.connect(database, autocommit=True, options="-c timezone=UTC") as connection:
        _create(connection)
        with running(config_path) as daemon:
            wait_for_state(config, connection)
            _change(connection)
            cut = wait_for_state(config, connection)
            for table in ("person", "company"):
                topic = f"{prefix}.public.{table}"
                rows = latest(read_topic(servers.bootstrap, prefix, f"public.{table}", cut.offsets[topic]))
                found = {tuple(str(value) for value in row.values()) for row in rows.values()}
                expected = connection.execute(_EXPECTED.format(table=table).encode()).fetchall()
                assert found == {tuple(str(value) for value in row) for row in expected}
                assert len(rows) == len(expected) > 5
            emails = {table: _emails(servers, prefix, table) for table in ("person", "company")}
            assert emails["person"] & emails["company"], "equal values have equal hashes, so tables can be joined"
            _nothing_leaks(servers, prefix, daemon)
            assert [
                (event["pattern"], event["did_you_mean"]) for event in events(daemon, "column pattern unmatched")
            ] == [("public.person.nam", "public.person.name")]
            assert differing_keys(config, "person") == 0
            wrong = {"source": config.source.model_copy(update={"mask": {"public.person.phone": 3}})}
            assert differing_keys(config.model_copy(update=wrong), "person") > 5
            assert daemon.stop() == 0


def _create(connection: psycopg.Connection[Any]) -> None:
    for table in ("person", "company"):
        connection.execute(
            f"CREATE TABLE {table} (secret text, id int PRIMARY KEY, name text, phone text, born date, email text,"
            f" body text); ALTER TABLE {table} ALTER secret SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL,"
            f" ALTER email SET STORAGE EXTERNAL".encode()
        )
    connection.execute("ALTER TABLE person ADD notes text; ALTER TABLE person DROP notes")
    connection.execute("ALTER TABLE company REPLICA IDENTITY FULL")
    for table in ("person", "company"):
        connection.execute(
            f"INSERT INTO {table} SELECT CASE WHEN g %% 2 = 0 THEN 'TOPSECRET' || repeat('s', 3000) END, g, 'n' || g,"
            " CASE WHEN g > 2 THEN '+49 30 12ö' || repeat('ä', g) END, date '1970-01-01' + g,"
            " CASE WHEN g <> 3 THEN g || '@example.org' || CASE WHEN g = 4 THEN repeat('x', 3000) ELSE '' END END,"
            " repeat(g::text, 3000) FROM generate_series(1, 8) g".encode(),
            (),
        )
    connection.execute("UPDATE person SET phone = 'äöü1' WHERE id = 5; UPDATE person SET phone = '' WHERE id = 6")


def _change(connection: psycopg.Connection[Any]) -> None:
    """Make each kind of change: insert, update, a new key, delete; large values unchanged; old images."""
    for table in ("person", "company"):
        connection.execute(
            f"INSERT INTO {table} SELECT secret, id + 10, name, phone, born, email, body FROM {table};"
            f"UPDATE {table} SET name = 'other' WHERE id IN (4, 14);"
            f"UPDATE {table} SET id = 104, phone = '1234567890' WHERE id = 4;"
            f"UPDATE {table} SET secret = 'TOPSECRET again' WHERE id = 7;"
            f"DELETE FROM {table} WHERE id = 8".encode()
        )


def _emails(servers: Servers, prefix: str, table: str) -> set[str]:
    return {row["email"] for row in latest(read_topic(servers.bootstrap, prefix, f"public.{table}")).values()}


def _nothing_leaks(servers: Servers, prefix: str, daemon: Daemon) -> None:
    """No record, schema or log line has a secret value, of any version of a row."""
    for topic in ("public.person", "public.company", "tailrace.progress", "tailrace.schemas"):
        for message in read_raw(servers.bootstrap, f"{prefix}.{topic}"):
            for secret in _SECRETS:
                assert secret not in (message.value() or b"") + (message.key() or b"")
    assert not any("secret" in str(schema) for schema in schemas(servers.bootstrap, prefix).values())
    log = daemon.log.read_bytes()
    assert not any(secret in log for secret in (*_SECRETS, b"pe'pper"))


_RENAMED = """
CREATE TABLE moving (id int PRIMARY KEY, phone text);
CREATE TABLE resting (secret text, id int PRIMARY KEY, n int);
CREATE TABLE absent (id int PRIMARY KEY, email text);
CREATE TABLE events (email text);
INSERT INTO moving SELECT g, 'TOPSECRET' || g FROM generate_series(1, 3) g;
INSERT INTO resting SELECT 'TOPSECRET' || g, g, g FROM generate_series(1, 3) g;
INSERT INTO absent SELECT g, 'TOPSECRET' || g FROM generate_series(1, 3) g;
INSERT INTO events SELECT 'TOPSECRET' || g FROM generate_series(1, 3) g;
CREATE TABLE swapped (id int PRIMARY KEY, n int, email text, note text);
ALTER TABLE swapped ALTER email SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL;
INSERT INTO swapped VALUES (1, 1, repeat('TOPSECRET', 1000), repeat('note', 1000))
"""


# the stream shows the update of `swapped` with the old names; its large values are read under the new ones
_MEANWHILE = """
UPDATE swapped SET n = 2;
ALTER TABLE swapped RENAME email TO tmp; ALTER TABLE swapped RENAME note TO email;
ALTER TABLE swapped RENAME tmp TO note;
ALTER TABLE absent RENAME email TO mail;
ALTER TABLE events RENAME email TO mail; INSERT INTO events VALUES ('TOPSECRET')
"""


def test_a_hidden_column_that_is_renamed_does_not_appear_in_plain(
    servers: Servers, database: str, prefix: str, config_path: Path
) -> None:
    """Rename with a write, at rest, and while the daemon is stopped; after the mend, the values are hidden again."""
    config = load(config_path)
    config_path.write_text(config_path.read_text().replace("[source]\n", '[source]\ntoast = "reread"\n'))
    names = ("moving", "resting", "absent", "events", "swapped")

    def parked(*tables: str) -> None:
        codes = {f"public.{table}": "TR-432" for table in tables}
        assert wait_for(config, lambda record: len(record.parked) == len(codes)).parked == codes

    def resume(*tables: str) -> str:
        return tailrace("table", "resume", *tables, "--config", str(config_path)).stderr

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_RENAMED.encode())
        with running(config_path) as daemon:
            wait_for_state(config, connection)
            with connection.transaction():
                connection.execute('ALTER TABLE moving RENAME phone TO "Tel#"')
                connection.execute("INSERT INTO moving VALUES (4, 'TOPSECRET')")
            parked("moving")
            connection.execute("ALTER TABLE resting RENAME secret TO hidden_once")
            parked("moving", "resting")
            detail = events(daemon, "table parked")[0]
            assert 'mask = { "public.moving.Tel#" = 4 }' in detail["hint"], detail
            assert daemon.stop() == 0
        connection.execute(_MEANWHILE.encode())
        with running(config_path) as daemon:
            parked(*names)
            assert 'request "resume" refused for public.nosuch' in resume("nosuch")
            connection.execute("UPDATE moving SET id = id + 10; UPDATE resting SET n = 0; UPDATE absent SET id = -id")
            assert resume(*names) == ""
            connection.execute("INSERT INTO events VALUES ('TOPSECRET')")
            # the configuration is as before
            wait_until(lambda: len(events(daemon, "table parked")) == 10)
            parked(*names)
            assert daemon.stop() == 0
        text = config_path.read_text().replace('"public.*.secret"', '"public.*.secret", "public.resting.hidden_once"')
        text = text.replace("mask = {", 'mask = { "public.moving.Tel#" = 4,').replace(
            '"public.*.email"', '"*.*mail", "public.swapped.note"'
        )
        config_path.write_text(text)
        with running(config_path) as daemon:
            assert resume(*names) == ""
            connection.execute("INSERT INTO events VALUES ('TOPSECRET')")
            wait_for_state(config, connection)
            for table in names:
                raw = read_raw(servers.bootstrap, f"{prefix}.public.{table}")
                assert raw
                assert not any(b"TOPSECRET" in (message.value() or b"") for message in raw)
            for table, columns in (("moving", ["id", "Tel_x23"]), ("resting", ["id", "n"]), ("absent", ["id", "mail"])):
                rows = latest(read_topic(servers.bootstrap, prefix, f"public.{table}"))
                assert {tuple(row) for row in rows.values()} == {tuple(columns)}
            assert daemon.stop() == 0
        config_path.write_text(text.replace("[source]\n", '[source]\non_table_error = "stop"\n'))
        with running(config_path) as daemon:
            wait_for_state(config, connection)
            connection.execute('ALTER TABLE moving RENAME "Tel#" TO tel')
            assert daemon.process.wait(60) == 6
            assert "TR-432" in daemon.log.read_text().splitlines()[-1]


def test_a_key_cannot_be_hidden(servers: Servers, database: str, config_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (email text PRIMARY KEY)")
    done = tailrace("run", "--config", str(config_path))
    assert (done.returncode, "TR-128" in done.stderr, '"email"' in done.stderr) == (3, True, True), done.stderr
