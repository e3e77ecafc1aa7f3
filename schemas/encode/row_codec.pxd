# C signatures for compiled callers; the code is in row_codec.py.

from tailrace.schemas.encode.buffer cimport Buffer

cdef class RowCodec:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t start
    cdef readonly list unchanged
    cdef bytes kinds
    cdef list columns
    cdef int[:] ends

    cdef Py_ssize_t put_tuple(self, bytes message, Py_ssize_t pos, Buffer out) except? -1
    cdef int put_fields(self, fields, Buffer out) except? -1
    cdef int put_line(self, bytes line, Buffer out) except? -1
    cdef int place(self, Py_ssize_t i, Py_ssize_t end) except? -1
    cdef Py_ssize_t column_start(self, Py_ssize_t i) noexcept
    cdef Py_ssize_t column_end(self, Py_ssize_t i) noexcept
