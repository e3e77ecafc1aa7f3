"""Check that the warehouse's catalog and folder are usable, and open the catalog with pyiceberg.

The checks create nothing. `spark_jobs.jobs.command` checks what depends on the JVM: its drivers and file systems.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.config.secret import without_secrets
from tailrace.schemas.errors import ConfigError, SinkError, TailraceError
from tailrace.schemas.reasons import reason

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_PORTS: Final = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "http": 80, "https": 443}
_ANSWER_S: Final = 5.0
_FOR_LIBPQ: Final = frozenset(
    ("user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "options")
)
"""Parameters of a JDBC URI that libpq also accepts."""


def properties(warehouse: Warehouse) -> dict[str, str]:
    """Return pyiceberg's properties for the catalog."""
    if warehouse.uri.startswith("http"):
        return {"type": "rest", "uri": warehouse.uri, "warehouse": warehouse.location}
    uri = warehouse.uri.removeprefix("jdbc:")
    if (file := warehouse.sqlite_file) is not None:
        uri = f"sqlite:///{file}"
    elif uri.startswith("postgresql:"):
        base, _, given = uri.removeprefix("postgresql:").partition("?")
        known = urlencode([(name, value) for name, value in parse_qsl(given) if name in _FOR_LIBPQ])
        uri = f"postgresql+psycopg:{base}" + (f"?{known}" if known else "")
    return {"type": "sql", "uri": uri, "warehouse": warehouse.location}


@contextmanager
def opened(warehouse: Warehouse) -> Iterator[Catalog]:
    """Open the catalog for reading; other errors in the block become a SinkError (TR-513) with the cause."""
    from pyiceberg.catalog import load_catalog

    try:
        check_catalog(warehouse)
        yield load_catalog(warehouse.catalog, **properties(warehouse))
    except TailraceError:
        raise
    except Exception as error:
        raise unusable(warehouse, reason(error)) from None


def check(warehouse: Warehouse) -> None:
    """Raise SinkError (TR-513) if catalog or location is unusable, ConfigError if there is no location."""
    check_catalog(warehouse)
    _check_location(warehouse.location)


def check_catalog(warehouse: Warehouse) -> None:
    """Raise SinkError (TR-513) if the catalog's file is not writable or its server refuses connections."""
    file = warehouse.sqlite_file
    if file is not None:
        if problem := _sqlite_problem(Path(file)):
            raise unusable(warehouse, problem, f"ls -ld {file}  # the file of warehouse.uri must be writable")
        return
    uri = warehouse.uri.removeprefix("jdbc:")
    scheme, hosts = _server(uri)
    port = _PORTS.get(scheme)
    # An unescaped / or ? in the password ends the host early: that part must not be shown, so the JVM alone checks it.
    if port is None or not hosts or _server(without_secrets(uri))[1] != hosts:
        return
    tried = []
    for place in hosts.split(","):
        host, found = _host_and_port(place, port)
        try:
            with socket.create_connection((host, found), _ANSWER_S):
                return
        except OSError as error:
            tried.append(f"{host}:{found}: {reason(error)}")
    raise unusable(warehouse, ", ".join(tried), "tailrace config show  # is warehouse.uri's server up?")


def unusable(warehouse: Warehouse, why: str, hint: str = "") -> SinkError:
    """Return the error (TR-513) for a catalog that fails a request; `why` is shown, so it has no secrets."""
    return SinkError(
        "TR-513",
        f'the catalog of the warehouse at "{without_secrets(warehouse.uri)}" cannot be used',
        detail=f"{why.rstrip('.')}.",
        hint=hint or "tailrace config show  # the setting is warehouse.uri",
    )


def _sqlite_problem(file: Path) -> str | None:
    if not file.exists():
        return _cannot_be_made(file.absolute().parent)
    if not file.is_file():
        return f'"{file}" is not a file'
    if not os.access(file, os.W_OK):
        return f'"{file}" cannot be written by this user'
    try:
        with closing(sqlite3.connect(f"file:{file.absolute()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA schema_version").fetchall()
    except sqlite3.Error as error:
        return f'"{file}": {error}'
    return None


def _cannot_be_made(folder: Path) -> str | None:
    """Return the reason why a folder neither exists nor can be created by this user; None if it is usable."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        return f'"{there}" is not a folder'
    if not os.access(there, os.W_OK | os.X_OK):
        return f'"{there}" cannot be written by this user'
    return None


def _check_location(location: str) -> None:
    """Check a folder on this machine; only Spark can reach locations with another URI scheme."""
    hint = '[warehouse] location = "/var/lib/tailrace/warehouse", or a URI such as "s3://bucket/warehouse"'
    if not location.strip():
        raise ConfigError("TR-104", "the warehouse has no location", detail="warehouse.location is empty.", hint=hint)
    scheme, _ = _server(location)
    if scheme not in ("", "file"):
        return
    folder = Path(unquote(urlsplit(location).path) if scheme else location).absolute()
    if problem := _cannot_be_made(folder):
        raise SinkError(
            "TR-513",
            f'the warehouse location "{without_secrets(location)}" cannot be used',
            detail=f"{problem}.",
            hint=hint,
        )


def _server(uri: str) -> tuple[str, str]:
    """Return scheme and hosts of a URI; without hosts if they are malformed."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # its text quotes the hosts, and with them a password
        return uri.partition(":")[0], ""
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _host_and_port(place: str, default: int) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal():
        return place.strip("[]"), default
    return host.strip("[]"), int(port)
