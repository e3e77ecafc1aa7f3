# C signatures for compiled callers, and libpq's functions; the code is in copystream.py.

ctypedef int (*GetCopyData)(void* conn, char** buffer, int asynchronous) noexcept
ctypedef void (*FreeMem)(void* buffer) noexcept

cdef size_t address_of(object connection) except? 0
cdef object take(object connection, size_t address)
