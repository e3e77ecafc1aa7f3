"""Functions of the C libraries that wheels bring along, for compiled code that calls them without Python between."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path


def function_address(package: str, library: str, name: str) -> int:
    """Return the address of a function of `library` as the extension modules of `package` use it; 0 if there is none.

    Wheels keep such libraries in a folder ``{package}.libs`` beside the package. One that is not loaded, or comes from
    elsewhere, is not taken: a second copy would not know the first one's objects.
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
