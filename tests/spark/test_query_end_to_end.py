"""Query views as in production: daemon and `views follow` are processes; PostgreSQL gives the rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import sqlglot
from psycopg import sql

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.read_status import wal_lsn
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.spark_jobs.query.dialect import DIALECT
from tests.spark.conftest import INTERPRETED
from tests.spark.shop import plain
from tests.spark.test_end_to_end import Shop, end, process, sections, warehouse_rows
from tests.support.daemon import running, write_config
from tests.support.shop_model import COLUMNS, EXAMPLES, KEYS, ShopModel
from tests.support.terminal import on_terminal

_NAMES = ("without", "having", "union_all", "timeline")
"""A view takes some seconds of Spark each time; `test_query_views.py` tests all of them."""

_ABOVE = {
    # For each reader, the posts in the timeline; a view over a view.
    "lists": (["reader"], "SELECT reader, count(*) AS posts, max(post) AS newest FROM timeline GROUP BY reader"),
}

_DOTTED = '"freight.v2"."par.cels"'
"""A table whose schema and name have dots; a view names it without quotes, another in a query."""
_WEIGHTS = ("loads", ["hub"], "SELECT hub, sum(kg) AS kg FROM `freight.v2`.`par.cels` GROUP BY hub")


def test_query_views_equal_postgresql_s_own_results(
    servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create(connection)
        connection.execute('CREATE SCHEMA "freight.v2"')
        connection.execute(f"CREATE TABLE {_DOTTED} (id int PRIMARY KEY, hub text, kg bigint)".encode())
        connection.execute(f"INSERT INTO {_DOTTED} SELECT g, g % 3, g FROM generate_series(1, 9) g".encode())
        model = ShopModel(11)
        write(connection, model.fill())
        file = write_views(tmp_path, database, servers.bootstrap, prefix)
        shop = Shop(file, database, tmp_path, "")
        done = shop.run("views", "explain", "without")
        assert done.returncode == 3, "there is no schema yet"
        work = ("tailrace.cdc.cli.main", "views", "follow", "--config", str(file))
        with running(file) as daemon, process(tmp_path / "follow.log", *work) as follow:
            shop.wait_for_views(600)
            equal(shop, connection)
            before = wal_lsn(connection)
            connection.execute(f"UPDATE {_DOTTED} SET kg = kg + 1 WHERE id < 5".encode())
            for _ in range(2):
                for _ in range(5):
                    write(connection, model.change())
                shop.wait_for_views()
                equal(shop, connection)
            rebuilt = on_terminal(
                ["views", "rebuild", "having", "--json", "--config", str(file)],
                width=80,
                cwd=tmp_path,
                seconds=400,
            )
            assert rebuilt.code == 0, rebuilt.text
            # on a terminal the log is text: only results are JSON
            results = [json.loads(line) for line in rebuilt.text.splitlines() if line.startswith("{")]
            assert [(each["view"], each["generation"], each["live"]) for each in results] == [("having", 2, True)]
            assert all(parse_lsn(each["lsn"]) for each in results)
            write(connection, model.change())
            shop.wait_for_views()
            equal(shop, connection)
            done = shop.run("views", "explain", "without")
            assert done.returncode == 0, done.stderr
            assert "A change in public.orders" in done.stdout
            done = shop.run("verify", "parcels")
            assert done.returncode == 0, done.stderr
            assert "9 and 9 rows, no difference" in done.stdout
            done = shop.run("verify", "--all", "--json")
            assert done.returncode == 0, done.stderr
            compared = [json.loads(line) for line in done.stdout.splitlines()]
            assert {each["view"] for each in compared} == {*_NAMES, *_ABOVE, "loads", "parcels"}
            assert all(each["equal"] for each in compared)
            assert {each["table"] for each in compared} > {None, "public.orders", "public.customer"}
            assert_scopes(shop, before)
            assert end(follow) == 0
            said = (tmp_path / "follow.log").read_text()
            assert '"files_rewritten"' in said
            assert '"error"' not in said
            assert daemon.stop() == 0


def assert_scopes(shop: Shop, before: int) -> None:
    """Compare the rows of `parcels` after an LSN, of which there are four, and a sample of a staged generation."""
    done = shop.run("verify", "--json", "--since", format_lsn(before), "parcels")
    assert done.returncode == 0, done.stderr
    (found,) = (json.loads(line) for line in done.stdout.splitlines())
    assert found["scope"]["since"] == format_lsn(before)
    assert [(each["left_rows"], each["right_rows"]) for each in found["comparisons"]] == [(4, 4)]
    done = shop.run("views", "rebuild", "--no-swap", "parcels")
    assert done.returncode == 0, done.stderr
    done = shop.run("verify", "--staged", "--sample", "50%", "parcels")
    assert done.returncode == 0, done.stderr
    assert "staged generation 2" in done.stdout
    assert "a sample of 50 % of the keys; 50 % were not compared" in done.stdout
    rows = re.search(r"(\d+) and (\d+) rows, no difference", done.stdout)
    assert rows is not None
    assert rows[1] == rows[2]
    assert 0 < int(rows[1]) < 9


def create(connection: psycopg.Connection[Any]) -> None:
    for table, columns in COLUMNS.items():
        listed = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns.items()]
        key = sql.SQL(", ").join(map(sql.Identifier, KEYS[table]))
        connection.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
                sql.Identifier(table), sql.SQL(", ").join(listed), key
            )
        )


def write(connection: psycopg.Connection[Any], changes: list[tuple[str, str, Any]]) -> None:
    """Write changes in one transaction."""
    with connection.transaction():
        for kind, table, what in changes:
            name = sql.Identifier(table)
            if kind == "truncate":
                connection.execute(sql.SQL("TRUNCATE {}").format(name))
                continue
            key = what if kind == "delete" else tuple(what[part] for part in KEYS[table])
            same = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(part)) for part in KEYS[table])
            connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(name, same), key)
            if kind == "put":
                marks = sql.SQL(", ").join(
                    sql.SQL("timestamp '1970-01-01' + %s * interval '1 microsecond'" if column == "at" else "%s")
                    for column in what
                )
                connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(name, marks), list(what.values()))


def write_views(folder: Path, dsn: str, bootstrap: str, prefix: str) -> Path:
    views = "".join(
        f"[views.{name}]\nquery = '''{EXAMPLES[name].sql}'''\nkey = {list(EXAMPLES[name].key)}\n" for name in _NAMES
    )
    named = [*((name, *of) for name, of in _ABOVE.items()), _WEIGHTS]
    above = "".join(f"[views.{name}]\nquery = '''{sql}'''\nkey = {key}\n" for name, key, sql in named)
    above += f"[views.parcels]\ntable = '{_DOTTED}'\n"
    upkeep = "[warehouse]\ncompact_after = 3\nkeep_s = 0\nupkeep_share = 0.5\n"
    kept = sections(folder).replace("[warehouse]\n", upkeep)
    kept += "".join(f'"{name}" = "{value}"\n' for name, value in INTERPRETED.items())
    source = 'tables = ["public.*", "freight.v2.*"]\n'
    return write_config(folder, dsn, bootstrap, prefix, kept + above + views, source)


def equal(shop: Shop, connection: psycopg.Connection[Any]) -> None:
    # A plain name in a view stands for the query of that view.
    plainly = {name: EXAMPLES[name].sql for name in _NAMES}
    plainly |= {name: sql.replace("timeline", f"({plainly['timeline']}) AS t") for name, (_, sql) in _ABOVE.items()}
    plainly |= {_WEIGHTS[0]: _WEIGHTS[2], "parcels": "SELECT * FROM `freight.v2`.`par.cels`"}
    for name, query in plainly.items():
        # PostgreSQL sorts NULL elsewhere and has no QUALIFY.
        text = sqlglot.parse_one(query, dialect=DIALECT).sql("postgres")
        expected = [tuple(map(plain, row)) for row in connection.execute(text.encode()).fetchall()]
        found = [tuple(map(plain, row.values())) for row in warehouse_rows(shop, name)]
        assert sorted(found, key=repr) == sorted(expected, key=repr), name
