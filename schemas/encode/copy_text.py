"""Parse COPY's text format: split a line into the texts of its columns.

https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

_COPY_ESCAPES = {98: 8, 102: 12, 110: 10, 114: 13, 116: 9, 118: 11}  # \b \f \n \r \t \v


def unescape(field: bytes) -> bytes:
    """Decode the backslash escapes of COPY's text format."""
    parts = field.split(b"\\")
    out = bytearray(parts[0])
    literal = False
    for part in parts[1:]:
        if literal:
            out += part
            literal = False
        elif not part:
            out.append(92)
            literal = True
        else:
            out.append(_COPY_ESCAPES.get(part[0], part[0]))
            out += part[1:]
    return bytes(out)


def split_copy(line: bytes) -> list[bytes | None]:
    """Return the texts of a line of COPY's text format (with or without its line end), None for NULL."""
    if line.endswith(b"\n"):
        line = line[:-1]
    fields: list[bytes | None] = list(line.split(b"\t"))
    if b"\\" in line:
        return [
            field if field is None or b"\\" not in field else None if field == b"\\N" else unescape(field)
            for field in fields
        ]
    return fields
