# C signatures for compiled callers; the code is in rows.py.

cdef class Values:
    cdef int kind
    cdef int width
    cdef bytearray data
    cdef bytearray valid
    cdef bytearray ends
    cdef unsigned char* at
    cdef unsigned char* bits
    cdef int* offsets
    cdef Py_ssize_t room
    cdef Py_ssize_t size
    cdef Py_ssize_t rows
    cdef Py_ssize_t rows_room
    cdef Py_ssize_t nulls

    cdef int reserve_rows(self) except? -1
    cdef int reserve(self, Py_ssize_t more) except? -1
    cdef int put_null(self) except? -1

cdef class RowDecoder:
    cdef list columns
    cdef int count
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t size
    cdef const unsigned char* at
    cdef const unsigned char* end

    cdef int append(self, const unsigned char* body, Py_ssize_t size) except? -1
    cdef int take_row(self, bint take) except? -1
    cdef int take_value(self, Values column, bint take) except? -1
    cdef long long number(self) except? -1
    cdef Py_ssize_t length(self) except? -1
