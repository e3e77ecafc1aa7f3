"""Record what a daemon and a views job write to our own topics: later versions must read it.

    python -m tests.golden.records

Writes records_VERSION.jsonl next to this file: a line for each record of our own topics. Run it before a release; do
not delete the files of earlier versions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

import tailrace
from tailrace.cdc.launch.spark_job import job
from tailrace.schemas.config.file import load
from tailrace.schemas.records.topics import Topics
from tests.support.daemon import running, wait_for_state, write_config
from tests.support.daemon import tailrace as command
from tests.support.servers import own_servers
from tests.support.topics import read_raw

FOLDER = Path(__file__).parent
NAMES = ("progress", "tables", "schemas", "requests", "views")
"""Our own topics, as `Topics` calls them."""

_SETUP = (
    "CREATE TYPE mood AS ENUM ('bad', 'good')",
    "CREATE TABLE item (id int PRIMARY KEY, name text, mood mood, price numeric(10,2), body text)",
    "INSERT INTO item SELECT g, 'n' || g, 'good', g, repeat('x', 3000) FROM generate_series(1, 200) g",
    "CREATE TABLE event (at timestamptz, what text)",
    "CREATE TABLE other (k uuid PRIMARY KEY, v jsonb)",
    "INSERT INTO other VALUES (gen_random_uuid(), '{}')",
)
_CHANGES = (
    "UPDATE item SET name = 'm' WHERE id < 20",
    "INSERT INTO event VALUES (now(), 'seen')",
    "ALTER TABLE item ADD COLUMN n int DEFAULT 7",
    "UPDATE item SET n = 8 WHERE id = 1",
    "ALTER TABLE other RENAME TO another",
    "CREATE TABLE late (id bigint PRIMARY KEY)",
    "ALTER PUBLICATION tailrace ADD TABLE late",
    "INSERT INTO late VALUES (1)",
)


def recorded(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a pipeline with snapshots, schema changes, requests, a parked table, a view; yield its records."""
    with own_servers() as (servers, _), psycopg.connect(servers.dsn, autocommit=True) as source:
        for statement in _SETUP:
            source.execute(statement.encode())
        (folder / "warehouse").mkdir()
        more = (
            f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n'
            '[snapshot]\nchunk_bytes = 65536\n[views.items]\ntable = "public.item"\n'
            '[health]\nlisten = "127.0.0.1:0"\n'
        )
        path = write_config(folder, servers.dsn, servers.bootstrap, "golden", more)
        config = load(path)
        with running(path) as daemon:
            wait_for_state(config, source)
            for statement in _CHANGES:
                source.execute(statement.encode())
            wait_for_state(config, source)
            for arguments in (("snapshot", "start", "public.item"), ("table", "park", "public.late")):
                done = command(*arguments, "--config", str(path))
                assert done.returncode == 0, done.stderr
            source.execute("INSERT INTO item VALUES (1000)")
            (lsn,) = source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
            follow = job(config, "follow", ["--config", str(path), "--until-lsn", lsn])
            subprocess.run(follow.command, env=follow.environment, check=True)
            tailrace.wait(lsn, "items", config=path)
            assert daemon.stop() == 0
        for name in NAMES:
            for message in read_raw(servers.bootstrap, getattr(Topics("golden"), name)):
                key, value = message.key(), message.value()
                yield {"topic": name, "key": key.decode("latin-1"), "value": value and value.decode()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps(record) for record in recorded(Path(folder))]
    (FOLDER / f"records_{version('tailrace')}.jsonl").write_text("\n".join(lines) + "\n")
    print(len(lines), "records", file=sys.stderr)


if __name__ == "__main__":
    main()
