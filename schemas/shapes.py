"""The shapes of views: the table that commands, readers and batches look their properties up in.

A shape's batches are a class in `tailrace.spark_jobs.maintain`, chosen in its `open_view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

ShapeName = Literal["current", "history", "log", "percolate"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties of a shape.

    `maintained` says how a batch of a view of one table works. `from_topics`: the topics alone determine the content,
    so a query can define it, any target can hold it, and it can be rebuilt from offset 0. `has_rows`: a state of the
    view has one row for each row of the table. `has_versions`: all versions of a row are in the view. `readable`:
    queries can read it. `needs` are targets that it uses beside its own.
    """

    maintained: str
    from_topics: bool = False
    has_rows: bool = False
    has_versions: bool = False
    needs_key: bool = True
    readable: bool = False
    needs: tuple[str, ...] = ()


SHAPES: Final[Mapping[ShapeName, Shape]] = {
    "current": Shape(
        "Each changed key is merged from its newest record; only the view itself is read.",
        from_topics=True,
        has_rows=True,
        readable=True,
    ),
    "history": Shape(
        "Each record of a changed key is a version; the open versions of these keys are read from the view.",
        has_rows=True,
        has_versions=True,
        readable=True,
    ),
    "log": Shape("Each record is a row that is appended; no table is read.", needs_key=False),
    "percolate": Shape("Each change is matched with the stored queries; matches are appended.", needs=("search",)),
}
