# C signatures for compiled callers; the code is in values.py.

cdef long long time_at(bytes text, Py_ssize_t start, Py_ssize_t end) except? -1
cdef long long date_at(bytes text, Py_ssize_t start, Py_ssize_t end) except? -1
cdef long long timestamp_at(bytes text, Py_ssize_t start, Py_ssize_t end, bint zoned) except? -1
