"""A second daemon for the same slot waits until it is free. Who owns the slot may write; nobody else tries."""

from __future__ import annotations

import threading
from typing import Final

import psycopg

from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.connect import cannot_connect, connect

_EVERY_S: Final = 0.5
"""With the 6 s after which the server notices that an owner is gone, this is how soon another goes on."""


def wait_for_slot(dsn: str, name: str, stop: threading.Event) -> None:
    """Return when nobody reads the slot, when there is none, or when `stop` is set.

    SourceError if PostgreSQL cannot be asked.
    """
    with connect(dsn, application_name="tailrace standby") as connection:
        while not stop.wait(_EVERY_S):
            try:
                found = slot.inspect(connection, name)
            except psycopg.OperationalError as error:
                raise cannot_connect(dsn, str(error)) from None
            if found is None or found.active_pid is None:
                return
