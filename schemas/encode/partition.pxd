# C signatures for compiled callers; the code is in partition.py.

cpdef Py_ssize_t partition_of(bytes key, unsigned int partitions) except? -1
cdef Py_ssize_t partition_at(const unsigned char* key, Py_ssize_t size, unsigned int partitions) noexcept
