"""What applications import: wait until a view shows what was just written, read it as of an LSN.

    import tailrace

    with pool.connection() as connection:
        connection.execute("UPDATE ...")
        connection.commit()
        lsn = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
    tailrace.wait(lsn, "orders_search")

The command line is the command `tailrace`; everything else is private. This module is imported before any other of
the package, so it imports nothing heavy itself: `tailrace --help` would wait for it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.schemas.closes import Closes
from tailrace.schemas.errors import ConfigError, TailraceError
from tailrace.schemas.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from pyiceberg.table import DataScan

__all__ = ["Table", "TailraceError", "Views", "table", "wait"]


@dataclass(frozen=True, slots=True)
class Table:
    """A view in the warehouse as of `lsn`: `scan` is pyiceberg's, with `to_arrow`, `to_duckdb`, `to_polars`."""

    lsn: str
    scan: DataScan


class Views(Closes):
    """The views of a configuration: one Kafka consumer for any number of waits from any thread; close it in the end."""

    def __init__(self, config: Path | str | None = None) -> None:
        """Read `config`; without one, the file that the command `tailrace` would find. ConfigError if it is wrong."""
        from tailrace.cdc.operations.wait import AppliedViews
        from tailrace.schemas.config.file import load

        self._applied = AppliedViews(load(Path(config) if config is not None else None))

    def close(self) -> None:
        self._applied.close()

    def wait(self, lsn: str | int, *views: str, timeout: float = 30.0) -> dict[str, str]:
        """Return once all of `views` (all declared ones if none is named) show what was committed up to `lsn`.

        The answer is the LSN that each has applied, at or past `lsn`, which is text as PostgreSQL prints it, or a
        number. TailraceError with code TR-570 after `timeout` seconds, TR-516 for what is no LSN.
        """
        wanted = _lsn(lsn)
        return {name: format_lsn(at) for name, at in self._applied.wait(wanted, views, timeout).items()}


def wait(lsn: str | int, *views: str, config: Path | str | None = None, timeout: float = 30.0) -> dict[str, str]:
    """Do as `Views.wait` does, once: for more than a wait now and then keep a `Views`, and with it its consumer."""
    with Views(config) as opened:
        return opened.wait(lsn, *views, timeout=timeout)


def table(
    view: str, lsn: str | int | None = None, *, config: Path | str | None = None, versions: bool = False
) -> Table:
    """Return a view in the warehouse as of an LSN, by default as it is now; needs `pip install 'tailrace[views]'`.

    Of a view of shape `history` these are the rows that were valid at the LSN, in the columns of its table; with
    `versions`, all versions that had begun before it, with `valid_from`, `valid_to` and the rest (a version may have
    ended later). Of shape `log` or `percolate` these are the changes that were committed before it.

    The answer's `lsn` is what it is as of: the very one for these three shapes, else the newest at or before it at
    which the view was. TailraceError with code TR-561 or TR-562 for one that is too old, or not applied yet, TR-516
    for what is no LSN, TR-567 for `versions` of a view that has none.
    """
    from tailrace.schemas.config.file import load
    from tailrace.sinks.read.warehouse_at import table_at

    wanted = None if lsn is None else _lsn(lsn)
    found = table_at(load(Path(config) if config is not None else None), view, wanted, versions=versions)
    return Table(format_lsn(found.lsn), found.scan)


def _lsn(given: object) -> int:
    """Return an LSN as a number. ConfigError (TR-516) for what is none."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 64:
        return given
    if isinstance(given, str):
        with suppress(ValueError):
            return parse_lsn(given)
    raise ConfigError(
        "TR-516",
        f"{given!r:.60} is no LSN",
        detail='An LSN is text as PostgreSQL prints it, "0/16B3748", or that as a number of 64 bits.',
        hint="SELECT pg_current_wal_insert_lsn()::text",
    )
