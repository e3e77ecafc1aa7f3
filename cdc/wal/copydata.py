# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Read messages from the COPY stream of a replication connection; compiled by Cython where possible.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from psycopg import pq

from tailrace.schemas.errors import DecodeError
from tailrace.snapshot.copystream import DRAINED as DRAINED
from tailrace.snapshot.copystream import ENDED as ENDED
from tailrace.snapshot.copystream import MORE as MORE

if cython.compiled:
    from cython.cimports.tailrace.snapshot.copystream import address_of, take
else:
    from tailrace.snapshot.copystream import address_of, take

XLOGDATA = 25
"""Size of the header before a pgoutput message: 'w', its LSN, the end of the WAL, the server's clock."""

_BATCH_BYTES = cython.declare(cython.Py_ssize_t, 1_048_576)

_HEADER = cython.declare(cython.Py_ssize_t, XLOGDATA)


@cython.boundscheck(False)
@cython.wraparound(False)
def read(
    connection: pq.abc.PGconn, limit: cython.Py_ssize_t, messages: list[bytes], keepalive: Callable[[bytes], None]
) -> int:
    """Append up to `limit` received XLogData messages; call `keepalive` with each keepalive. Never waits.

    The message that reaches a total of 1 MiB also ends the batch, so that large messages are read one by one.

    Returns MORE at the limit, DRAINED if there is nothing more for now, ENDED if the server has ended the stream.
    Raises OperationalError if the connection is lost.
    """
    raw: bytes
    fetched: cython.bint = False
    end: cython.Py_ssize_t = len(messages) + limit
    address: cython.size_t = address_of(connection)
    size: cython.Py_ssize_t = 0
    while len(messages) < end and size < _BATCH_BYTES:
        message = take(connection, address)
        if message is None:
            if fetched:
                return DRAINED
            connection.consume_input()
            fetched = True
        elif message is False:
            return ENDED
        else:
            raw = message
            fetched = False
            if raw[0] == 119:  # w
                if len(raw) < _HEADER:
                    raise DecodeError("XLogData", 0, XLOGDATA, len(raw))
                messages.append(raw)
                size += len(raw)
            elif raw[0] == 107:  # k
                keepalive(raw)
    return MORE
