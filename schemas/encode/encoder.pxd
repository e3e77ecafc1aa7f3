# C signatures for compiled callers; the code is in encoder.py.

from tailrace.schemas.encode.buffer cimport Buffer
from tailrace.schemas.encode.row_codec cimport RowCodec

cdef class TableEncoder:
    cdef RowCodec row
    cdef RowCodec old
    cdef RowCodec keys
    cdef Buffer out
    cdef Buffer old_out
    cdef Buffer spare
    cdef Buffer key_out
    cdef list key_columns
    cdef bytes key_frame
    cdef bytes value_frame
    cdef bytes source
    cdef bytes table
    cdef bytes transaction
    cdef bytes sequence
    cdef bytes now
    cdef long long current
    cdef Py_ssize_t most

    cpdef int begin(
        self, long long number, unsigned long long commit_lsn, long long commit_ms, long long xid, long long now_ms
    ) except? -1
    cpdef list insert(self, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal)
    cpdef list change(self, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal)
    cpdef list remove(self, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal)

    cdef int put_insert(self, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal) except? -1
    cdef bint put_update(self, bytes message, Py_ssize_t pos, unsigned long long lsn, long long ordinal) except? -1

    cdef int put_snapshot(self, bytes line, long long ordinal) except? -1

    cdef int _start(self, Buffer out) except? -1
    cdef Py_ssize_t _old_image(self, bytes message, Py_ssize_t pos) except? -1
    cdef list _changed(self, bytes old_key, unsigned long long lsn, long long ordinal)
    cdef bytes _deleted(self, unsigned long long lsn, long long ordinal)
    cdef int _fill(self) except? -1
    cdef bytes _key(self, RowCodec codec, Buffer row)
    cdef int _put_key(self, RowCodec codec, Buffer row) except? -1
    cdef int _finish(self, Buffer out, unsigned long long lsn, long long ordinal, bytes op) except? -1
    cdef int _check(self, Buffer out) except? -1
    cdef int _last(self, bytes message, Py_ssize_t end) except? -1
    cdef int _mark(self, bytes message, Py_ssize_t pos) except? -1
