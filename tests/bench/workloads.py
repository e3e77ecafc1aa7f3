"""The workloads of the benchmarks, written to the WAL; rivals were measured with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """SQL that creates the tables and SQL that writes `changes` changes."""

    name: str
    changes: int
    setup: str
    load: Sequence[str]


WIDE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, status text, total numeric(12,2), placed timestamptz,"
    " shipped timestamp, flag boolean, weight double precision, note text, data jsonb, day date, ref uuid)"
)


WIDE_ROWS = (
    "INSERT INTO orders SELECT g, g %% 100000, 'placed', g * 1.25, now(), now(), true, g / 7.0, 'note ' || g,"
    " jsonb_build_object('n', g), current_date, gen_random_uuid() FROM generate_series(1, %s) g"
)
"""Fills that table with a number of rows to be copied."""


def workloads(scale: float) -> list[Workload]:
    """Return the workloads that rivals were measured with, `scale` times as large, and one of many idle tables."""
    inserts, mixed, small = int(1_000_000 * scale), int(400_000 * scale), int(60_000 * scale)
    batch = (
        f"DO $$ BEGIN FOR i IN 0..{inserts // 1000} - 1 LOOP"
        " INSERT INTO t SELECT i * 1000 + g, g % 97, 'name of ' || g, now(), g * 1.5 FROM generate_series(1, 1000) g;"
        " COMMIT; END LOOP; END $$"
    )
    wide = (
        f"DO $$ BEGIN FOR i IN 0..{mixed // 10} - 1 LOOP"
        " INSERT INTO orders SELECT i * 10 + g, g, 'placed', g * 1.25, now(), now(), true, g / 7.0, 'note ' || i,"
        "  jsonb_build_object('n', g), current_date, gen_random_uuid() FROM generate_series(1, 4) g;"
        " UPDATE orders SET status = 'paid', total = total + 1 WHERE id BETWEEN i * 10 + 1 AND i * 10 + 4;"
        " DELETE FROM orders WHERE id BETWEEN i * 10 + 1 AND i * 10 + 2; COMMIT; END LOOP; END $$"
    )
    tpcb = (
        f"DO $$ BEGIN FOR i IN 0..{small} - 1 LOOP UPDATE a SET v = v + 1 WHERE id = 1 + i % 10000;"
        " UPDATE b SET v = v + 1 WHERE id = 1 + i % 10; UPDATE c SET v = v + 1 WHERE id = 1;"
        " INSERT INTO h VALUES (i, 1, 2, 3, now()); COMMIT; END LOOP; END $$"
    )
    few = (
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int);"
        " CREATE TABLE c (id int PRIMARY KEY, v int);"
        " CREATE TABLE h (id int PRIMARY KEY, a int, b int, c int, at timestamp);"
        " INSERT INTO a SELECT g, 0 FROM generate_series(1, 10000) g;"
        " INSERT INTO b SELECT g, 0 FROM generate_series(1, 10) g; INSERT INTO c VALUES (1, 0)"
    )
    texts = ", ".join(f"c{n} text" for n in range(20))
    idle = "".join(f"; CREATE TABLE idle{n} (id int PRIMARY KEY, {texts})" for n in range(100))
    return [
        Workload(
            "narrow",
            inserts,
            "CREATE TABLE t (id bigint PRIMARY KEY, a int, name text, at timestamptz, x double precision)",
            [batch],
        ),
        Workload("mixed", mixed, WIDE, [wide]),
        Workload("small", small * 4, few, [tpcb]),
        # what is done for each table, and not for each change
        Workload("tables", small * 4, few + idle, [tpcb]),
    ]
