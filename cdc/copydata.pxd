# libpq's functions as copydata.py calls them.

ctypedef int (*GetCopyData)(void* conn, char** buffer, int asynchronous) noexcept
ctypedef void (*FreeMem)(void* buffer) noexcept
