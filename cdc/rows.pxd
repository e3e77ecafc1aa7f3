# C signatures for compiled callers; the code is in rows.py.

from schemas.encoder cimport TableEncoder
from sinks.outbox cimport Destination, Outbox

cdef class RowPath:
    cdef object _tables
    cdef Outbox _outbox
    cdef object _fetch
    cdef object _transaction
    cdef object _table
    cdef long long _oid
    cdef TableEncoder _encoder
    cdef Destination _destination
    cdef bytes _header
    cdef long long _skip
    cdef long long _now_ms
    cdef long long _index
    cdef public object on_key
    cdef public long long ordinal

    cpdef long long count(self) except? -2
    cpdef bytes position(self, long long ordinal)
    cdef int _row(self, int kind, bytes message) except? -1
    cdef int _find(self, long long oid) except? -1
    cdef int _send(self, list records, long long ordinal) except? -1
