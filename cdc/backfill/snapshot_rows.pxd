# C signatures for compiled callers; the code is in snapshot_rows.py.

from tailrace.sinks.kafka.outbox cimport Outbox

cdef class RowSender:
    cdef Outbox _outbox
    cdef object _refusals
    cdef long long _run
    cdef bytes _run_header
    cdef bytes _header
    cdef unsigned long long _commit_lsn
    cdef long long _epoch
    cdef long long _ordinal
    cdef set _ready
