# C signatures for compiled callers; the code is in outbox.py.

from tailrace.schemas.encode.buffer cimport Buffer
from tailrace.sinks.kafka.direct cimport Direct

cdef class Slot:
    cdef Buffer key
    cdef Buffer value
    cdef Buffer position

    cpdef object record(self)

cdef class Destination:
    cdef readonly str topic
    cdef readonly bytes c_topic
    cdef readonly Py_ssize_t producer
    cdef readonly size_t handle
    cdef readonly list next_offsets
    cdef readonly list held
    cdef readonly list slots
    cdef readonly Py_ssize_t count

cdef class Outbox:
    cdef public bint open
    cdef readonly bint direct
    cdef readonly Py_ssize_t pending_bytes
    cdef readonly dict touched
    cdef Direct _direct
    cdef object _produce
    cdef object _begin
    cdef object _again
    cdef object _report
    cdef object _drain
    cdef Py_ssize_t _held_count

    cpdef int send(self, Destination to, bytes key, bytes value, object headers) except? -1
    cpdef int send_to(self, Destination to, Py_ssize_t partition, bytes key, bytes value, object headers) except? -1
    cdef int send_encoded(
        self, Destination to, Buffer key, Buffer value, bytes position, long long ordinal, bytes run
    ) except? -1
    cdef int _keep(self, Destination to, Py_ssize_t partition, Py_ssize_t size, object record) except? -1
    cdef int _release(self) except? -1
    cdef int _make_room(self, Destination to, Py_ssize_t partition, Py_ssize_t size) except? -1
    cdef int _hand_over(self, Destination to, Py_ssize_t partition, object held) except? -1
    cpdef int produce(self, str topic, Py_ssize_t partition, tuple record, object on_delivery) except? -1
