"""Read values from separate files, for example `dsn_file`: secrets mounted into a container."""

from __future__ import annotations

import os
from typing import Final

LARGEST: Final = 65_536
"""Maximum size in bytes; a larger file, or a device, is not a secret file."""


class SecretFileError(Exception):
    """Error: the file named by a key that ends in _file cannot be read. Contains no part of the file."""

    def __init__(self, key: str, path: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.path = path
        self.reason = reason


def with_files(values: object, *keys: str) -> object:
    """Read missing values from the files named by `{key}_file`. Raises SecretFileError.

    A path that is not a string is left to the model, which refuses it: `open` takes a number as an open file.
    """
    if isinstance(values, dict):
        for key in keys:
            path = values.get(f"{key}_file")
            if path and isinstance(path, str) and key not in values:
                values = {**values, key: _read(f"{key}_file", path)}
    return values


def _read(key: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise SecretFileError(key, path, error.strerror or os.strerror(error.errno or 0)) from None
    except ValueError:  # a zero byte in the name
        raise SecretFileError(key, path.replace("\0", "\\0"), "The name has a zero byte") from None
    if len(raw) > LARGEST:
        raise SecretFileError(key, path, f"It has more than {LARGEST} bytes")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError as error:
        # UnicodeDecodeError contains the bytes of the file
        raise SecretFileError(key, path, f"It is not UTF-8: the byte at offset {error.start}") from None
