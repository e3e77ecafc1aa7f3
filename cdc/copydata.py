# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,attr-defined"
"""Messages out of the COPY stream of a replication connection; compiled by Cython where possible, like `cdc.rows`.

Compiled, libpq's PQgetCopyData is called without Python between, where psycopg's wheel brings libpq along.
https://www.postgresql.org/docs/current/libpq-copy.html
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from psycopg import OperationalError, pq

from schemas.errors import DecodeError
from schemas.shared_library import function_address

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize

XLOGDATA = 25
"""Bytes in front of a message of pgoutput: 'w', where its WAL record stands, where the WAL ends, the server's clock."""

MORE, DRAINED, ENDED = 1, 0, -1

_HEADER = cython.declare(cython.Py_ssize_t, XLOGDATA)
_GET_COPY_DATA = cython.declare(cython.size_t, function_address("psycopg_binary", "libpq", "PQgetCopyData"))
_FREE = cython.declare(cython.size_t, function_address("psycopg_binary", "libpq", "PQfreemem"))
_DIRECT = cython.declare(cython.bint, pq.__impl__ == "binary" and _GET_COPY_DATA != 0 and _FREE != 0)


@cython.boundscheck(False)
@cython.wraparound(False)
def read(
    connection: pq.abc.PGconn, limit: cython.Py_ssize_t, messages: list[bytes], keepalive: Callable[[bytes], None]
) -> int:
    """Append up to `limit` XLogData messages that have come, call `keepalive` with the other kind. Never waits.

    Returns MORE at the limit, DRAINED when there is nothing more for now, ENDED when the server has ended the stream.
    Raises OperationalError when the connection is lost.
    """
    size: cython.Py_ssize_t
    fetched: cython.bint = False
    end: cython.Py_ssize_t = len(messages) + limit
    # asked for once: a property costs as much as a message
    address: cython.size_t = connection.pgconn_ptr if _DIRECT else 0
    while len(messages) < end:
        size = _next(connection, address, messages, keepalive)
        if size > 0:
            fetched = False
        elif size < 0:
            return ENDED
        elif fetched:
            return DRAINED
        else:
            connection.consume_input()
            fetched = True
    return MORE


@cython.cfunc
@cython.exceptval(-3)
def _next(
    connection: pq.abc.PGconn, address: cython.size_t, messages: list[bytes], keepalive: Callable[[bytes], None]
) -> cython.int:
    """Take the next message, if one is there whole; return its size, 0 if there is none, −1 at the stream's end.

    `address` is that of libpq's connection, 0 where it is not called directly.
    """
    size: cython.int
    raw: bytes
    if cython.compiled and address != 0:
        buffer: cython.p_char = cython.NULL
        size = cython.cast(GetCopyData, _GET_COPY_DATA)(  # noqa: F821
            cython.cast(cython.p_void, address), cython.address(buffer), 1
        )
        if size == -2:
            raise OperationalError(connection.get_error_message())
        if size <= 0:
            return size
        try:
            raw = PyBytes_FromStringAndSize(buffer, size)
        finally:
            cython.cast(FreeMem, _FREE)(buffer)  # noqa: F821
    else:
        size, view = connection.get_copy_data(1)
        if size <= 0:
            return size
        raw = bytes(view)
    if raw[0] == 119:  # w
        if size < _HEADER:
            raise DecodeError("XLogData", 0, XLOGDATA, size)
        messages.append(raw)
    elif raw[0] == 107:  # k
        keepalive(raw)
    return size
