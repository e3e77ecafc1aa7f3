"""Schema changes without row changes: topics become their tables; no cut is called a state too early.

Each scenario runs at rest; with changes of rows after it; while the daemon is stopped, or has been killed; and at rest
with a restart once the daemon has looked at the catalog.
"""

from __future__ import annotations

import os

import pytest

from tailrace.cdc.dev.state import Servers
from tests.ddl.cases import Case, Outcome, play_modes

_T = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 40) g"
_MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')"
_CHANGES = ("INSERT INTO t (id) VALUES (101)", "DELETE FROM t WHERE id = 7", "UPDATE t SET id = -9 WHERE id = 9")
_CHANGES_BELOW_20 = ("INSERT INTO t (id) VALUES (-50)", *_CHANGES[1:])


def _two(first: str, second: str) -> str:
    return (
        f"CREATE TABLE {first} (id int PRIMARY KEY, v text); CREATE TABLE {second} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {first} SELECT g, '{first} ' || g FROM generate_series(1, 40) g;"
        f"INSERT INTO {second} SELECT g, '{second} ' || g FROM generate_series(20, 70) g"
    )


def _changed(*tables: str) -> tuple[str, ...]:
    return tuple(
        statement
        for table in tables
        for statement in (
            f"INSERT INTO {table} VALUES (500, 'new')",
            f"UPDATE {table} SET v = 'other' WHERE id = (SELECT min(id) FROM {table})",
            f"DELETE FROM {table} WHERE id = (SELECT max(id) FROM {table} WHERE id < 500)",
        )
    )


_NEW = "CREATE TABLE t (id int PRIMARY KEY, v text)"
_FILLED = "INSERT INTO t VALUES (1, 'of the new one'), (1000, 'of the new one')"

NAMES = {
    "renamed": Case((_T,), ("ALTER TABLE t RENAME TO was",), _changed("was")),
    "renamed_and_back": Case((_T,), ("ALTER TABLE t RENAME TO was", "ALTER TABLE was RENAME TO t"), _changed("t")),
    "renamed_twice": Case((_T,), ("ALTER TABLE t RENAME TO was", "ALTER TABLE was RENAME TO once"), _changed("once")),
    "renamed_with_column": Case(
        (_T,), (("ALTER TABLE t RENAME v TO w", "ALTER TABLE t RENAME TO was"),), ("INSERT INTO was VALUES (500, 'x')",)
    ),
    "moved": Case((_T, "CREATE SCHEMA moved__to"), ("ALTER TABLE t SET SCHEMA moved__to",), _changed("moved__to.t")),
    "schema_renamed": Case(
        ("CREATE SCHEMA schema_renamed__before; CREATE TABLE schema_renamed__before.t (id int PRIMARY KEY, v text)",
         "INSERT INTO schema_renamed__before.t VALUES (1, 'a'), (2, 'b')"),
        ("ALTER SCHEMA schema_renamed__before RENAME TO schema_renamed__to",), _changed("schema_renamed__to.t"),
    ),
    "rotated": Case((_T,), (("ALTER TABLE t RENAME TO was", _NEW),), _changed("was")),
    "rotated_and_filled": Case((_T,), (("ALTER TABLE t RENAME TO was", _NEW, _FILLED),), _changed("was", "t")),
    "rotated_twice": Case(
        (_T,),
        (("ALTER TABLE t RENAME TO was", _NEW, _FILLED), ("ALTER TABLE was RENAME TO once",),
         ("ALTER TABLE t RENAME TO was", _NEW, _FILLED)),
        _changed("once", "was", "t"),
    ),
    "swapped": Case(
        (_two("a", "b"),),
        (("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"),), _changed("a", "b"),
    ),
    "swapped_in_steps": Case(
        (_two("a", "b"),),
        ("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"), _changed("a", "b"),
    ),
    "swapped_and_back": Case(
        (_two("a", "b"),),
        (2 * ("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"),),
        _changed("a", "b"),
    ),
    "swapped_over_schemas": Case(
        (_two("a", "b"), "CREATE SCHEMA swapped_over_schemas__with",
         "ALTER TABLE b SET SCHEMA swapped_over_schemas__with",
         "ALTER TABLE swapped_over_schemas__with.b RENAME TO a"),
        (("CREATE SCHEMA swapped_over_schemas__aside", "ALTER TABLE a SET SCHEMA swapped_over_schemas__aside",
          "ALTER TABLE swapped_over_schemas__with.a SET SCHEMA swapped_over_schemas",
          "ALTER TABLE swapped_over_schemas__aside.a SET SCHEMA swapped_over_schemas__with"),),
        _changed("a", "swapped_over_schemas__with.a"),
    ),
    "ring": Case(
        (_two("a", "b"), "CREATE TABLE c (id int PRIMARY KEY, v text); INSERT INTO c VALUES (1, 'c'), (2, 'c')"),
        (("ALTER TABLE a RENAME TO x", "ALTER TABLE c RENAME TO a", "ALTER TABLE b RENAME TO c",
          "ALTER TABLE x RENAME TO b"),),
        _changed("a", "b", "c"),
    ),
    "name_of_a_dropped": Case(
        (_two("a", "b"),), ("DROP TABLE b", "ALTER TABLE a RENAME TO b"), _changed("b"),
    ),
    "name_of_a_dropped_at_once": Case(
        (_two("a", "b"),), (("DROP TABLE b", "ALTER TABLE a RENAME TO b"),), _changed("b"),
    ),
    "recreated": Case((_T,), (("DROP TABLE t", _NEW, _FILLED),), _changed("t")),
    "recreated_empty": Case((_T,), ("DROP TABLE t", _NEW), ("INSERT INTO t VALUES (3, 'later')",)),
    "recreated_by_swap": Case(
        (_T,),
        (("CREATE TABLE new (LIKE t INCLUDING ALL)", "INSERT INTO new SELECT id, upper(v) FROM t WHERE id > 5",
          "DROP TABLE t", "ALTER TABLE new RENAME TO t"),),
        _changed("t"),
    ),
    "partitioned_renamed": Case(
        ("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
         "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (600); INSERT INTO p VALUES (1, 'a'), (2, 'b')",),
        ("ALTER TABLE p RENAME TO q",), _changed("q"),
    ),
}  # fmt: skip


def _key(kind: str, values: str, using: str, to: str = "", extra: str = "", full: bool = False) -> Case:
    identity = "ALTER TABLE t REPLICA IDENTITY FULL" if full else "SELECT 1"
    create = f"{extra}CREATE TABLE t (k {kind} PRIMARY KEY, v int); INSERT INTO t SELECT {values} FROM g; {identity}"
    return Case(
        (create.replace(" FROM g", " FROM generate_series(1, 26) g"),),
        (f"ALTER TABLE t ALTER k TYPE {to or kind} USING {using}",),
        ("UPDATE t SET v = -v WHERE v < 4", "DELETE FROM t WHERE v = 7"),
        ("UPDATE t SET v = v + 100 WHERE v > 9", "DELETE FROM t WHERE v = 8"),
    )


_STAMPS = "timestamp '2026-01-01 00:00:00.4' + g * interval '1 second', g"

KEYS = {
    "text_key": _key("text", "'k' || g, g", "upper(k)"),
    "text_key_full": _key("text", "'k' || g, g", "upper(k)", full=True),
    "int_key": _key("int", "g, g", "-k"),
    "keys_exchanged": _key("text", "'k' || g, g", "'k' || (27 - v)"),
    "bigint_key": _key("bigint", "g, g", "k * 4294967296"),
    "char_key": _key("char(4)", "'k' || g, g", "k", "char(8)"),
    "varchar_key": _key("varchar(10)", "'k' || g || '  ', g", "rtrim(k)", "text"),
    "timestamp_key": _key("timestamp", _STAMPS, "k", "timestamp(0)"),
    "timestamptz_key": _key("timestamptz", _STAMPS, "k + interval '1 day'"),
    "date_key": _key("date", "date '2026-01-01' + g, g", "k + 100"),
    "numeric_key": _key("numeric", "g + 0.250, g", "trim_scale(k)"),
    "scaled_key": _key("numeric(10,2)", "g + 0.25, g", "k + 0.5"),
    "uuid_key": _key("uuid", "gen_random_uuid(), g", "gen_random_uuid()"),
    "domain_key": _key("word", "'k' || g, g", "upper(k)", extra="CREATE DOMAIN word AS text;"),
    "text_to_domain_key": _key("text", "'k' || g, g", "upper(k)", "word", "CREATE DOMAIN word AS text;"),
    "enum_key": Case(
        (_MOOD, "CREATE TABLE t (k mood PRIMARY KEY, v int); INSERT INTO t VALUES ('sad', 1), ('ok', 2)"),
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",), ("INSERT INTO t VALUES ('glad', 3)",),
        ("UPDATE t SET v = v + 10",),
    ),
    "enum_keys_exchanged": Case(
        (_MOOD, "CREATE TABLE t (k mood PRIMARY KEY, v int); INSERT INTO t VALUES ('sad', 1), ('ok', 2)"),
        (("ALTER TYPE mood RENAME VALUE 'ok' TO 'x'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'",
          "ALTER TYPE mood RENAME VALUE 'x' TO 'sad'"),),
        ("INSERT INTO t VALUES ('glad', 3)",),
        ("UPDATE t SET v = v + 10",),
    ),
    "enum_domain_key": Case(
        (_MOOD, "CREATE DOMAIN feeling AS mood; CREATE DOMAIN felt AS feeling",
         "CREATE TABLE t (k felt PRIMARY KEY, v int); INSERT INTO t VALUES ('sad', 1), ('ok', 2)"),
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",), ("INSERT INTO t VALUES ('glad', 3)",),
        ("UPDATE t SET v = v + 10",),
    ),
    "composite_key": Case(
        ("CREATE TABLE t (a text, b int, v int, PRIMARY KEY (a, b));"
         "INSERT INTO t SELECT 'k' || g % 3, g, g FROM generate_series(1, 30) g",),
        ("ALTER TABLE t ALTER a TYPE text USING upper(a)",), ("UPDATE t SET v = 0 WHERE b = 4",),
        ("UPDATE t SET v = v + 10 WHERE b > 9",),
    ),
    "composite_enum_key": Case(
        (_MOOD, "CREATE TABLE t (a mood, b int, v int, PRIMARY KEY (a, b));"
         "INSERT INTO t SELECT CASE WHEN g % 2 = 0 THEN 'sad' ELSE 'ok' END::mood, g, g FROM generate_series(1, 30) g"),
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",), ("UPDATE t SET v = 0 WHERE b = 4",),
        ("UPDATE t SET v = v + 10 WHERE b > 9",),
    ),
    "row_typed_key": Case(
        ("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (k pair PRIMARY KEY, v int)",
         "INSERT INTO t VALUES ((1, 'x'), 1), ((2, 'y'), 2)"),
        ("ALTER TYPE pair ADD ATTRIBUTE c int",), ("UPDATE t SET v = 0 WHERE v = 1",),
        ("UPDATE t SET v = v + 10 WHERE v > 1",),
    ),
    "identity_index": Case(
        ("CREATE TABLE t (id int PRIMARY KEY, k text NOT NULL UNIQUE, v int);"
         "INSERT INTO t SELECT g, 'k' || g, g FROM generate_series(1, 26) g",
         "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key"),
        ("ALTER TABLE t ALTER k TYPE text USING upper(k)",), ("UPDATE t SET v = 0 WHERE id = 1",),
        ("UPDATE t SET v = v + 10 WHERE v > 1",),
    ),
    "partitioned_key": Case(
        ("CREATE TABLE t (p int, k text, v int, PRIMARY KEY (p, k)) PARTITION BY RANGE (p);"
         "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
         "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (40);"
         "INSERT INTO t SELECT g, 'k' || g, g FROM generate_series(1, 26) g",),
        ("ALTER TABLE t ALTER k TYPE text USING upper(k)",), ("UPDATE t SET v = 0 WHERE p = 11",),
        ("UPDATE t SET v = v + 10 WHERE v > 1",),
    ),
    "altered_twice": Case(
        ("CREATE TABLE t (k text PRIMARY KEY, v int); INSERT INTO t SELECT 'k' || g, g FROM generate_series(1, 26) g",),
        ("ALTER TABLE t ALTER k TYPE text USING upper(k)", "ALTER TABLE t ALTER k TYPE text USING k || '!'"),
        ("UPDATE t SET v = 0 WHERE v = 1",),
        ("UPDATE t SET v = v + 10 WHERE v > 1",),
    ),
    "key_and_name": Case(
        ("CREATE TABLE t (k text PRIMARY KEY, v int); INSERT INTO t SELECT 'k' || g, g FROM generate_series(1, 26) g",),
        (("ALTER TABLE t ALTER k TYPE text USING upper(k)", "ALTER TABLE t RENAME TO was",
          "ALTER TABLE was RENAME TO t"),),
        ("UPDATE t SET v = 0 WHERE v = 1",),
        ("UPDATE t SET v = v + 10 WHERE v > 1",),
    ),
}  # fmt: skip


def _typed(types: str, kind: str, value: str, *steps: str | tuple[str, ...]) -> Case:
    return Case(
        (types, f"CREATE TABLE t (id int PRIMARY KEY, x {kind}); INSERT INTO t SELECT g, {value} FROM generate_series"
         "(1, 20) g"),
        steps, _CHANGES, ("UPDATE t SET id = id + 50 WHERE id > 15", "DELETE FROM t WHERE id = 14"),
    )  # fmt: skip


_PAIR = "CREATE TYPE pair AS (a int, b text)"
_MOOD_PAIR = f"{_MOOD}; CREATE TYPE pair AS (a int, b mood)"
_RENAME_VALUE = "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"

TYPES = {
    "attribute_added": _typed(_PAIR, "pair", "ROW(g, 'b')::pair", "ALTER TYPE pair ADD ATTRIBUTE c int"),
    "attribute_dropped": _typed(_PAIR, "pair", "ROW(g, 'b')::pair", "ALTER TYPE pair DROP ATTRIBUTE b"),
    "attribute_dropped_and_added": _typed(
        _PAIR, "pair", "ROW(g, 'b')::pair", "ALTER TYPE pair DROP ATTRIBUTE b, ADD ATTRIBUTE b text"),
    "attribute_renamed": _typed(_PAIR, "pair", "ROW(g, 'b')::pair", "ALTER TYPE pair RENAME ATTRIBUTE b TO c"),
    "array_of_composite": _typed(_PAIR, "pair[]", "ARRAY[(g, 'b')]::pair[]", "ALTER TYPE pair ADD ATTRIBUTE c int"),
    "composite_in_composite": _typed(
        f"{_PAIR}; CREATE TYPE outer_pair AS (p pair, n int)", "outer_pair", "ROW(ROW(g, 'b')::pair, 1)::outer_pair",
        "ALTER TYPE pair ADD ATTRIBUTE c int"),
    "domain_over_composite": _typed(
        f"{_PAIR}; CREATE DOMAIN two AS pair", "two", "ROW(g, 'b')::two", "ALTER TYPE pair DROP ATTRIBUTE b"),
    "array_of_domain_over_composite": _typed(
        f"{_PAIR}; CREATE DOMAIN two AS pair", "two[]", "ARRAY[ROW(g, 'b')::two]", "ALTER TYPE pair DROP ATTRIBUTE b"),
    "rows_of_a_table": _typed(
        "CREATE TABLE inside (a int PRIMARY KEY, b text)", "inside", "ROW(g, 'b')::inside",
        "ALTER TABLE inside ADD c int", "ALTER TABLE inside DROP b"),
    "typed_table": Case(
        ("CREATE TYPE pair AS (id int, v text)", "CREATE TABLE t OF pair (PRIMARY KEY (id))",
         "INSERT INTO t SELECT g, 'b' FROM generate_series(1, 20) g"),
        ("ALTER TYPE pair RENAME ATTRIBUTE v TO w CASCADE", "ALTER TYPE pair ALTER ATTRIBUTE w TYPE varchar(9) CASCADE",
         "ALTER TYPE pair ADD ATTRIBUTE v text CASCADE"),
        _CHANGES,
    ),
    "label": _typed(_MOOD, "mood", "'ok'::mood", _RENAME_VALUE),
    "labels_exchanged": _typed(
        _MOOD, "mood", "CASE WHEN g % 2 = 0 THEN 'sad' ELSE 'ok' END::mood",
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'x'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'",
         "ALTER TYPE mood RENAME VALUE 'x' TO 'sad'")),
    "label_in_array": _typed(_MOOD, "mood[]", "ARRAY['ok', 'sad']::mood[]", _RENAME_VALUE),
    "label_in_domain": _typed(f"{_MOOD}; CREATE DOMAIN d AS mood", "d", "'ok'::d", _RENAME_VALUE),
    "label_in_array_of_domain": _typed(
        f"{_MOOD}; CREATE DOMAIN d AS mood", "d[]", "ARRAY['ok', 'sad']::d[]", _RENAME_VALUE),
    "label_in_domain_over_array": _typed(
        f"{_MOOD}; CREATE DOMAIN d AS mood[]", "d", "ARRAY['ok', 'sad']::d", _RENAME_VALUE),
    "label_in_domain_over_domain": _typed(
        f"{_MOOD}; CREATE DOMAIN d AS mood; CREATE DOMAIN e AS d", "e", "'ok'::e", _RENAME_VALUE),
    "label_in_composite": _typed(_MOOD_PAIR, "pair", "ROW(g, 'ok')::pair", _RENAME_VALUE),
    "label_in_array_of_composite": _typed(_MOOD_PAIR, "pair[]", "ARRAY[(g, 'ok')]::pair[]", _RENAME_VALUE),
    "label_at_depth": _typed(
        f"{_MOOD}; CREATE DOMAIN d AS mood; CREATE TYPE p AS (a int, b d[]); CREATE DOMAIN e AS p[];"
        "CREATE TYPE q AS (c e, n int); CREATE DOMAIN f AS q",
        "f[]", "ARRAY[ROW(ARRAY[ROW(g, ARRAY['ok', 'sad']::d[])::p]::e, 1)::q]::f[]", _RENAME_VALUE),
    "attribute_at_depth": _typed(
        f"{_PAIR}; CREATE DOMAIN d AS pair; CREATE TYPE p AS (a int, b d[]); CREATE DOMAIN e AS p[]",
        "e", "ARRAY[ROW(g, ARRAY[ROW(g, 'b')::pair]::d[])::p]::e", "ALTER TYPE pair DROP ATTRIBUTE a"),
    "label_in_range": _typed(
        f"{_MOOD}; CREATE TYPE moods AS RANGE (subtype = mood)", "moods", "moods('sad', 'ok')", _RENAME_VALUE),
    "label_in_multirange": _typed(
        f"{_MOOD}; CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = spans)", "spans",
        "spans(moods('sad', 'ok'))", _RENAME_VALUE),
    "label_in_range_in_composite": _typed(
        f"{_MOOD}; CREATE TYPE moods AS RANGE (subtype = mood); CREATE TYPE p AS (a moods[])", "p",
        "ROW(ARRAY[moods('sad', 'ok')])::p", _RENAME_VALUE),
    "label_in_rows_of_a_table": _typed(
        f"{_MOOD}; CREATE TABLE inside (a int PRIMARY KEY, b mood)", "inside", "ROW(g, 'ok')::inside", _RENAME_VALUE),
    "label_of_a_partitioned": Case(
        (_MOOD, "CREATE TYPE pair AS (a int, b mood); CREATE TABLE t (id int PRIMARY KEY, x pair) PARTITION BY RANGE "
         "(id)", "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (-100) TO (200); INSERT INTO t SELECT g, "
         "ROW(g, 'ok')::pair FROM generate_series(1, 20) g"),
        (_RENAME_VALUE,), _CHANGES,
    ),
    "value_added": _typed(_MOOD_PAIR, "pair", "ROW(g, 'ok')::pair", "ALTER TYPE mood ADD VALUE 'so' BEFORE 'ok'"),
    "type_renamed": _typed(_MOOD_PAIR, "pair", "ROW(g, 'ok')::pair", "ALTER TYPE mood RENAME TO other_mood",
                           "ALTER TYPE other_mood RENAME VALUE 'ok' TO 'fine'"),
    "domain_constrained": _typed(
        f"{_MOOD}; CREATE DOMAIN d AS mood", "d", "'ok'::d", "ALTER DOMAIN d ADD CHECK (VALUE <> 'glad')",
        "ALTER DOMAIN d SET DEFAULT 'sad'"),
    "collated": _typed("SELECT 1", "text", "'row ' || g", 'ALTER TABLE t ALTER x TYPE text COLLATE "C"'),
}  # fmt: skip

_PARTED = (
    "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (-100) TO (20);"
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (200);"
    "CREATE TABLE loose (v text, id int PRIMARY KEY);"
    "INSERT INTO loose SELECT 'loose', g FROM generate_series(200, 220) g;"
    "INSERT INTO t SELECT g, 'row' FROM generate_series(1, 40) g"
)
_ATTACH = "ALTER TABLE t ATTACH PARTITION loose FOR VALUES FROM (200) TO (300)"

ROWS = {
    "default": Case((_T,), ("ALTER TABLE t ADD a int DEFAULT 7",), _CHANGES),
    "volatile_default": Case((_T,), ("ALTER TABLE t ADD a float8 DEFAULT random()",), _CHANGES),
    "no_default": Case((_T,), ("ALTER TABLE t ADD a int",), _CHANGES),
    "dropped": Case((_T,), ("ALTER TABLE t DROP v",), _CHANGES),
    "dropped_and_added": Case((_T,), ("ALTER TABLE t DROP v, ADD v text",), _CHANGES),
    "dropped_and_added_later": Case((_T,), ("ALTER TABLE t DROP v", "ALTER TABLE t ADD v text"), _CHANGES),
    "column_renamed": Case((_T,), ("ALTER TABLE t RENAME v TO w",), _CHANGES),
    "columns_swapped": Case(
        (_T, "ALTER TABLE t ADD w text; UPDATE t SET w = 'w'"),
        (("ALTER TABLE t RENAME v TO x", "ALTER TABLE t RENAME w TO v", "ALTER TABLE t RENAME x TO w"),), _CHANGES,
    ),
    "using": Case((_T,), ("ALTER TABLE t ALTER v TYPE text USING upper(v)",), _CHANGES),
    "using_twice": Case(
        (_T,), ("ALTER TABLE t ALTER v TYPE text USING upper(v)", "ALTER TABLE t ALTER v TYPE text USING v || '!'"),
        _CHANGES,
    ),
    "wider": Case(
        (_T, "ALTER TABLE t ADD n int, ADD r real; UPDATE t SET n = id, r = 0.1"),
        ("ALTER TABLE t ALTER n TYPE bigint, ALTER r TYPE float8",), _CHANGES,
    ),
    "identity_full": Case(
        (_T,), ("ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t ADD a int DEFAULT 7"), _CHANGES
    ),
    "many_at_once": Case(
        (_T,),
        (("ALTER TABLE t ADD a int DEFAULT 7", "UPDATE t SET a = id WHERE id < 9", "ALTER TABLE t RENAME v TO w",
          "DELETE FROM t WHERE id = 3", "ALTER TABLE t ALTER w TYPE text USING reverse(w)"),),
        _CHANGES,
    ),
    "rewritten": Case((_T,), ("VACUUM FULL t", "CLUSTER t USING t_pkey"), _CHANGES),
    "unlogged_for_a_while": Case(
        (_T,),
        (("ALTER TABLE t SET UNLOGGED", "UPDATE t SET v = 'changed' WHERE id < 20", "DELETE FROM t WHERE id > 30",
          "ALTER TABLE t SET LOGGED"),),
        _CHANGES,
    ),
    "truncated": Case((_T,), (("TRUNCATE t", "ALTER TABLE t ADD a int DEFAULT 7"),), ("INSERT INTO t VALUES (1)",)),
    "attached": Case((_PARTED,), (_ATTACH,), (*_CHANGES, "UPDATE t SET v = 'x' WHERE id = 202")),
    "attached_in_its_transaction": Case(
        (_PARTED,),
        (("CREATE TABLE made (LIKE t INCLUDING ALL)",
          "INSERT INTO made SELECT g, 'made' FROM generate_series(300, 320) g",
          "ALTER TABLE t ATTACH PARTITION made FOR VALUES FROM (300) TO (400)"),),
        (*_CHANGES, "UPDATE t SET v = 'x' WHERE id = 302"),
    ),
    "made_in_its_transaction": Case(
        (_PARTED,),
        (("CREATE TABLE made PARTITION OF t FOR VALUES FROM (300) TO (400)",
          "INSERT INTO t SELECT g, 'made' FROM generate_series(300, 320) g"),),
        (*_CHANGES, "UPDATE t SET v = 'x' WHERE id = 302"),
    ),
    "detached": Case((_PARTED,), ("leave t t2", "ALTER TABLE t DETACH PARTITION t2"), _CHANGES_BELOW_20),
    "detached_and_attached": Case(
        (_PARTED,),
        ("leave t t2", "ALTER TABLE t DETACH PARTITION t2", "UPDATE t2 SET v = 'changed'", "DELETE FROM t2 WHERE id < "
         "25", "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (20) TO (200)"),
        _CHANGES,
    ),
    "detached_and_attached_at_once": Case(
        (_PARTED,),
        (("ALTER TABLE t DETACH PARTITION t2", "UPDATE t2 SET v = 'changed'", "DELETE FROM t2 WHERE id < 25",
          "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (20) TO (200)"),),
        _CHANGES,
    ),
    "partition_of_partition_out_for_a_while": Case(
        ("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
         "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (-100) TO (200) PARTITION BY RANGE (id);"
         "CREATE TABLE t2 PARTITION OF t1 FOR VALUES FROM (-100) TO (200);"
         "INSERT INTO t SELECT g, 'row' FROM generate_series(1, 40) g",),
        (("ALTER TABLE t DETACH PARTITION t1", "UPDATE t1 SET v = 'changed'", "DELETE FROM t1 WHERE id < 25",
          "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (-100) TO (200)"),),
        _CHANGES,
    ),
    "partition_dropped": Case((_PARTED,), ("leave t t2", "DROP TABLE t2"), _CHANGES_BELOW_20),
    "partition_truncated": Case((_PARTED,), ("TRUNCATE t2",), _CHANGES),
    "partition_truncated_and_filled": Case(
        (_PARTED,), (("TRUNCATE t2", "INSERT INTO t SELECT g, 'new' FROM generate_series(25, 30) g"),), _CHANGES
    ),
    "partition_emptied_and_altered": Case(
        (_PARTED,), (("TRUNCATE t2", "ALTER TABLE t ADD a int DEFAULT 3"),), _CHANGES
    ),
    "partition_of_partition_truncated": Case(
        ("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
         "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (-100) TO (200) PARTITION BY RANGE (id);"
         "CREATE TABLE t2 PARTITION OF t1 FOR VALUES FROM (-100) TO (20);"
         "CREATE TABLE t3 PARTITION OF t1 FOR VALUES FROM (20) TO (200);"
         "INSERT INTO t SELECT g, 'row' FROM generate_series(1, 40) g",),
        ("TRUNCATE t3", "TRUNCATE t1"), _CHANGES,
    ),
    "partitioned_truncated": Case((_PARTED,), ("TRUNCATE t",), _CHANGES),
    "partition_rewritten": Case((_PARTED,), ("VACUUM FULL t2",), _CHANGES),
    "partitioned_altered": Case((_PARTED,), ("ALTER TABLE t ADD a int DEFAULT 3",), _CHANGES),
}  # fmt: skip

REFILLED = {
    "wider_key": Case((_T,), ("ALTER TABLE t ALTER id TYPE bigint",), _CHANGES),
    "wider_key_full": Case(
        (_T, "ALTER TABLE t REPLICA IDENTITY FULL"), ("ALTER TABLE t ALTER id TYPE bigint",), _CHANGES
    ),
    "wider_key_used": Case(
        (_T,), (("ALTER TABLE t ALTER id TYPE bigint", "INSERT INTO t VALUES (5000000000, 'large')"),), _CHANGES
    ),
    "narrower_key": Case((_T, "ALTER TABLE t ALTER id TYPE bigint"), ("ALTER TABLE t ALTER id TYPE int",), _CHANGES),
    "key_column_renamed": Case((_T,), ("ALTER TABLE t RENAME id TO number",), ("DELETE FROM t WHERE number = 7",)),
    "key_column_renamed_full": Case(
        (_T, "ALTER TABLE t REPLICA IDENTITY FULL"),
        ("ALTER TABLE t RENAME id TO number",), ("DELETE FROM t WHERE number = 7",),
    ),
    "another_key": Case(
        (_T, "ALTER TABLE t ADD other int; UPDATE t SET other = 1000 - id; ALTER TABLE t ALTER other SET NOT NULL"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (other)",),
        ("INSERT INTO t VALUES (1, 'twice', 1)", "DELETE FROM t WHERE other = 990"),
    ),
    "longer_key": Case(
        (_T, "ALTER TABLE t ALTER v SET NOT NULL"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",), ("INSERT INTO t VALUES (1, 'twice')",),
    ),
    "key_columns_reordered": Case(
        ("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b)); INSERT INTO t SELECT g, 100 - g, g FROM "
         "generate_series(1, 20) g",),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a)",), ("UPDATE t SET v = 0 WHERE a = 4",),
    ),
    "key_to_text": _key("int", "g, g", "'k' || k", "text"),
    "varchar_key_widened": _key("varchar(4)", "'k' || g, g", "k", "text"),
    "key_of_another_scale": _key("numeric(10,2)", "g + 0.25, g", "k", "numeric(10,4)"),
    "column_to_text": Case(
        (_T, "ALTER TABLE t ADD n int; UPDATE t SET n = id"),
        ("ALTER TABLE t ALTER n TYPE text USING 'n' || n",), _CHANGES,
    ),
    "column_of_another_scale": Case(
        (_T, "ALTER TABLE t ADD n numeric(10,2); UPDATE t SET n = id"),
        ("ALTER TABLE t ALTER n TYPE numeric(10,3)",), _CHANGES,
    ),
    "two_columns": Case(
        (_T, "ALTER TABLE t ADD n int, ADD m int; UPDATE t SET n = id"),
        ("ALTER TABLE t ALTER n TYPE text, ALTER m TYPE date USING NULL",), _CHANGES,
    ),
    "swapped_unlike": Case(
        ("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (k text PRIMARY KEY, n numeric(8,2));"
         "INSERT INTO a VALUES (1, 'a'), (2, 'a'); INSERT INTO b VALUES ('x', 1), ('y', 2)",),
        (("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"),),
        ("INSERT INTO a VALUES ('z', 3)", "DELETE FROM b WHERE id = 1"),
    ),
    "recreated_unlike": Case(
        (_T,), (("DROP TABLE t", "CREATE TABLE t (k text PRIMARY KEY, v int)", "INSERT INTO t VALUES ('x', 1)"),),
        ("INSERT INTO t VALUES ('y', 3)",),
    ),
}  # fmt: skip

_LISTED = "ALTER PUBLICATION tailrace ADD TABLE t"
_PUBLISH = "ALTER PUBLICATION tailrace SET (publish = '{}')"
_ALL = _PUBLISH.format("insert, update, delete, truncate")
_UNSEEN = (
    "UPDATE t SET v = 'unseen' WHERE id < 9",
    "DELETE FROM t WHERE id > 30",
    "INSERT INTO t VALUES (90, 'unseen')",
)

PUBLISHED = {
    "taken_out": Case((_T, _LISTED), ("ALTER PUBLICATION tailrace DROP TABLE t", *_UNSEEN)),
    "taken_out_and_added": Case(
        (_T, _LISTED), ("ALTER PUBLICATION tailrace DROP TABLE t", *_UNSEEN, _LISTED), _CHANGES,
    ),
    "taken_out_and_added_at_once": Case(
        (_T, _LISTED), (("ALTER PUBLICATION tailrace DROP TABLE t", *_UNSEEN, _LISTED),), _CHANGES,
    ),
    "recreated_outside": Case((_T, _LISTED), (("DROP TABLE t", _NEW, _FILLED), "UPDATE t SET v = 'unseen'")),
    "recreated_outside_and_added": Case(
        (_T, _LISTED), (("DROP TABLE t", _NEW, _FILLED), "UPDATE t SET v = 'unseen'", _LISTED), _changed("t"),
    ),
    "rotated_out": Case(
        (_T, _LISTED), (("ALTER TABLE t RENAME TO was", _NEW, _FILLED), "UPDATE t SET v = 'unseen'"), _changed("was"),
    ),
    "inserts_alone_for_a_while": Case((_T, _LISTED), (_PUBLISH.format("insert"), *_UNSEEN, _ALL), _CHANGES),
    "inserts_alone_at_once": Case((_T, _LISTED), ((_PUBLISH.format("insert"), *_UNSEEN, _ALL),), _CHANGES),
    "no_truncate_for_a_while": Case(
        (_T, _LISTED), (_PUBLISH.format("insert, update, delete"), "TRUNCATE t", _ALL), ("INSERT INTO t VALUES (1)",),
    ),
    "no_truncate_at_once": Case(
        (_T, _LISTED), ((_PUBLISH.format("insert, update, delete"), "TRUNCATE t", _ALL),),
        ("INSERT INTO t VALUES (1)",),
    ),
    "by_partition_at_once": Case(
        (_PARTED, _LISTED),
        (("ALTER PUBLICATION tailrace SET (publish_via_partition_root = false)", *_UNSEEN,
          "ALTER PUBLICATION tailrace SET (publish_via_partition_root = true)"),),
        _CHANGES,
    ),
    "by_partition_for_a_while": Case(
        (_PARTED, _LISTED),
        ("ALTER PUBLICATION tailrace SET (publish_via_partition_root = false)", *_UNSEEN,
         "ALTER PUBLICATION tailrace SET (publish_via_partition_root = true)", "UPDATE t SET v = 'later' WHERE id < 5"),
        _CHANGES,
    ),
}  # fmt: skip

CASES = NAMES | KEYS | TYPES | ROWS
_MODES = os.environ.get("TAILRACE_TEST_DDL_MODES", "").split()
"""Any of idle, followed, stopped, killed and restarted, to run all cases in; each takes minutes."""

_IN_OTHER_MODES = ("renamed", "rotated", "swapped", "text_key", "attribute_at_depth", "label_at_depth")
_REFILLED_IN_OTHER_MODES = ("wider_key",)


def _runs(cases: dict[str, Case], in_other_modes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return mode and case of each run: by default all cases in idle, a small selection in three other modes."""
    if _MODES:
        return [(mode, case) for mode in _MODES for case in cases]
    others = [(mode, case) for mode in ("followed", "killed", "restarted") for case in in_other_modes]
    return [*(("idle", case) for case in cases), *others]


def _selected(request: pytest.FixtureRequest, cases: dict[str, Case]) -> dict[str, dict[str, Case]]:
    """Return the cases of each mode that this pytest run has selected, so that a single case stays cheap."""
    modes: dict[str, dict[str, Case]] = {}
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and params.get("case") in cases:
            modes.setdefault(params["mode"], {})[params["case"]] = cases[params["case"]]
    return modes


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, servers: Servers) -> dict[tuple[str, str], Outcome]:
    """Outcome for each selected mode and case."""
    return play_modes(servers, _selected(request, CASES | REFILLED))


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest, servers: Servers) -> dict[tuple[str, str], Outcome]:
    """Outcome for each selected mode and case that alters a publication of listed tables."""
    return play_modes(servers, _selected(request, PUBLISHED), publication="FOR TABLE other")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "case"), _runs(CASES, _IN_OTHER_MODES))
def test_each_topic_becomes_equal_to_its_table(outcomes: dict[tuple[str, str], Outcome], mode: str, case: str) -> None:
    outcomes[mode, case].assert_equal(case)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "case"), _runs(CASES, _IN_OTHER_MODES))
def test_no_cut_is_a_state_before_its_topic_equals_the_table(
    outcomes: dict[tuple[str, str], Outcome], mode: str, case: str
) -> None:
    outcomes[mode, case].assert_states(case)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "case"), _runs(REFILLED, _REFILLED_IN_OTHER_MODES))
def test_a_table_that_readers_cannot_follow_is_refilled(
    outcomes: dict[tuple[str, str], Outcome], mode: str, case: str
) -> None:
    """The table is emptied and read again; neither the daemon nor other tables stop."""
    outcomes[mode, case].assert_equal(case)
    outcomes[mode, case].assert_states(case)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "case"), _runs(PUBLISHED, ()))
def test_changes_that_are_not_published(published: dict[tuple[str, str], Outcome], mode: str, case: str) -> None:
    """No cut is a state of the table until all its changes are published and it has been read again."""
    published[mode, case].assert_equal(case)
    published[mode, case].assert_states(case)
