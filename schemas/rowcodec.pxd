# C signatures for compiled callers; the code is in rowcodec.py.

cpdef int put_long(bytearray out, long long number) except? -1
cdef int put_slice(bytearray out, bytes text, Py_ssize_t start, Py_ssize_t end) except? -1

cdef class RowCodec:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t start
    cdef readonly list unchanged
    cdef bytes kinds
    cdef list columns
    cdef int[:] ends

    cpdef Py_ssize_t put_tuple(self, bytes message, Py_ssize_t pos, bytearray out) except? -1
    cpdef bytes column(self, bytearray out, Py_ssize_t i)
