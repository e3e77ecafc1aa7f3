# C signatures for compiled callers; the code is in direct.py.

ctypedef int (*Producev)(void* rk, ...) noexcept

cdef struct Handle:
    # The front of confluent-kafka's object: PyObject_HEAD, then librdkafka's handle.
    Py_ssize_t references
    void* type
    void* rk

cdef class Direct:
    cdef object _producer
    cdef void* _rk
    cdef Producev _producev
    cdef readonly bint ready

    cdef bint produce(
        self, bytes topic, Py_ssize_t partition, const unsigned char* key, Py_ssize_t key_size,
        const unsigned char* value, Py_ssize_t value_size, const unsigned char* headers,
        Py_ssize_t headers_size
    ) noexcept
