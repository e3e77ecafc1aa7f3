# C signatures for compiled callers; the code is in buffer.py.

cdef class Buffer:
    cdef bytearray data
    cdef unsigned char* at
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef Py_ssize_t most

    cdef int clear(self) except? -1
    cdef Py_ssize_t end(self) noexcept
    cdef int reserve(self, Py_ssize_t more) except? -1
    cdef int put_byte(self, int value) except? -1
    cdef int put_long(self, long long number) except? -1
    cdef int put_digits(self, unsigned long long number) except? -1
    cdef int put_double(self, double number) except? -1
    cdef int put_be64(self, unsigned long long number) except? -1
    cdef int put(self, bytes text, Py_ssize_t start, Py_ssize_t end) except? -1
    cdef int put_all(self, bytes raw) except? -1
    cdef int put_from(self, Buffer other, Py_ssize_t start, Py_ssize_t end) except? -1
    cdef int byte_at(self, Py_ssize_t i) noexcept
    cdef bytes whole(self)

cdef int digits_of(unsigned long long number) noexcept
