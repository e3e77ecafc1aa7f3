"""Time from the COMMIT of a transaction of millions of rows to its last record on Kafka.

    python -m tests.bench.large_transaction [--rows 5000000]

The daemon runs, and receives it whole after the commit, or in progress (`source.streaming`). Measured are the seconds
from the answer to COMMIT to Kafka's acknowledgement of the last record, and the daemon's peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid
from pathlib import Path

import psycopg

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.lsn import parse_lsn
from tests.support.daemon import running, wait_for, write_config
from tests.support.servers import own_servers


def measure(servers: Servers, folder: Path, rows: int, *, streaming: bool) -> dict[str, float]:
    """Run the daemon on a table of its own and return the figures."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    more = "[snapshot]\nworkers = 1\n"
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    os.environ["TAILRACE__SOURCE__STREAMING"] = str(streaming).lower()
    os.environ["TAILRACE__SOURCE__SPOOL_DIR"] = str(folder)
    config = load(path)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, a int, name text, at timestamptz, x float8)")
        with running(path, forked=False) as daemon:
            wait_for(config, lambda record: record.state is not None)
            connection.execute(
                "INSERT INTO t SELECT g, g %% 97, 'name of ' || g, now(), g * 1.5 FROM generate_series(1, %s) g",
                (rows,),
            )
            committed = time.monotonic()
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            end = parse_lsn(row[0])
            connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'x')")
            wait_for(config, lambda record: record.here.flushed_lsn >= end, 600)
            seconds = time.monotonic() - committed
            peak = daemon.peak_bytes
    return {"seconds_from_commit": round(seconds, 1), "peak_mib": round(peak / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        results = {
            "whole": measure(servers, state_dir.parent, arguments.rows, streaming=False),
            "in progress": measure(servers, state_dir.parent, arguments.rows, streaming=True),
        }
    print(json.dumps({"rows": arguments.rows, "results": results}, indent=2))


if __name__ == "__main__":
    main()
