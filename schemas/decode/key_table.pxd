# C signatures for compiled callers; the code is in key_table.py.

cdef class KeyTable:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t most_bytes
    cdef unsigned long long seed
    cdef bytearray keys
    cdef bytearray entries
    cdef bytearray slots
    cdef unsigned char* key_at
    cdef long long* entry_at
    cdef int* slot_at
    cdef Py_ssize_t keys_size
    cdef Py_ssize_t keys_room
    cdef Py_ssize_t entries_room
    cdef Py_ssize_t slots_room

    cdef long long put(self, const unsigned char* key, Py_ssize_t size, long long place) except? -2
    cdef unsigned long long hash_of(self, const unsigned char* key, Py_ssize_t size) noexcept
    cdef int grow(self, Py_ssize_t size) except? -1
    cdef int index(self, Py_ssize_t entry) noexcept
