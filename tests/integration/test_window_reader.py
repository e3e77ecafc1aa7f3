"""The thread that reads windows ends, with its connections, whatever it is doing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.snapshot.window import Look, Plan
from tailrace.snapshot.window_reader import WindowReader
from tests.support.daemon import wait_until

_NAME = "window reader"


def _never(*_: Any) -> Any:
    raise AssertionError


def _sleeps(connection: psycopg.Connection, *_: Any) -> tuple[Relation, Layout] | None:
    connection.execute("SELECT pg_sleep(60)")
    return None


def _asks_often(connection: psycopg.Connection, *_: Any) -> tuple[Relation, Layout] | None:
    for _number in range(3000):
        connection.execute("SELECT 1")
    return None


@pytest.mark.parametrize("describe", [_sleeps, _asks_often, None])
def test_a_reader_that_is_closed_leaves_no_session(
    database: str, describe: Callable[..., tuple[Relation, Layout] | None] | None
) -> None:
    """In the middle of one long query, or of many short ones, or idle."""

    def connect() -> psycopg.Connection:
        return psycopg.connect(database, autocommit=True, application_name=_NAME)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")

        def sessions(state: str) -> int:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state LIKE %s", (_NAME, state)
            ).fetchone()
            assert row is not None
            return int(row[0])

        reader = WindowReader(connect, "test", "marks", describe or _never, _never, _look, _never)
        if describe is not None:
            relation = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, ())
            reader.request(Plan("public.t", 1, relation))
            wait_until(lambda: sessions("active") or sessions("idle in transaction"))
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 3
        wait_until(lambda: not sessions("%"), 2)


def _look(connection: psycopg.Connection) -> Look:
    raise AssertionError
