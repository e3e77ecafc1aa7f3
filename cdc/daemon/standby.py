"""Standby: a second daemon for a slot waits until the slot is free. Only the owner of the slot writes."""

from __future__ import annotations

import threading
from typing import Final

import psycopg

from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.connect import cannot_connect, connect

_EVERY_S: Final = 0.5
"""Polling interval. A takeover takes this plus the 6 s after which the server notices a lost owner."""


def wait_for_slot(dsn: str, name: str, stop: threading.Event) -> None:
    """Return when the slot is inactive or missing, or when `stop` is set.

    Raises SourceError if PostgreSQL cannot be reached.
    """
    with connect(dsn, application_name="tailrace standby") as connection:
        while not stop.wait(_EVERY_S):
            try:
                found = slot.inspect(connection, name)
            except psycopg.OperationalError as error:
                raise cannot_connect(dsn, str(error)) from None
            if found is None or found.active_pid is None:
                return
