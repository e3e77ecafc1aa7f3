"""Four small tables with random changes, and queries over them, for views whose rows are known.

There are few different values, so that rows join, groups become empty, bounds are crossed, and NULLs are everywhere
they may be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tailrace.spark_jobs.query.catalog import Catalog, TableInfo

Row = dict[str, Any]
Key = tuple[Any, ...]

COLUMNS: dict[str, dict[str, str]] = {
    "customer": {"id": "int4", "country": "text", "segment": "int4", "boss": "int4"},
    "orders": {"id": "int4", "customer_id": "int4", "status": "text", "amount": "int4", "at": "timestamp"},
    "item": {"order_id": "int4", "line": "int4", "product_id": "int4", "qty": "int4"},
    "product": {"id": "int4", "category": "text", "price": "int4"},
}
KEYS: dict[str, tuple[str, ...]] = {
    "customer": ("id",),
    "orders": ("id",),
    "item": ("order_id", "line"),
    "product": ("id",),
}
CATALOG: Catalog = {f"public.{name}": TableInfo(tuple(columns), KEYS[name]) for name, columns in COLUMNS.items()}

_MINUTE = 60_000_000


@dataclass
class ShopModel:
    """The tables' rows by key; `change` draws a batch of changes and applies it."""

    seed: int
    tables: dict[str, dict[Key, Row]] = field(default_factory=lambda: {name: {} for name in COLUMNS})

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def fill(self, rows: int = 12) -> list[tuple[str, str, Any]]:
        return [change for _ in range(rows) for name in COLUMNS for change in self._put(name)]

    def change(self, most: int = 6) -> list[tuple[str, str, Any]]:
        """Apply changes; return them in order: ("put", table, row), ("delete", table, key) or a truncate."""
        pick = self._random
        done: list[tuple[str, str, Any]] = []
        names = pick.sample(list(COLUMNS), pick.randint(1, 3))
        if pick.random() < 0.03:
            return [self.truncate(names[0]), *self.fill(3)]
        for _ in range(pick.randint(1, most)):
            done += self._one(pick.choice(names))
        return done

    def _one(self, name: str) -> Iterator[tuple[str, str, Any]]:
        pick, rows = self._random, self.tables[name]
        kind = pick.random()
        if rows and kind < 0.3:
            yield self.delete(name, pick.choice(sorted(rows)))
        elif rows and kind < 0.65:
            row = dict(rows[pick.choice(sorted(rows))])
            changed = pick.choice([column for column in row if column not in KEYS[name]])
            yield self.put(name, row | {changed: self._value(name, changed)})
        elif rows and kind < 0.75:
            key = pick.choice(sorted(rows))
            row = rows[key] | {part: self._value(name, part) for part in KEYS[name]}
            yield self.delete(name, key)
            yield self.put(name, row)
        else:
            yield from self._put(name)

    def _put(self, name: str) -> Iterator[tuple[str, str, Any]]:
        yield self.put(name, {column: self._value(name, column) for column in COLUMNS[name]})

    def put(self, name: str, row: Row) -> tuple[str, str, Any]:
        self.tables[name][tuple(row[part] for part in KEYS[name])] = row
        return "put", name, row

    def delete(self, name: str, key: Key) -> tuple[str, str, Any]:
        del self.tables[name][key]
        return "delete", name, key

    def truncate(self, name: str) -> tuple[str, str, Any]:
        self.tables[name].clear()
        return "truncate", name, None

    def _value(self, table: str, column: str) -> Any:
        pick = self._random
        if column not in KEYS[table] and pick.random() < 0.15:
            return None
        if column in ("id", "order_id", "customer_id", "product_id", "boss"):
            return pick.randint(1, 9)
        if column in ("country", "status", "category"):
            return pick.choice("abc")
        if column == "at":
            return 1_700_000_000_000_000 + pick.randint(0, 60) * 7 * _MINUTE // 3
        return pick.randint(1, 4) * (10 if column in ("amount", "price") else 1)


@dataclass(frozen=True)
class Example:
    """A view; `spark_only`: it uses functions that only Spark has."""

    key: tuple[str, ...]
    sql: str
    spark_only: bool = False


EXAMPLES: dict[str, Example] = {
    "filter": Example(("id",), "SELECT id, amount + 1 AS more FROM public.orders WHERE status = 'a'"),
    "inner": Example(
        ("id",),
        "SELECT o.id, c.country, CAST(o.amount AS SMALLINT) AS amount FROM public.orders o JOIN public.customer c"
        " ON c.id = o.customer_id",
    ),
    "left": Example(
        ("id",),
        "SELECT o.id, c.country, CAST(c.id AS SMALLINT) AS c_id FROM public.orders o LEFT JOIN public.customer c"
        " ON o.customer_id = c.id AND c.segment > 1",
    ),
    "right": Example(
        ("id",),
        "SELECT c.id, o.id AS o_id FROM public.orders o RIGHT JOIN public.customer c ON o.id = c.id",
    ),
    "without": Example(
        ("id",),
        "SELECT c.id, c.country FROM public.customer c LEFT JOIN public.orders o ON o.customer_id = c.id"
        " WHERE o.id IS NULL",
    ),
    "two_keys": Example(
        ("c_id", "o_id"),
        "SELECT c.id AS c_id, o.id AS o_id, o.amount FROM public.customer c"
        " LEFT JOIN public.orders o ON o.customer_id = c.id",
    ),
    "three": Example(
        ("order_id", "line"),
        "SELECT i.order_id, i.line, p.category, c.country, i.qty * p.price AS total FROM public.item i"
        " JOIN public.orders o ON o.id = i.order_id JOIN public.product p ON p.id = i.product_id"
        " LEFT JOIN public.customer c ON c.id = o.customer_id WHERE p.price > 10 OR c.country = 'a'",
    ),
    "chain": Example(
        ("id",),
        "SELECT o.id, c.country, b.country AS boss_country FROM public.orders o"
        " LEFT JOIN public.customer c ON c.id = o.customer_id LEFT JOIN public.customer b ON b.id = c.boss",
    ),
    "self": Example(
        ("id", "other"),
        "SELECT a.id, b.id AS other FROM public.customer a JOIN public.customer b ON a.boss = b.boss AND a.id < b.id",
    ),
    "crossed": Example(
        ("c", "p"),
        "SELECT c.id AS c, p.id AS p FROM public.customer c, public.product p WHERE c.segment * 10 < p.price",
    ),
    "group": Example(
        ("customer_id",),
        "SELECT customer_id, count(*) AS n, sum(amount) AS total, min(at) AS first_at FROM public.orders"
        " GROUP BY customer_id",
    ),
    "having": Example(
        ("country",),
        "SELECT c.country, sum(o.amount) AS total FROM public.orders o JOIN public.customer c ON c.id = o.customer_id"
        " GROUP BY c.country HAVING sum(o.amount) > 40",
    ),
    "sums": Example(
        ("country", "bucket"),
        "SELECT c.country, coalesce(o.amount, 0) % 3 AS bucket, count(*) AS n, count(o.amount) + 1 AS some,"
        " sum(i.qty * o.amount) AS total, sum(i.qty) FILTER (WHERE o.status = 'a') AS of_a,"
        " count(*) FILTER (WHERE i.line > 4) * 10 AS later, coalesce(sum(c.segment), 0) - length(c.country) AS segments"
        " FROM public.item i JOIN public.orders o ON o.id = i.order_id JOIN public.customer c ON c.id = o.customer_id"
        " WHERE o.status <> 'c' GROUP BY c.country, coalesce(o.amount, 0) % 3"
        " HAVING count(*) > 1 AND coalesce(sum(i.qty), 0) <> 3",
    ),
    "sums_of_pairs": Example(
        ("boss",),
        "SELECT a.boss, count(b.segment) AS n, sum(b.segment) AS total FROM public.customer a JOIN public.customer b"
        " ON a.boss = b.boss AND a.id <= b.id GROUP BY a.boss",
    ),
    "group_null_side": Example(
        ("country",),
        "SELECT c.country, count(*) AS n, count(c.id) AS known FROM public.orders o"
        " LEFT JOIN public.customer c ON c.id = o.customer_id GROUP BY c.country",
    ),
    "group_two_sides": Example(
        ("category", "country"),
        "SELECT p.category, c.country, sum(i.qty) AS n FROM public.item i LEFT JOIN public.product p"
        " ON p.id = i.product_id LEFT JOIN public.orders o ON o.id = i.order_id"
        " LEFT JOIN public.customer c ON c.id = o.customer_id GROUP BY p.category, c.country",
    ),
    "group_expression": Example(
        ("bucket",),
        "SELECT coalesce(amount, 0) % 3 AS bucket, count(DISTINCT customer_id) AS n FROM public.orders GROUP BY 1",
    ),
    "one_to_many": Example(
        ("id",),
        "SELECT c.id, count(o.id) AS n, sum(o.amount) AS total FROM public.customer c"
        " LEFT JOIN public.orders o ON o.customer_id = c.id AND o.status <> 'c' GROUP BY c.id",
    ),
    "distinct": Example(
        ("country", "status"),
        "SELECT DISTINCT c.country, o.status FROM public.orders o LEFT JOIN public.customer c ON c.id = o.customer_id",
    ),
    "union_all": Example(
        ("kind", "id"),
        "SELECT 'c' AS kind, c.id, c.country AS what FROM public.customer c UNION ALL"
        " SELECT 'o', o.id, o.status FROM public.orders o JOIN public.customer d ON d.id = o.customer_id",
    ),
    "union": Example(("word",), "SELECT country AS word FROM public.customer UNION SELECT status FROM public.orders"),
    "cte": Example(
        ("id",),
        "WITH spent AS (SELECT customer_id, sum(amount) AS total FROM public.orders GROUP BY customer_id"
        " HAVING count(*) > 1) SELECT c.id, c.segment, s.total FROM public.customer c JOIN spent s"
        " ON s.customer_id = c.id WHERE s.total > 30",
    ),
    "cte_twice": Example(
        ("id",),
        "WITH n AS (SELECT customer_id, count(*) AS n FROM public.orders GROUP BY customer_id)"
        " SELECT c.id, m.n AS mine, b.n AS of_boss FROM public.customer c LEFT JOIN n m ON m.customer_id = c.id"
        " LEFT JOIN n b ON b.customer_id = c.boss",
    ),
    "nested_groups": Example(
        ("n",),
        "SELECT t.n, count(*) AS customers FROM (SELECT c.id, count(o.id) AS n FROM public.customer c"
        " LEFT JOIN public.orders o ON o.customer_id = c.id GROUP BY c.id) t GROUP BY t.n",
    ),
    "grouped_by_subquery": Example(
        ("n",),
        "SELECT t.n, count(*) AS groups FROM (SELECT c.country, count(*) AS n FROM public.customer c"
        " GROUP BY c.country, c.segment > (SELECT min(p.price) / 20 FROM public.product p)) t GROUP BY t.n",
    ),
    "having_in": Example(
        ("country",),
        # Spark's IN outside of a condition is false where it is unknown.
        "SELECT c.country, count(*) AS n,"
        " coalesce(sum(c.segment) * 10 IN (SELECT p.price FROM public.product p), false) AS priced"
        " FROM public.customer c GROUP BY c.country HAVING count(*) NOT IN (SELECT i.qty FROM public.item i"
        " WHERE i.line = 1)",
    ),
    "nested_rows": Example(
        ("id",),
        "SELECT c.id, t.status, t.price FROM public.customer c LEFT JOIN (SELECT o.id, o.status, p.price"
        " FROM public.orders o LEFT JOIN public.product p ON p.id = o.id) t ON t.id = c.id",
    ),
    "nested_union": Example(
        ("word",),
        "SELECT u.word, count(*) AS n FROM (SELECT id, country AS word FROM public.customer"
        " UNION ALL SELECT id, category FROM public.product) u GROUP BY u.word",
    ),
    "in": Example(
        ("id",),
        "SELECT o.id, o.amount FROM public.orders o WHERE o.customer_id IN"
        " (SELECT c.id FROM public.customer c WHERE c.country = 'a')",
    ),
    "not_in": Example(
        ("id",),
        "SELECT o.id, o.amount FROM public.orders o WHERE o.customer_id NOT IN"
        " (SELECT c.boss FROM public.customer c WHERE c.country = 'a')",
    ),
    "in_grouped": Example(
        ("id",),
        "SELECT c.id FROM public.customer c WHERE c.id IN (SELECT o.customer_id FROM public.orders o"
        " GROUP BY o.customer_id HAVING count(*) > 1) OR c.segment = 1",
    ),
    "exists": Example(
        ("id",),
        "SELECT c.id, c.country FROM public.customer c WHERE EXISTS (SELECT 1 FROM public.orders o"
        " JOIN public.item i ON i.order_id = o.id WHERE o.customer_id = c.id AND i.qty > 2"
        " AND (SELECT count(p.price) < 9 FROM public.product p))",
    ),
    "not_exists": Example(
        ("country",),
        "SELECT c.country, count(*) AS n FROM public.customer c WHERE NOT EXISTS (SELECT 1 FROM public.orders o"
        " WHERE o.customer_id = c.id AND o.amount > c.segment * 10) GROUP BY c.country",
    ),
    "scalar": Example(
        ("id",),
        "SELECT c.id, (SELECT max(o.amount) FROM public.orders o WHERE o.customer_id = c.id) AS most"
        " FROM public.customer c",
    ),
    "semi": Example(
        ("id",),
        "SELECT c.id, c.country FROM public.customer c LEFT SEMI JOIN public.orders o ON o.customer_id = c.id"
        " AND o.amount > 20",
    ),
    "anti": Example(
        ("id",),
        "SELECT p.id, p.category FROM public.product p LEFT ANTI JOIN public.item i ON i.product_id = p.id",
    ),
    "number": Example(
        ("customer_id", "id"),
        "SELECT o.customer_id, o.id, row_number() OVER (PARTITION BY o.customer_id ORDER BY o.amount, o.id) AS n"
        " FROM public.orders o",
    ),
    "number_wider": Example(
        ("id",),
        "SELECT o.id, c.country, rank() OVER (PARTITION BY c.country ORDER BY o.amount) AS place,"
        " sum(o.amount) OVER (PARTITION BY o.status, c.country) AS together FROM public.orders o"
        " LEFT JOIN public.customer c ON c.id = o.customer_id",
    ),
    "newest": Example(
        ("customer_id",),
        "SELECT t.customer_id, t.id, t.amount FROM (SELECT o.*, row_number() OVER (PARTITION BY o.customer_id"
        " ORDER BY o.at DESC, o.id) AS place FROM public.orders o) t WHERE t.place = 1",
    ),
    "null_side": Example(
        ("id",),
        # an order without a customer has a NULL to look up that no customer has
        "SELECT o.id, count(d.id) AS n FROM public.orders o LEFT JOIN public.customer c ON c.id = o.customer_id"
        " LEFT JOIN public.customer d ON d.boss IS NOT DISTINCT FROM c.boss GROUP BY o.id",
    ),
    "placed": Example(
        ("id",),
        # a change of a customer must not restrict the orders that are numbered
        "SELECT t.id, c.country, t.place FROM public.customer c JOIN (SELECT o.id, o.customer_id, row_number() OVER"
        " (PARTITION BY o.status ORDER BY o.amount, o.id) AS place FROM public.orders o) t ON t.customer_id = c.id",
    ),
    "qualify": Example(
        ("country",),
        "SELECT c.country, o.id, o.amount FROM public.orders o JOIN public.customer c ON c.id = o.customer_id"
        " QUALIFY row_number() OVER (PARTITION BY c.country ORDER BY o.amount DESC, o.id) = 1",
    ),
    "window_over_groups": Example(
        ("country", "status"),
        "SELECT c.country, o.status, count(*) AS n, sum(count(*)) OVER (PARTITION BY c.country) AS all_of_country"
        " FROM public.orders o JOIN public.customer c ON c.id = o.customer_id GROUP BY c.country, o.status",
    ),
    "null_safe": Example(
        ("a", "b"),
        "SELECT a.id AS a, b.id AS b FROM public.customer a JOIN public.customer b ON a.boss <=> b.boss"
        " AND a.country <=> b.country",
    ),
    "left_then_inner": Example(
        ("id",),
        "SELECT o.id, c.segment, p.price FROM public.orders o LEFT JOIN public.customer c ON c.id = o.customer_id"
        " JOIN public.product p ON p.id = coalesce(c.segment, 4)",
    ),
    "timeline": Example(
        ("reader", "post"),
        "SELECT f.id AS reader, o.id AS post, o.at FROM public.customer f JOIN public.orders o"
        " ON o.customer_id = f.boss QUALIFY row_number() OVER (PARTITION BY f.id ORDER BY o.at DESC, o.id DESC) <= 3",
    ),
    "constant": Example(
        ("id",),
        "SELECT i.order_id AS id, i.qty, o.status FROM public.item i LEFT JOIN public.orders o"
        " ON o.id = i.order_id WHERE i.line = 1",
    ),
    "tumbling": Example(
        ("start", "status"),
        "SELECT window.start AS start, status, count(*) AS n, sum(amount) AS total FROM public.orders"
        " GROUP BY window(at, '20 minutes'), status",
        spark_only=True,
    ),
    "hopping": Example(
        ("start", "country"),
        "SELECT window(o.at, '30 minutes', '10 minutes').start AS start, c.country, count(*) AS n FROM public.orders o"
        " LEFT JOIN public.customer c ON c.id = o.customer_id WHERE o.amount > 10"
        " GROUP BY window(o.at, '30 minutes', '10 minutes'), c.country HAVING count(*) > 1",
        spark_only=True,
    ),
    "session": Example(
        ("customer_id", "start"),
        "SELECT customer_id, session_window.start AS start, session_window.end AS until, count(*) AS n"
        " FROM public.orders GROUP BY customer_id, session_window(at, '15 minutes')",
        spark_only=True,
    ),
    "document": Example(
        ("id",),
        "SELECT c.id, c.country, sort_array(collect_list(struct(o.at, o.id AS order_id, o.amount))"
        " FILTER (WHERE o.id IS NOT NULL)) AS orders FROM public.customer c"
        " LEFT JOIN public.orders o ON o.customer_id = c.id GROUP BY c.id, c.country",
        spark_only=True,
    ),
}
