# C signatures for compiled callers; the code is in row_path.py.

from tailrace.schemas.encode.encoder cimport TableEncoder
from tailrace.sinks.kafka.outbox cimport Destination, Outbox

cdef class RowPath:
    cdef object _tables
    cdef Outbox _outbox
    cdef object _fetch
    cdef object _refuse
    cdef long long _epoch
    cdef unsigned long long _stored_lsn
    cdef unsigned long long _split_lsn
    cdef long long _split_ordinal
    cdef object _table
    cdef long long _oid
    cdef object _toast
    cdef Py_ssize_t _toast_size
    cdef TableEncoder _encoder
    cdef Destination _destination
    cdef bytes _header
    cdef long long _skip
    cdef long long _index
    cdef readonly bint open
    cdef readonly long long number
    cdef readonly unsigned long long final_lsn
    cdef readonly long long begin_us
    cdef readonly long long xid
    cdef readonly long long now_ms
    cdef public unsigned long long position_lsn
    cdef public long long position_ordinal
    cdef public unsigned long long flushed_lsn
    cdef readonly long long commit_us
    cdef public object on_key
    cdef public object on_commit

    cpdef int begin(self, unsigned long long final_lsn, long long commit_us, long long xid) except? -1
    cpdef int commit(self, unsigned long long commit_lsn, unsigned long long end_lsn, long long commit_us) except? -1
    cpdef long long count(self) except? -2
    cpdef int prepare(self, TableEncoder encoder) except? -1
    cpdef int sent(self, long long ordinal) except? -1
    cpdef bytes position(self, long long ordinal)
    cdef int _row(self, int kind, bytes message) except? -1
    cdef bint _straight(self, int kind, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal) except? -1
    cdef int _find(self, long long oid) except? -1
    cdef int _send(self, list records, long long ordinal) except? -1
