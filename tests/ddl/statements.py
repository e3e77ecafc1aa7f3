"""Random schema changes: statements of every supported kind, drawn from a seed and the catalog.

The generator need not know all rules: statements that PostgreSQL refuses are not committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import psycopg

Statements = list[str]

SETUP = """
CREATE SCHEMA aside;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN feelings AS feeling[];
CREATE TYPE pair AS (a int, b mood);
CREATE TYPE deep AS (p pair, l feelings, n int);
CREATE TABLE plain (id int PRIMARY KEY, v text, n int, x mood);
CREATE TABLE combo (a text, b int, x pair, l feeling[], PRIMARY KEY (a, b));
CREATE TABLE keyed (k feeling, i int, d deep, PRIMARY KEY (k, i));
CREATE TABLE big (id text PRIMARY KEY, body text, v text);
ALTER TABLE big ALTER body SET STORAGE EXTERNAL;
CREATE TABLE parted (id int PRIMARY KEY, v text, x mood) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000);
CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id);
CREATE TABLE part_3 PARTITION OF part_2 FOR VALUES FROM (1000) TO (1500);
CREATE TABLE part_4 PARTITION OF part_2 FOR VALUES FROM (1500) TO (2000);
CREATE TABLE twin (id int PRIMARY KEY, v text);
CREATE TABLE twin_too (id int PRIMARY KEY, v text);
CREATE TABLE bare (a int, b text);
"""

LISTED = "plain, combo, keyed, big, parted, twin, twin_too"
"""Tables with a key that a publication with a list of tables has at the start."""

_NAMES = ("plain", "combo", "keyed", "big", "other", "old", "new")
_COLUMNS = ("c1", "c2", "c3", "v", "n", "x")
_LABELS = ("sad", "ok", "glad", "fine", "calm")
_ATTRIBUTES = {"pair": {"a": "int", "b": "mood", "c": "text"}, "deep": {"p": "pair", "l": "feelings", "n": "int"}}
_RANGES = {"part_1": (0, 1000), "part_2": (1000, 2000), "part_5": (2000, 3000), "part_6": (3000, 4000)}

_VALUES = {
    "integer": "({g})",
    "bigint": "({g})::int8 * 3",
    "text": "'t' || ({g})",
    "character varying": "'w' || ({g})",
    "real": "({g}) / 10.0",
    "double precision": "({g}) / 10.0",
    "numeric": "({g}) + 0.25",
    "date": "date '2026-01-01' + ({g})",
    "timestamp without time zone": "timestamp '2026-01-01 00:00:00.4' + ({g}) * interval '1 minute'",
    "mood": "(enum_range(NULL::mood))[1 + ({g}) %% 3]",
    "feeling": "(enum_range(NULL::mood))[1 + ({g}) %% 3]::feeling",
    "mood[]": "ARRAY[(enum_range(NULL::mood))[1 + ({g}) %% 3], NULL]",
    "feeling[]": "ARRAY[(enum_range(NULL::mood))[1 + ({g}) %% 3]]::feeling[]",
    "feelings": "ARRAY[(enum_range(NULL::mood))[1 + ({g}) %% 3]]::feelings",
    "pair": "jsonb_populate_record(NULL::pair, jsonb_build_object('a', ({g}), 'b',"
    " (enum_range(NULL::mood))[1 + ({g}) %% 3], 'c', 'c'))",
    "pair[]": "ARRAY[jsonb_populate_record(NULL::pair, jsonb_build_object('a', ({g})))]",
    "deep": "jsonb_populate_record(NULL::deep, jsonb_build_object('n', ({g}), 'l', jsonb_build_array("
    "(enum_range(NULL::mood))[1 + ({g}) %% 3]), 'p', jsonb_build_object('a', ({g}), 'b', 'ok', 'c', 'c')))",
}
_VALUES = {kind: value.replace("%%", "%") for kind, value in _VALUES.items()}
_TYPES = (
    "int", "bigint", "text", "varchar(30)", "real", "float8", "numeric(10,2)", "numeric(12,2)", "numeric(12,3)",
    "numeric", "date", "timestamp", "timestamp(0)", "mood", "feeling", "mood[]", "feeling[]", "feelings", "pair",
    "pair[]", "deep",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it; `columns` maps names to types without modifiers."""

    schema: str
    name: str
    parted: bool
    columns: dict[str, str]
    key: tuple[str, ...]

    @property
    def at(self) -> str:
        return f'"{self.schema}"."{self.name}"'

    @property
    def others(self) -> list[str]:
        """Columns outside the key."""
        return [name for name in self.columns if name not in self.key]


_CATALOG = """
SELECT n.nspname, c.relname, c.relkind = 'p',
  array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum),
  array(SELECT format_type(a.atttypid, NULL) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
  array(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (n, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
    WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.place)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('public', 'aside') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY 1, 2
"""


class Generator:
    """Draws one step after another; `kinds` are the kinds of steps, by default all.

    A step is the statements of one or several transactions.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], pick: random.Random, listed: bool, kinds: tuple[str, ...]
    ) -> None:
        self._connection = connection
        self._pick = pick
        self._listed = listed
        self._kinds = kinds
        self._n = 100

    def tables(self) -> list[Table]:
        return [
            Table(schema, name, parted, dict(zip(columns, types, strict=True)), tuple(key))
            for schema, name, parted, columns, types, key in self._connection.execute(_CATALOG)
        ]

    def fill(self) -> Statements:
        """Return statements that insert the first rows into all tables."""
        return [statement for table in self.tables() for statement in self._inserts(table, 25)]

    def alteration(self) -> Statements:
        """Return the statements of one schema change."""
        kind = self._pick.choice(self._kinds)
        return self._pick.choice(_KINDS[kind])(self)

    def changes(self, count: int) -> Statements:
        """Return statements that change rows."""
        return [statement for _ in range(count) for statement in self._change()]

    def _keyed(self) -> Table:
        return self._pick.choice([each for each in self.tables() if each.key and not each.parted])

    def _any(self) -> Table:
        return self._pick.choice([each for each in self.tables() if each.key])

    def _parted(self) -> Table | None:
        return next((each for each in self.tables() if each.parted and each.key), None)

    # changes of rows

    def _change(self) -> Statements:
        pick = self._pick
        table = pick.choice(self.tables())
        if not table.key:
            return self._inserts(table, pick.randint(1, 4))
        some = f"abs(hashtext(t::text)) % 6 = {pick.randrange(6)}"
        draws: list[Callable[[], Statements]] = [
            lambda: self._inserts(table, pick.randint(1, 6)),
            lambda: [f"DELETE FROM {table.at} t WHERE {some}"],
            lambda: [f"UPDATE {table.at} t SET {self._set(table)} WHERE {some}"],
            lambda: [f"UPDATE {table.at} t SET {self._set(table)} WHERE {some}"],
            lambda: [f"UPDATE {table.at} t SET {self._set_key(table)} WHERE {some}"],
        ]
        return pick.choice(draws)()

    def _inserts(self, table: Table, count: int) -> Statements:
        self._n += count
        first = self._n
        if table.parted:
            first = self._pick.randrange(0, 1970) if self._n < 400 or self._pick.random() < 0.8 else 2500
        chosen = [name for name in table.columns if name in table.key or self._pick.random() < 0.8]
        chosen = chosen or list(table.columns)
        values = [self._value(name, table.columns[name], "g") for name in chosen]
        columns = ", ".join(f'"{name}"' for name in chosen)
        return [
            f"INSERT INTO {table.at} ({columns}) SELECT {', '.join(values)}"
            f" FROM generate_series({first}, {first + count - 1}) g ON CONFLICT DO NOTHING"
        ]

    def _value(self, name: str, kind: str, g: str) -> str:
        if name == "body":
            return f"repeat('b' || ({g}), 900)"
        return _VALUES.get(kind, "NULL").format(g=g)

    def _set(self, table: Table) -> str:
        others = table.others
        if not others:
            return self._set_key(table)
        name = self._pick.choice(others)
        value = self._value(name, table.columns[name], str(self._pick.randrange(99)))
        if self._pick.random() < 0.2:
            value = "NULL"
        return f'"{name}" = {value}'

    def _set_key(self, table: Table) -> str:
        name = self._pick.choice(table.key)
        other = {"integer": f'"{name}" + 1000', "bigint": f'-"{name}"', "text": f"\"{name}\" || '~'"}
        return f'"{name}" = {other.get(table.columns[name], name)}'

    # names

    def _free_name(self, schema: str) -> str:
        taken = {each.name for each in self.tables() if each.schema == schema}
        return self._pick.choice([name for name in _NAMES if name not in taken] or [f"table_{len(taken)}"])

    def rename(self) -> Statements:
        table = self._any()
        name = self._free_name(table.schema)
        return [f"ALTER TABLE {table.at} RENAME TO {name}"]

    def move(self) -> Statements:
        table = self._any()
        return [f"ALTER TABLE {table.at} SET SCHEMA {'aside' if table.schema == 'public' else 'public'}"]

    def swap(self) -> Statements:
        tables = [each for each in self.tables() if each.key and each.schema == "public"]
        if len(tables) < 2:
            return self.rename()
        return _exchanged(*self._pick.sample(tables, 2))

    def swap_alike(self) -> Statements:
        """Swap two tables that differ only in their oids and rows."""
        tables = [each for each in self.tables() if each.key and not each.parted]
        pairs = [
            (one, other)
            for one, other in combinations(tables, 2)
            if (one.schema, one.columns, one.key) == (other.schema, other.columns, other.key)
        ]
        return _exchanged(*self._pick.choice(pairs)) if pairs else self.rotate()

    def _publish(self, at: str) -> Statements:
        return [f"ALTER PUBLICATION tailrace ADD TABLE {at}"] if self._listed else []

    def rotate(self) -> Statements:
        table = self._keyed()
        name = self._free_name(table.schema)
        filled = self._inserts(table, 5) if self._pick.random() < 0.5 else []
        return [
            f"ALTER TABLE {table.at} RENAME TO {name}",
            f'CREATE TABLE {table.at} (LIKE "{table.schema}".{name} INCLUDING ALL)',
            *self._publish(table.at),
            *filled,
        ]

    def recreate(self) -> Statements:
        table = self._keyed()
        shape = self._pick.choice(("(id int PRIMARY KEY, v text)", "(v text PRIMARY KEY, n int, x mood)"))
        filled = f"INSERT INTO {table.at} (v) SELECT 'n' || g FROM generate_series(1, 5) g"
        if shape.startswith("(id"):
            filled = f"INSERT INTO {table.at} (id) SELECT g FROM generate_series(1, 5) g"
        return [f"DROP TABLE {table.at}", f"CREATE TABLE {table.at} {shape}", *self._publish(table.at), filled]

    def replace(self) -> Statements:
        """Replace a table by a copy that takes its name, as online schema change tools do."""
        table = self._keyed()
        columns = ", ".join(f'"{name}"' for name in table.columns)
        return [
            f'CREATE TABLE "{table.schema}".copy (LIKE {table.at} INCLUDING ALL)',
            f'INSERT INTO "{table.schema}".copy SELECT {columns} FROM {table.at} t WHERE hashtext(t::text) % 4 <> 0',
            f"DROP TABLE {table.at}",
            f'ALTER TABLE "{table.schema}".copy RENAME TO {table.name}',
            *self._publish(table.at),
        ]

    # columns

    def add(self) -> Statements:
        table = self._any()
        free = [name for name in _COLUMNS if name not in table.columns]
        if not free:
            return self.drop()
        name, kind = self._pick.choice(free), self._pick.choice(_TYPES)
        return [f"ALTER TABLE {table.at} ADD {name} {kind}{self._default(name, kind)}"]

    def _default(self, name: str, kind: str) -> str:
        if self._pick.random() < 0.5:
            return ""
        value = self._value(name, self._plain_type(kind), str(self._pick.randrange(9)))
        return f" DEFAULT {value}"

    def _plain_type(self, kind: str) -> str:
        row = self._connection.execute("SELECT format_type(to_regtype(%s), NULL)", [kind]).fetchone()
        assert row is not None
        return str(row[0])

    def drop(self) -> Statements:
        table = self._any()
        others = [name for name in table.others if name != "body"]
        if not others:
            return self.add()
        return [f'ALTER TABLE {table.at} DROP "{self._pick.choice(others)}"']

    def drop_and_add(self) -> Statements:
        table = self._any()
        others = [name for name in table.others if name != "body"]
        if not others:
            return self.add()
        name, kind = self._pick.choice(others), self._pick.choice(_TYPES)
        return [f'ALTER TABLE {table.at} DROP "{name}", ADD "{name}" {kind}{self._default(name, kind)}']

    def rename_column(self) -> Statements:
        table = self._any()
        free = [name for name in _COLUMNS if name not in table.columns]
        if not table.others or not free:
            return self.add()
        return [f'ALTER TABLE {table.at} RENAME "{self._pick.choice(table.others)}" TO {self._pick.choice(free)}']

    def swap_columns(self) -> Statements:
        table = self._any()
        if len(table.others) < 2:
            return self.add()
        one, other = self._pick.sample(table.others, 2)
        rename = f"ALTER TABLE {table.at} RENAME"
        return [f'{rename} "{one}" TO between', f'{rename} "{other}" TO "{one}"', f'{rename} between TO "{other}"']

    def retype(self) -> Statements:
        table = self._any()
        others = [name for name in table.others if name != "body"]
        if not others:
            return self.add()
        name, kind = self._pick.choice(others), self._pick.choice(_TYPES)
        value = self._value(name, self._plain_type(kind), 'abs(hashtext("' + table.key[0] + '"::text)) % 9')
        alter = f'ALTER TABLE {table.at} ALTER "{name}"'
        return [self._pick.choice((f"{alter} TYPE {kind} USING {value}", f"{alter} TYPE {kind}"))]

    def same_type(self) -> Statements:
        table = self._any()
        texts = [name for name in table.others if table.columns[name] == "text" and name != "body"]
        if not texts:
            return self.retype()
        name = self._pick.choice(texts)
        return [f'ALTER TABLE {table.at} ALTER "{name}" TYPE text USING "{name}" || \'!\'']

    # keys

    def key_values(self) -> Statements:
        table = self._any()
        name = self._pick.choice(table.key)
        kind = table.columns[name]
        other = {"integer": f'-"{name}"', "bigint": f'"{name}" + 1', "text": f"'k' || \"{name}\""}
        if kind not in other:
            return self.rename_value()
        return [f'ALTER TABLE {table.at} ALTER "{name}" TYPE {kind} USING {other[kind]}']

    def key_type(self) -> Statements:
        table = self._any()
        name = self._pick.choice(table.key)
        other = {"integer": "bigint", "bigint": "text", "text": "varchar(60)", "feeling": "text"}
        kind = other.get(table.columns[name], "text")
        return [f'ALTER TABLE {table.at} ALTER "{name}" TYPE {kind}']

    def key_name(self) -> Statements:
        table = self._any()
        name = self._pick.choice(table.key)
        return [f'ALTER TABLE {table.at} RENAME "{name}" TO {self._pick.choice(("key", "id", "nr"))}']

    def another_key(self) -> Statements:
        table = self._keyed()
        (constraint,) = self._one(
            "SELECT conname FROM pg_constraint WHERE contype = 'p' AND conrelid = to_regclass(%s)", table.at
        )
        drop = f'ALTER TABLE {table.at} DROP CONSTRAINT "{constraint}"'
        if self._pick.random() < 0.5 and len(table.key) > 1:
            names = ", ".join(f'"{name}"' for name in reversed(table.key))
            return [f"{drop}, ADD PRIMARY KEY ({names})"]
        return [f"{drop}, ADD nr bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"]

    def identity(self) -> Statements:
        table = self._any()
        what = self._pick.choice(("FULL", "DEFAULT", "FULL"))
        return [f"ALTER TABLE {table.at} REPLICA IDENTITY {what}"]

    # types

    def rename_value(self) -> Statements:
        labels = [
            label
            for (label,) in self._connection.execute(
                "SELECT enumlabel FROM pg_enum WHERE enumtypid = 'mood'::regtype ORDER BY enumsortorder"
            )
        ]
        free = [label for label in _LABELS if label not in labels]
        label = self._pick.choice(labels)
        if free and self._pick.random() < 0.7:
            return [f"ALTER TYPE mood RENAME VALUE '{label}' TO '{self._pick.choice(free)}'"]
        other = self._pick.choice([each for each in labels if each != label])
        return [
            f"ALTER TYPE mood RENAME VALUE '{label}' TO 'x'",
            f"ALTER TYPE mood RENAME VALUE '{other}' TO '{label}'",
            f"ALTER TYPE mood RENAME VALUE 'x' TO '{other}'",
        ]

    def add_value(self) -> Statements:
        return [f"ALTER TYPE mood ADD VALUE IF NOT EXISTS '{self._pick.choice(_LABELS)}'"]

    def attribute(self) -> Statements:
        kind = self._pick.choice(("pair", "deep"))
        there = [
            name
            for (name,) in self._connection.execute(
                "SELECT attname FROM pg_attribute a JOIN pg_type t ON t.typrelid = a.attrelid"
                " WHERE t.oid = to_regtype(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [kind],
            )
        ]
        free = [name for name in _ATTRIBUTES[kind] if name not in there]
        if free and (self._pick.random() < 0.6 or len(there) < 2):
            name = self._pick.choice(free)
            return [f"ALTER TYPE {kind} ADD ATTRIBUTE {name} {_ATTRIBUTES[kind][name]}"]
        name = self._pick.choice(there)
        again = f", ADD ATTRIBUTE {name} {_ATTRIBUTES[kind].get(name, 'int')}" if self._pick.random() < 0.5 else ""
        return [f"ALTER TYPE {kind} DROP ATTRIBUTE {name}{again}"]

    # files and partitions

    def truncate(self) -> Statements:
        return [f"TRUNCATE {self._any().at}"]

    def rewrite(self) -> Statements:
        return [f"VACUUM FULL {self._any().at}"]

    def _parts(self) -> list[str]:
        return [
            name
            for (name,) in self._connection.execute(
                "SELECT relname FROM pg_class WHERE relname LIKE 'part\\_%%' AND relkind IN ('r', 'p')"
                " AND relispartition ORDER BY 1",
                [],
            )
        ]

    def attach(self) -> Statements:
        parted = self._parted()
        parts = self._parts()
        free = [name for name in _RANGES if name not in parts]
        if parted is None or not free:
            return self.truncate_part()
        name = self._pick.choice(free)
        low, high = _RANGES[name]
        attach = f"ALTER TABLE {parted.at} ATTACH PARTITION {name} FOR VALUES FROM ({low}) TO ({high})"
        if self._connection.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,):
            return [attach]
        if self._pick.random() < 0.4:
            return [f"CREATE TABLE {name} PARTITION OF {parted.at} FOR VALUES FROM ({low}) TO ({high})"]
        made = [f"CREATE TABLE {name} (LIKE {parted.at} INCLUDING ALL)"]
        if len(parted.key) == 1 and parted.columns[parted.key[0]] in ("integer", "bigint"):
            names = ", ".join(f'"{each}"' for each in parted.columns)
            kinds = parted.columns.items()
            values = ", ".join("g" if each == parted.key[0] else self._value(each, kind, "g") for each, kind in kinds)
            made.append(f"INSERT INTO {name} ({names}) SELECT {values} FROM generate_series({low}, {low + 8}) g")
        return [*made, attach]

    def detach(self) -> Statements:
        parted = self._parted()
        parts = [name for name in self._parts() if name in _RANGES]
        if parted is None or not parts:
            return self.attach()
        name = self._pick.choice(parts)
        return [f"ALTER TABLE {parted.at} DETACH PARTITION {name}"]

    def out_for_a_while(self) -> Statements:
        parted = self._parted()
        parts = [name for name in self._parts() if name in _RANGES]
        if parted is None or not parts:
            return self.attach()
        name = self._pick.choice(parts)
        low, high = _RANGES[name]
        changed = f"UPDATE {name} t SET {self._set(parted)} WHERE hashtext(t::text) % 3 = 0"
        return [
            f"ALTER TABLE {parted.at} DETACH PARTITION {name}",
            self._pick.choice((changed, f"DELETE FROM {name} t WHERE hashtext(t::text) % 3 = 0")),
            f"ALTER TABLE {parted.at} ATTACH PARTITION {name} FOR VALUES FROM ({low}) TO ({high})",
        ]

    def drop_part(self) -> Statements:
        parts = [name for name in self._parts() if name in _RANGES and name != "part_2"]
        return [f"DROP TABLE {self._pick.choice(parts)}"] if parts else self.attach()

    def truncate_part(self) -> Statements:
        parts = self._parts()
        return [f"TRUNCATE {self._pick.choice(parts)}"] if parts else self.attach()

    def rewrite_part(self) -> Statements:
        parts = self._parts()
        return [f"VACUUM FULL {self._pick.choice(parts)}"] if parts else self.attach()

    # publications

    def unpublish(self) -> Statements:
        return [f"ALTER PUBLICATION tailrace DROP TABLE {self._any().at}"] if self._listed else self.rename()

    def publish_again(self) -> Statements:
        if not self._listed:
            return self.add()
        table = self._any()
        add = f"ALTER PUBLICATION tailrace ADD TABLE {table.at}"
        some = [name for name in table.columns if name in table.key or self._pick.random() < 0.7]
        columns = ", ".join(f'"{name}"' for name in some)
        what = self._pick.choice(("", "", f" ({columns})", f' WHERE ("{table.key[0]}" IS NOT NULL)'))
        if self._pick.random() < 0.5:
            return [f"ALTER PUBLICATION tailrace DROP TABLE {table.at}", f"{add}{what}"]
        return [f"{add}{what}"]

    def publish_less_for_a_while(self) -> Statements:
        """Leave out some kinds of change, or the names of partitioned tables, and alter tables meanwhile."""
        kinds = ("insert", "update", "delete", "truncate")
        some = [each for each in kinds if self._pick.random() < 0.4]
        narrow, wide = f"publish = '{', '.join(some)}'", f"publish = '{', '.join(kinds)}'"
        if self._pick.random() < 0.25:
            narrow, wide = "publish_via_partition_root = false", "publish_via_partition_root = true"
        changes = [*self.changes(2), *(self.truncate() if self._pick.random() < 0.3 else [])]
        return [f"ALTER PUBLICATION tailrace SET ({narrow})", *changes, f"ALTER PUBLICATION tailrace SET ({wide})"]

    def _one(self, query: str, *arguments: object) -> tuple[Any, ...]:
        row = self._connection.execute(query.encode(), arguments).fetchone()
        return ("none",) if row is None else row


def _exchanged(one: Table, other: Table) -> Statements:
    return [
        f"ALTER TABLE {one.at} RENAME TO between",
        f"ALTER TABLE {other.at} RENAME TO {one.name}",
        f'ALTER TABLE "{one.schema}".between RENAME TO {other.name}',
    ]


_KINDS: dict[str, tuple[Callable[[Generator], Statements], ...]] = {
    "names": (
        Generator.rename, Generator.rename, Generator.move, Generator.swap, Generator.rotate, Generator.recreate,
        Generator.replace,
    ),
    "twins": (Generator.swap_alike,),
    "columns": (
        Generator.add, Generator.add, Generator.drop, Generator.drop_and_add, Generator.rename_column,
        Generator.swap_columns, Generator.retype, Generator.retype, Generator.same_type,
    ),
    "keys": (
        Generator.key_values, Generator.key_values, Generator.key_type, Generator.key_name, Generator.another_key,
        Generator.identity,
    ),
    "types": (Generator.rename_value, Generator.add_value, Generator.attribute, Generator.attribute),
    "files": (Generator.truncate, Generator.rewrite),
    "partitions": (
        Generator.attach, Generator.attach, Generator.detach, Generator.out_for_a_while, Generator.drop_part,
        Generator.truncate_part, Generator.rewrite_part,
    ),
    "publications": (
        Generator.unpublish, Generator.publish_again, Generator.publish_again, Generator.publish_less_for_a_while,
    ),
}  # fmt: skip

KINDS = tuple(_KINDS)


def truncates(statement: str) -> str | None:
    """Return the partition that a statement truncates."""
    return statement.split()[-1] if statement.startswith("TRUNCATE part_") else None


def leaves(statement: str) -> str | None:
    """Return the partition whose rows a statement may leave on the topic of its table."""
    words = statement.split()
    if "DETACH" in words:
        return words[-1]
    if statement.startswith("DROP TABLE part_"):
        return words[-1]
    return None
