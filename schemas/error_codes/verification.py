"""TR-7xx: a comparison found a difference."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import FoundError

CODES: Final = (
    ErrorCode(
        "TR-700",
        FoundError,
        "A view or a topic differs from the source",
        cause="`tailrace verify` compared source, topic and view at one LSN and printed the keys that differ.",
        remedy="If the topic equals the source, rebuild the view: `tailrace views rebuild VIEW`. If the topic differs,"
        " read the table again: `tailrace snapshot start schema.table --reconcile`.",
    ),
    ErrorCode(
        "TR-701",
        FoundError,
        "The topics do not match their position records",
        cause="`tailrace verify --log` found records that are missing, too many, or not counted by a position record:"
        " another program writes to the topics or deletes from them.",
        remedy="Find the other writer, then compare the tables with the source: `tailrace verify`.",
    ),
)
