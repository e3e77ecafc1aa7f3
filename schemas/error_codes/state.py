"""TR-4xx: the stored states of both sides do not match, so a person decides."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import StateError

_REFILL: Final = "run `tailrace snapshot start --all --reconcile`, then `tailrace run`"

CODES: Final = (
    ErrorCode(
        "TR-401",
        StateError,
        "The slot is ahead of the topics",
        refill=True,
        cause="The slot was advanced or recreated by hand, or another program has read from it. Changes between the end"
        " of the topics and the slot's `confirmed_flush_lsn` are lost.",
        remedy=f"Stop the other reader of the slot, then {_REFILL}.",
    ),
    ErrorCode(
        "TR-402",
        StateError,
        "The slot is missing, but its topics exist",
        refill=True,
        cause="The slot was dropped, or a standby without it (or with an incomplete copy) was promoted."
        " See it"
        " with `SELECT slot_name FROM pg_replication_slots;`.",
        remedy=f"Check that `source.dsn` reaches the right server, then {_REFILL}.",
    ),
    ErrorCode(
        "TR-403",
        StateError,
        "The server is not the one that the topics were filled from",
        refill=True,
        cause="The system identifier differs: `source.dsn` reaches another cluster, or the data was moved by"
        " `pg_dump` or `pg_upgrade`. See it with `SELECT system_identifier FROM pg_control_system();`.",
        remedy=f"Correct `source.dsn`. If the server was replaced on purpose, {_REFILL}, and rebuild the views.",
    ),
    ErrorCode(
        "TR-404",
        StateError,
        "The publication is missing or was recreated",
        refill=True,
        cause="A publication of the pipeline was dropped, recreated, or created after the slot. Changes"
        " in between are not in the stream.",
        remedy=f"To fill the gap, {_REFILL}.",
    ),
    ErrorCode(
        "TR-406",
        StateError,
        "The key of a table was removed",
        parks_table=True,
        cause="A primary key or replica identity was dropped, and its records on the topic have a key. A compacted"
        " topic cannot hold records without one.",
        remedy="Undo the change, or continue without the table: `tailrace table leave-out schema.table`. Another"
        " `kafka.prefix` (and slot) copies all tables again.",
    ),
    ErrorCode(
        "TR-407",
        StateError,
        "A table has changed in a way that readers of its topic cannot follow",
        cause="A key or a type was changed in a way that Avro readers cannot resolve, and"
        ' `source.on_schema_change = "stop"`. Nothing is lost: the slot keeps its position. By default the table is'
        " read again instead, or, without a key, parked (TR-431).",
        remedy='Set `on_schema_change = "refill"` under `[source]` to empty the topic by a truncate record and read the'
        ' table again, or send the column as text: `as_text = ["schema.table.column"]`.',
    ),
    ErrorCode(
        "TR-421",
        StateError,
        "The server's timeline lacks changes that are on the topics",
        refill=True,
        cause="A standby that had not received all of the WAL was promoted, or the server is a former primary, or was"
        " restored from before a promotion. DETAIL gives timelines and LSNs.",
        remedy=f"Correct `source.dsn` if it does not reach the primary. If it does, {_REFILL}. From PostgreSQL 17 on,"
        " `synchronized_standby_slots` on the primary prevents it.",
    ),
    ErrorCode(
        "TR-422",
        StateError,
        "The server was restored from a backup that is older than the topics",
        refill=True,
        cause="The WAL of the server ends before the LSN of the topics, on the same timeline.",
        remedy=f"Correct `source.dsn` if it does not reach the primary. If it does, {_REFILL}, and rebuild the views.",
    ),
    ErrorCode(
        "TR-423",
        StateError,
        "The slot exists, but it has no position record",
        cause="The progress topic was deleted, `kafka.prefix` was changed, or the slot belongs to another pipeline.",
        remedy='Correct `kafka.prefix`, or choose another slot: `slot = "tailrace_2"` under `[source]`. Drop an'
        " unused slot with `SELECT pg_drop_replication_slot('name');`.",
    ),
    ErrorCode(
        "TR-424",
        StateError,
        "A topic has lost records",
        parks_table=True,
        cause="The topic was deleted, recreated or truncated, or has other partitions than when it was filled. With"
        " several brokers the daemon checks again for ten seconds before it reports this. It ends the daemon if the"
        " topic is not that of one table.",
        remedy="If the table is parked, delete what is left of the topic, restart `tailrace run`, which creates the"
        " topic again, and run `tailrace table resume schema.table`. `tailrace table leave-out schema.table` continues"
        " without the table. If the daemon has ended, another `kafka.prefix` copies all tables again.",
    ),
    ErrorCode(
        "TR-425",
        StateError,
        "The topics have records, but there is neither a slot nor a position",
        cause="Topics of an earlier pipeline have the same prefix. Rows that were deleted since would stay on them.",
        remedy='Choose another prefix (`prefix = "name_2"` under `[kafka]`), or delete the topics as in the hint.',
    ),
    ErrorCode(
        "TR-426",
        StateError,
        "The publication was altered to leave out a kind of change",
        cause="`publish` lacks a kind of change, and the topics are filled already: such changes since then are missing"
        " and will not be sent.",
        remedy="Run `ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete, truncate');`, and, unless there"
        f" were none, {_REFILL}.",
    ),
    ErrorCode(
        "TR-428",
        StateError,
        "Updates and deletes of captured tables are not published any more",
        parks_table=True,
        cause="A table was moved to the publication for tables without a key, or `source.publish` was set to"
        ' "insert", while its topic has keys and promises the newest row of each. Changes since then are missing.',
        remedy="Publish the table again and read it: `tailrace table remove schema.table`, then `tailrace table add"
        ' schema.table`. To continue without it: `tables = [..., "!schema.table"]` under `[source]`. For logs of'
        " inserts use another `kafka.prefix` (and slot).",
    ),
    ErrorCode(
        "TR-430",
        StateError,
        "The table was parked by a command",
        cause="`tailrace table park` was run. It is shown by `tailrace table list` and `tailrace status`; no command"
        " ends with this error.",
        remedy="Run `tailrace table resume schema.table`.",
    ),
    ErrorCode(
        "TR-431",
        StateError,
        "Readers cannot follow a change of a table without a key",
        parks_table=True,
        cause="The type of a column was changed in a way that Avro readers cannot resolve. The topic of a table without"
        " a key is a log of events, which is not emptied unless a person says so.",
        remedy="To empty the topic and read the table under the new type, run `tailrace table resume schema.table`; or"
        ' first send the column as text, `as_text = ["schema.table.column"]` under `[source]`, and restart.',
    ),
    ErrorCode(
        "TR-432",
        StateError,
        "A hidden column was renamed and would appear in plain",
        parks_table=True,
        cause="A column that `exclude`, `mask` or `hash` under `[source]` hides was renamed, or its table was, and no"
        " such option has the new name; or the table was created again without that column. No record of the new shape"
        " is on the topic.",
        remedy="Add the new name to the option, restart, and run `tailrace table resume schema.table`. To show the"
        " values in plain, remove the option of the old name from the file instead. A table that was created again"
        " and has no such column needs the command alone.",
    ),
)
