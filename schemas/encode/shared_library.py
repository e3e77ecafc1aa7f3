"""Find functions of the C libraries in wheels, for compiled code that calls them directly."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path


def function_address(package: str, library: str, name: str) -> int:
    """Return the address of a function in the `library` that `package` has loaded; 0 if there is none.

    Wheels have such libraries in a folder ``{package}.libs`` beside the package. A library that is not loaded, or is
    elsewhere, is not used, because a second copy does not know the first one's objects.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return 0
    folder = Path(spec.origin).parent.parent / f"{package}.libs"
    for path in folder.glob(f"{library}*.so*"):
        try:
            loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        function = getattr(loaded, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
