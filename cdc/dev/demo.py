"""The demo load: changes to a shop. `python -m tailrace.cdc.dev.demo load --dsn ... --rate 200`.

It runs until it is asked to stop. Its changes are chosen to be difficult for a change stream: transactions over several
tables, key changes, deletes, rows whose large column is not updated, rollbacks.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import psycopg

from tailrace.cdc.dev.shop import LONG_TEXT, create_shop

_CUSTOMER = "(SELECT id FROM customers WHERE id >= %(random)s ORDER BY id LIMIT 1)"
_ORDER = "(SELECT id FROM orders WHERE id >= %(order)s ORDER BY id LIMIT 1)"
_PRODUCT = "(SELECT id FROM products WHERE id >= %(random)s %% 2000 + 1 ORDER BY id LIMIT 1)"

# An order's rows in three tables: the kind of transaction that must not be torn. (A bare currval is volatile
# and would be evaluated for every row of a scan.)
_NEW_ORDER = (
    f"INSERT INTO orders (customer_id, note) SELECT {_CUSTOMER}, 'demo'",
    "INSERT INTO order_items SELECT currval('orders_id_seq'), l, p.id, 1 + l %% 3, p.price"
    " FROM generate_series(1, 1 + %(random)s %% 4) AS l"
    " JOIN products AS p ON p.id = 1 + (%(random)s + l * 97) %% 2000",
    "UPDATE orders SET total = (SELECT sum(quantity * price) FROM order_items WHERE order_id = orders.id)"
    " WHERE id = (SELECT currval('orders_id_seq'))",
    "UPDATE customers SET credit = credit - 1 WHERE id ="
    " (SELECT customer_id FROM orders WHERE id = (SELECT currval('orders_id_seq')))",
)
_ADVANCE_ORDER = (
    "UPDATE orders SET status = (enum_range(NULL::order_status))[1 + %(random)s %% 5], shipped_at = now()"
    f" WHERE id = {_ORDER}",
    f"UPDATE order_items SET quantity = quantity %% 9 + 1 WHERE order_id = {_ORDER}",
)
# The description, often 9 kB out of line, is not updated: pgoutput leaves it out.
_NEW_PRICE = (
    "UPDATE products SET price = price %% 900 + 0.01, updated_at = now(),"
    " attributes = jsonb_set(attributes, '{stock}', to_jsonb(%(random)s %% 50))"
    f" WHERE id = {_PRODUCT}",
)
_NEW_DESCRIPTION = (
    f"UPDATE products SET description = {LONG_TEXT.format(salt='later', seed='%(random)s')},"
    f" labels = labels[1:4] || ('v' || %(random)s %% 10) WHERE id = {_PRODUCT}",
)
_NEW_CUSTOMER = (
    "INSERT INTO customers (email, name, country, preferences) VALUES (gen_random_uuid() || '@example.org',"
    " 'Nia Nováková', 'IS', '{\"newsletter\": true}')",
    "UPDATE customers SET credit = credit + 5 WHERE id = (SELECT currval('customers_id_seq'))",
)
# New keys: of an order, which changes those of its items (ON UPDATE CASCADE), and of one line.
_NEW_KEYS = (
    f"UPDATE orders SET id = nextval('orders_id_seq') WHERE id = {_ORDER}",
    "UPDATE order_items SET line = (SELECT max(line) + 1 FROM order_items AS i"
    " WHERE i.order_id = order_items.order_id) WHERE (order_id, line) ="
    f" (SELECT order_id, line FROM order_items WHERE order_id = {_ORDER} ORDER BY line LIMIT 1)",
)
# Items first, explicitly: a cascade would delete as many rows, but not count them.
_DELETE_ORDER = (
    f"DELETE FROM order_items WHERE order_id = {_ORDER}",
    f"DELETE FROM orders WHERE id = {_ORDER}",
)
_DELETE_CUSTOMER = (
    "DELETE FROM customers WHERE id = (SELECT c.id FROM customers AS c WHERE c.id >= %(random)s AND NOT"
    " EXISTS (SELECT FROM orders AS o WHERE o.customer_id = c.id) ORDER BY c.id LIMIT 1)",
)

# As many deletes as inserts of orders, so that the shop does not grow.
_WEIGHTS = {
    _NEW_ORDER: 25,
    _ADVANCE_ORDER: 25,
    _NEW_PRICE: 10,
    _NEW_DESCRIPTION: 2,
    _NEW_CUSTOMER: 4,
    _NEW_KEYS: 5,
    _DELETE_ORDER: 25,
    _DELETE_CUSTOMER: 4,
}
_ROLLED_BACK = 0.05


def load(dsn: str, rate: float, stop: threading.Event, *, seed: int | None = None) -> int:
    """Change the shop at about `rate` rows per second until `stop` is set; return the committed rows.

    A lost connection is retried without limit; changes missed meanwhile are not made up for.
    """
    chance = random.Random(seed)
    committed = 0
    pause = 0.1
    while not stop.is_set():
        try:
            with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
                pause = 0.1
                while not stop.is_set() and not connection.closed:
                    committed += _second(connection, rate, chance, stop)
        except psycopg.OperationalError as error:
            print(f"demo load: {str(error).strip()}; retrying", file=sys.stderr, flush=True)
            stop.wait(pause)
            pause = min(2 * pause, 2.0)
    return committed


def _second(connection: psycopg.Connection, rate: float, chance: random.Random, stop: threading.Event) -> int:
    """Make about one second's changes, evenly spread; a late start does not cause a burst."""
    began, done = time.monotonic(), 0
    while done < rate and not stop.is_set():
        done += transaction(connection, chance)
        stop.wait(max(0.0, began + done / rate - time.monotonic()))
    return done


def transaction(connection: psycopg.Connection, chance: random.Random) -> int:
    """Run one transaction; return the number of rows it has changed, 0 if it was rolled back."""
    statements = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    back = chance.random() < _ROLLED_BACK
    newest = connection.execute("SELECT last_value FROM orders_id_seq").fetchone()
    values = {"random": chance.randint(1, 10_000), "order": chance.randint(1, newest[0] if newest else 1)}
    changed = 0
    try:
        with connection.transaction(force_rollback=back):
            for statement in statements:
                changed += connection.execute(statement.encode(), values).rowcount
    except (psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected):
        # Two loads that run at once have conflicted.
        return 0
    return 0 if back else changed


def main(arguments: list[str] | None = None) -> int:
    """Run `demo create` or `demo load` from the command line; SIGTERM and SIGINT end the load."""
    parser = argparse.ArgumentParser(prog="python -m tailrace.cdc.dev.demo")
    parser.add_argument("command", choices=["create", "load"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--rate", type=float, default=200, help="changed rows a second (200)")
    given = parser.parse_args(arguments)
    if given.rate <= 0:
        parser.error("--rate must be above 0")
    if given.command == "create":
        print(create_shop(given.dsn))
        return 0
    stop = threading.Event()
    ask: Callable[..., None] = lambda *_: stop.set()  # noqa: E731
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    print(f"demo load: {load(given.dsn, given.rate, stop)} rows changed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
