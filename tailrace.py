"""What applications import: wait until a view shows what was just written, read it as of an LSN.

    import tailrace

    with pool.connection() as connection:
        connection.execute("UPDATE ...")
        connection.commit()
        lsn = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
    tailrace.wait(lsn, "orders_search")

The command line is the command `tailrace`; everything else is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.ops.wait import AppliedViews
from schemas.closes import Closes
from schemas.configfile import load
from schemas.errors import TailraceError
from schemas.lsn import format_lsn, parse_lsn

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
        self._applied = AppliedViews(load(Path(config) if config is not None else None))

    def close(self) -> None:
        self._applied.close()

    def wait(self, lsn: str | int, *views: str, timeout: float = 30.0) -> dict[str, str]:
        """Return once all of `views` (all declared ones if none is named) show what was committed up to `lsn`.

        The answer is the LSN that each has applied, at or past `lsn`, which is text as PostgreSQL prints it, or a
        number. TailraceError with code TR-570 after `timeout` seconds.
        """
        wanted = lsn if isinstance(lsn, int) else parse_lsn(lsn)
        return {name: format_lsn(at) for name, at in self._applied.wait(wanted, views, timeout).items()}


def wait(lsn: str | int, *views: str, config: Path | str | None = None, timeout: float = 30.0) -> dict[str, str]:
    """Do as `Views.wait` does, once: for more than a wait now and then keep a `Views`, and with it its consumer."""
    with Views(config) as opened:
        return opened.wait(lsn, *views, timeout=timeout)


def table(view: str, lsn: str | int | None = None, *, config: Path | str | None = None) -> Table:
    """Return a view in the warehouse as of an LSN, by default as it is now; needs `pip install 'tailrace[views]'`.

    The answer's `lsn` is what it is as of: the very one for a view of shape `history`, else the newest at or before it
    that the view stood at. TailraceError with code TR-561 or TR-562 for one that is too old, or not applied yet.
    """
    from sinks.warehouse_at import table_at

    wanted = parse_lsn(lsn) if isinstance(lsn, str) else lsn
    found = table_at(load(Path(config) if config is not None else None), view, wanted)
    return Table(format_lsn(found.lsn), found.scan)
