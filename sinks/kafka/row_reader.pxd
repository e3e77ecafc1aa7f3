# C signatures for compiled callers; the code is in row_reader.py.

from tailrace.schemas.decode.key_table cimport KeyTable
from tailrace.schemas.decode.rows cimport RowDecoder

cdef struct Message:
    # rd_kafka_message_t
    int err
    void* topic
    int partition
    unsigned char* value
    size_t value_size
    unsigned char* key
    size_t key_size
    long long offset
    void* private

ctypedef Message* (*Poll)(void* rk, int timeout_ms) noexcept nogil
ctypedef void* (*QueueOf)(void* rk) noexcept nogil
ctypedef Py_ssize_t (*ConsumeBatch)(void* queue, int timeout_ms, Message** messages, size_t size) noexcept nogil
ctypedef void (*Destroy)(void* thing) noexcept nogil

cdef struct Handle:
    # The front of confluent-kafka's object: PyObject_HEAD, then librdkafka's handle.
    Py_ssize_t references
    void* type
    void* rk

cdef class RowReader:
    cdef object _consumer
    cdef void* _rk
    cdef void* _queue
    cdef Poll _poll
    cdef ConsumeBatch _consume
    cdef Destroy _destroy_message
    cdef Destroy _destroy_queue
    cdef bytearray _fetched
    cdef Message** _messages
    cdef Py_ssize_t _next
    cdef Py_ssize_t _count
    cdef bytearray _end_offsets
    cdef long long* _ends
    cdef Py_ssize_t _partitions
    cdef RowDecoder _rows
    cdef KeyTable _keys
    cdef bytes _key_framing
    cdef bytes _value_framing
    cdef Py_ssize_t _most_rows
    cdef Py_ssize_t _most_bytes
    cdef list _gone
    cdef long long _chunk
    cdef readonly bint ready
    cdef readonly Py_ssize_t missing
    cdef readonly int error

    cdef int _take(self, Message* message) except? -1
    cdef int _leave(self, long long place) except? -1
