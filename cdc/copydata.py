# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Messages out of the COPY stream of a replication connection; compiled by Cython where possible, like `cdc.rows`."""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from psycopg import pq

from schemas.errors import DecodeError

XLOGDATA = 25
"""Bytes in front of a message of pgoutput: 'w', where its WAL record stands, where the WAL ends, the server's clock."""

MORE, DRAINED, ENDED = 1, 0, -1

_HEADER = cython.declare(cython.Py_ssize_t, XLOGDATA)


@cython.boundscheck(False)
@cython.wraparound(False)
def read(
    connection: pq.abc.PGconn, limit: cython.Py_ssize_t, messages: list[bytes], keepalive: Callable[[bytes], None]
) -> int:
    """Append up to `limit` XLogData messages that have come, call `keepalive` with the other kind. Never waits.

    Returns MORE at the limit, DRAINED when there is nothing more for now, ENDED when the server has ended the stream.
    """
    get_copy_data = connection.get_copy_data
    size: cython.Py_ssize_t
    fetched: cython.bint = False
    while limit > 0:
        size, view = get_copy_data(1)
        if size > 0:
            raw: bytes = bytes(view)
            if raw[0] == 119:  # w
                if size < _HEADER:
                    raise DecodeError("XLogData", 0, XLOGDATA, size)
                messages.append(raw)
                limit -= 1
                fetched = False
            elif raw[0] == 107:  # k
                keepalive(raw)
        elif size < 0:
            return ENDED
        elif fetched:
            return DRAINED
        else:
            connection.consume_input()
            fetched = True
    return MORE
