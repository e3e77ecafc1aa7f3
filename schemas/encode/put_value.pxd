# C signatures for compiled callers; the code is in put_value.py.

from tailrace.schemas.encode.buffer cimport Buffer

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, void*) except? -1.0

cdef int put_value(int kind, object column, bytes text, Py_ssize_t start, Py_ssize_t end, Buffer out) except? -1
