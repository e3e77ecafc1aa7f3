"""TR-7xx: a comparison found a difference, or its repair failed."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import ConfigError, FoundError, RebuildError, SinkError, StateError

CODES: Final = (
    ErrorCode(
        "TR-700",
        FoundError,
        "A view or a topic differs from the source",
        cause="`tailrace verify` compared source, topic and view at one LSN and printed the keys that differ.",
        remedy="Repair topics and views: `tailrace verify --repair`. Or rebuild a view: `tailrace views rebuild VIEW`;"
        " if its topic differs, first read the table again: `tailrace snapshot start schema.table --reconcile`.",
    ),
    ErrorCode(
        "TR-701",
        FoundError,
        "The topics do not match their position records",
        cause="`tailrace verify --log` found records that are missing, too many, or not counted by a position record:"
        " another program writes to the topics or deletes from them.",
        remedy="Find the other writer, then compare the tables with the source: `tailrace verify`.",
    ),
    ErrorCode(
        "TR-702",
        ConfigError,
        "A repair could not ask",
        cause="`tailrace verify --repair` shows what it will change and asks, but its standard input is no terminal.",
        remedy="Give `--yes`, for example in a scheduled job. `tailrace verify` alone changes nothing.",
    ),
    ErrorCode(
        "TR-703",
        ConfigError,
        "A view cannot be repaired",
        cause="The queries of this percolate view are in an index of yours (`queries_index`). Its matches depend on the"
        " queries that were in it when a change arrived. They cannot be computed a second time.",
        remedy="`tailrace views rebuild VIEW` begins it again; its earlier matches stay.",
    ),
    ErrorCode(
        "TR-704",
        StateError,
        "A view was not repaired: its content took too long to compute",
        cause="Computing the content took longer than `kafka.min_compaction_lag_ms`, or the views below it moved"
        " meanwhile. Compaction may have removed records that belong to it. Nothing was changed.",
        remedy="`tailrace views rebuild VIEW`, or raise `kafka.min_compaction_lag_ms` and the topics'"
        " `min.compaction.lag.ms`, and repeat the repair later.",
    ),
    ErrorCode(
        "TR-705",
        RebuildError,
        "Another writer's documents are newer than the next batch",
        cause="A document's version is the LSN of its batch. Something else has written documents so often, or with"
        " such versions, that the next batch could not replace them. They were repaired, but would not be maintained.",
        remedy="Find the other writer, then `tailrace views rebuild VIEW`: a new index has none of these versions.",
    ),
    ErrorCode(
        "TR-706",
        SinkError,
        "A table was not read again",
        cause="`tailrace verify --repair` asked the daemon to read rows again whose topic differs from the source. No"
        " daemon answered, or the read was cancelled, failed or was followed by another one.",
        remedy="`tailrace snapshot status` shows the read. Is the daemon running? Then repeat the repair.",
    ),
    ErrorCode(
        "TR-707",
        StateError,
        "A view was not verified: its comparison took too long",
        cause="A comparison by `[verify]` took longer than `kafka.min_compaction_lag_ms` and found keys that differ,"
        " or it was of matches. Compaction may have removed records that belong to the view's cut, so the result proves"
        " nothing.",
        remedy="It is repeated by itself. If this happens each time, raise `kafka.min_compaction_lag_ms` and the"
        " topics' `min.compaction.lag.ms`, or `verify.share`.",
    ),
)
