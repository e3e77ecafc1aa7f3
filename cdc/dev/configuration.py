"""The demo's `tailrace.toml`: written once, then only its addresses are updated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.cdc.dev.shop import TABLES
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.schemas.config.file import FILE_NAME, load
from tailrace.schemas.errors import ConfigError

_FIRST_LINE: Final = "# Written by `tailrace dev up` for its demo shop."
_SEARCHED: Final = ("products", "orders")

_HEAD: Final = (
    _FIRST_LINE
    + """
# Every key and its default: tailrace config show. For editors: tailrace config schema.
# ${VAR} and ${VAR:-default} are expanded in strings; TAILRACE__SECTION__KEY in the environment overrides a key.

[source]
dsn = "DSN"
slot = "tailrace"           # created on the first run, never dropped automatically
publication = "tailrace"    # created on the first run, for the tables below
tables = ["public.*"]       # "!public.audit_*" excludes
toast_cache_dir = "FOLDER/toast"    # large values, for the updates that leave them out of the WAL

[kafka]
bootstrap = "BOOTSTRAP"
prefix = "shop"             # topics are shop.public.orders, ...
partitions = 2              # of a new table's topic
replication_factor = 1

[health]
page = true                 # the status page

[warehouse]                 # Iceberg tables; this catalog is for one host
uri = "jdbc:sqlite:FOLDER/warehouse/catalog.db"
location = "FOLDER/warehouse"

[spark.conf]                # quick to start, on two cores; remove it for real loads
"spark.driver.extraJavaOptions" = "JAVA_OPTIONS"
"""
)
_SEARCH: Final = """
[search]                    # OpenSearch
hosts = ["SEARCH"]
"""
_VIEWS: Final = """
# A view is a table, or a query in Spark SQL with a key, maintained in the warehouse or (target = "search") as an index.
"""
_QUERIES: Final = """
[views.spending]            # an aggregate of a join: a change recomputes the rows of its customers only
query = '''
SELECT c.id, c.name, c.country, count(*) AS orders, sum(o.total) AS total
FROM public.customers AS c JOIN public.orders AS o ON o.customer_id = c.id
GROUP BY c.id, c.name, c.country
'''
key = ["id"]

[views.sales_by_hour]       # a window on the time in the row, not on that of its arrival
query = '''
SELECT window.start AS hour, count(*) AS orders, sum(total) AS total
FROM public.orders GROUP BY window(placed_at, '1 hour')
'''
key = ["hour"]

[views.price_history]       # each version of a product, with valid_from and valid_to
table = "public.products"
shape = "history"

[views.items_then]          # an as-of join: each item with the price of its product when the order was placed
query = '''
SELECT i.order_id, i.line, i.quantity, p.price AS price_then
FROM public.order_items AS i JOIN public.orders AS o ON o.id = i.order_id
JOIN price_history AS p ASOF o.placed_at ON p.id = i.product_id
'''
key = ["order_id", "line"]
asof_before = "first"
"""
_DOCUMENTS: Final = """
[views.order_documents]     # a document for each order, with its customer and a list of its items
query = '''
SELECT o.id, o.status, o.total, o.placed_at, c.name AS customer,
       sort_array(collect_list(struct(i.line, p.name AS product, i.quantity, i.price))) AS items
FROM public.orders AS o JOIN public.customers AS c ON c.id = o.customer_id
JOIN public.order_items AS i ON i.order_id = o.id JOIN public.products AS p ON p.id = i.product_id
GROUP BY o.id, o.status, o.total, o.placed_at, c.name
'''
key = ["id"]
target = "search"

[views.alerts]              # reverse search: the stored queries that each changed order matches, on a topic
table = "public.orders"
shape = "percolate"
queries = "public.searches.query"
"""


def demo_configuration(servers: Servers, state_dir: Path, folder: Path) -> tuple[Path, str]:
    """Return the configuration file of the demo and a message about it.

    It is `tailrace.toml` in `folder`: written if missing, its addresses corrected if it is ours. A file for other
    servers belongs to the user: it is not changed, and the demo's file goes into the state folder.
    """
    file = folder / FILE_NAME
    own = state_dir.absolute() / FILE_NAME
    if not file.exists():
        file.write_text(_text(servers, state_dir.absolute()), encoding="utf-8")
        return file, f"wrote {file}"
    text = file.read_text(encoding="utf-8", errors="replace")
    if text.startswith(_FIRST_LINE):
        corrected = _with_addresses(text, servers)
        if corrected != text:
            file.write_text(corrected, encoding="utf-8")
            return file, f"corrected the addresses in {file}"
        return file, f"using {file}"
    if _is_about(file, servers):
        return file, f"using {file}"
    own.write_text(_text(servers, state_dir.absolute()), encoding="utf-8")
    return own, f"{file} does not belong to the demo and is unchanged; for the demo, use --config {own}"


def _text(servers: Servers, folder: Path) -> str:
    parts = [_HEAD]
    views = [("{table}", table, "") for table in TABLES]
    if servers.opensearch is not None:
        parts.append(_SEARCH)
        views += [("{table}_search", table, 'target = "search"\n') for table in _SEARCHED]
    parts.append(_VIEWS)
    for name, table, more in views:
        parts.append(f'[views.{name.format(table=table)}]\ntable = "public.{table}"\n{more}\n')
    parts.append(_QUERIES.lstrip("\n"))
    if servers.opensearch is not None:
        parts.append(_DOCUMENTS)
    return (
        _with_addresses("".join(parts).rstrip() + "\n", servers)
        .replace("JAVA_OPTIONS", SMALL_SPARK)
        .replace("FOLDER", str(folder))
    )


def _with_addresses(text: str, servers: Servers) -> str:
    text = re.sub(r'^dsn = ".*?"', lambda _: f'dsn = "{servers.dsn}"', text, count=1, flags=re.M)
    text = re.sub(r'^bootstrap = ".*?"', lambda _: f'bootstrap = "{servers.bootstrap}"', text, count=1, flags=re.M)
    if servers.opensearch is not None:
        hosts = f'hosts = ["{servers.opensearch}"]'
        text = re.sub(r"^hosts = \[.*?\]", lambda _: hosts, text, count=1, flags=re.M)
    return text


def _is_about(file: Path, servers: Servers) -> bool:
    try:
        config = load(file)
    except ConfigError:
        return False
    dsns = (servers.dsn, servers.socket_dsn)
    return config.source.dsn.get_secret_value() in dsns and config.kafka.bootstrap == servers.bootstrap
