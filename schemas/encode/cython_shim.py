"""No-op replacement for the `cython` module, with the names that our compiled modules use.

Cython's own pure-Python module does the same, but Cython is a build dependency only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

compiled = False

Py_ssize_t = int
int = int
uint = int
bint = bool
longlong = int
ulonglong = int
size_t = int
double = float
p_const_uchar = bytes


def _same(thing: Any) -> Any:
    return thing


def _decorator(*_args: Any, **_kwargs: Any) -> Callable[[Any], Any]:
    return _same


cclass = cfunc = ccall = inline = final = _same
boundscheck = wraparound = cdivision = exceptval = locals = initializedcheck = _decorator


def cast(_type: Any, value: Any) -> Any:
    return value


def declare(_type: Any, value: Any = None, **_how: Any) -> Any:
    return value
