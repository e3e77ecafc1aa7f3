# C signatures for compiled callers; the code is in direct.py.

ctypedef int (*Producev)(void* rk, ...) noexcept
ctypedef void* (*TopicNew)(void* rk, const char* topic, void* conf) noexcept
ctypedef void (*TopicDestroy)(void* rkt) noexcept

cdef struct Handle:
    # The front of confluent-kafka's object: PyObject_HEAD, then librdkafka's handle.
    Py_ssize_t references
    void* type
    void* rk

cdef class Direct:
    cdef object _producer
    cdef void* _rk
    cdef Producev _producev
    cdef TopicNew _topic_new
    cdef TopicDestroy _topic_destroy
    cdef list _topics
    cdef readonly bint ready
    cdef readonly Py_ssize_t number

    cdef size_t topic(self, bytes name)
    cdef bint produce(
        self, size_t topic, Py_ssize_t partition, const unsigned char* key, Py_ssize_t key_size,
        const unsigned char* value, Py_ssize_t value_size, const unsigned char* headers,
        Py_ssize_t headers_size
    ) noexcept
