# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,attr-defined"
"""Read messages from a connection in COPY mode: rows of a COPY TO STDOUT, or replication messages.

Compiled by Cython if possible. Then libpq's PQgetCopyData is called directly from C if psycopg's wheel includes libpq.
https://www.postgresql.org/docs/current/libpq-copy.html
"""

from __future__ import annotations

import mmap

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from psycopg import OperationalError, pq

from tailrace.schemas.encode.shared_library import function_address

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.mman import MADV_DONTNEED, madvise

MORE, DRAINED, ENDED = 1, 0, -1

_PIECE = cython.declare(cython.Py_ssize_t, 4_194_304)
_PAGE = cython.declare(cython.size_t, mmap.PAGESIZE)

_GET_COPY_DATA = cython.declare(cython.size_t, function_address("psycopg_binary", "libpq", "PQgetCopyData"))
_FREE = cython.declare(cython.size_t, function_address("psycopg_binary", "libpq", "PQfreemem"))
_DIRECT = cython.declare(cython.bint, pq.__impl__ == "binary" and _GET_COPY_DATA != 0 and _FREE != 0)


@cython.cfunc
@cython.exceptval(0, check=True)
def address_of(connection: pq.abc.PGconn) -> cython.size_t:
    """Return the connection's address for `take`, 0 if libpq is not called directly.

    Read once per batch: the property costs as much as a message. Raises OperationalError if the connection is closed.
    """
    if not _DIRECT:
        return 0
    pointer = connection.pgconn_ptr
    if pointer is None:
        raise OperationalError("the connection is closed")
    return pointer


@cython.cfunc
def take(connection: pq.abc.PGconn, address: cython.size_t) -> bytes | bool | None:
    """Return the next message, None if none is complete, False at the end of the COPY. Never waits.

    Raises OperationalError if the connection is lost.
    """
    if cython.compiled and address != 0:
        buffer: cython.p_char = cython.NULL
        size: cython.int = cython.cast(GetCopyData, _GET_COPY_DATA)(  # noqa: F821
            cython.cast(cython.p_void, address), cython.address(buffer), 1
        )
        if size == 0:
            return None
        if size == -1:
            return False
        if size < 0:
            raise OperationalError(connection.get_error_message())
        try:
            return PyBytes_FromStringAndSize(buffer, size) if size <= _PIECE else _moved(buffer, size)
        finally:
            cython.cast(FreeMem, _FREE)(buffer)  # noqa: F821
    length, view = connection.get_copy_data(1)
    return bytes(view) if length > 0 else None if length == 0 else False


@cython.cfunc
def _moved(buffer: cython.p_char, size: cython.Py_ssize_t) -> bytes:
    """Copy a large message and release its pages meanwhile: libpq has another copy of it and retains that."""
    if cython.compiled:
        message: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        to: cython.p_char = PyBytes_AS_STRING(message)
        page: cython.size_t = _PAGE
        start: cython.size_t = cython.cast(cython.size_t, buffer)
        first: cython.size_t = (start + page - 1) // page * page
        done: cython.Py_ssize_t = 0
        while done < size:
            memcpy(to + done, buffer + done, min(_PIECE, size - done))
            done = min(done + _PIECE, size)
            last: cython.size_t = (start + done) // page * page
            if last > first:
                madvise(cython.cast(cython.p_void, first), last - first, MADV_DONTNEED)
                first = last
        return message
    return b""


def read_lines(connection: pq.abc.PGconn, limit: cython.Py_ssize_t, lines: list[bytes]) -> int:
    """Append the received rows of a COPY in text format, until they have `limit` bytes. Never waits.

    Returns MORE at the limit, DRAINED if there are no more rows for now, ENDED at the end of the COPY. Raises
    OperationalError if the connection is lost.
    """
    fetched: cython.bint = False
    size: cython.Py_ssize_t = 0
    address: cython.size_t = address_of(connection)
    while size < limit:
        row = take(connection, address)
        if row is None:
            if fetched:
                return DRAINED
            connection.consume_input()
            # consume_input releases the GIL: meanwhile, another thread may have closed the connection
            address = address_of(connection)
            fetched = True
        elif row is False:
            return ENDED
        else:
            line: bytes = row
            lines.append(line)
            size += len(line)
            fetched = False
    return MORE
