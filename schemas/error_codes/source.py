"""TR-2xx: PostgreSQL, its slot, its publications and the captured tables."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode, Retry
from tailrace.schemas.errors import SourceError, StateError

CODES: Final = (
    ErrorCode(
        "TR-201",
        SourceError,
        "PostgreSQL cannot be reached",
        Retry.RESTART,
        cause="The server is down or still starting, the address or the password is wrong, or pg_hba.conf does not"
        " allow the connection. DETAIL has the message of libpq.",
        remedy='Try the connection with the same settings: `psql "host=... dbname=... user=..."`. Only'
        " physical replication needs a `replication` line in pg_hba.conf; here the line of the database is enough.",
    ),
    ErrorCode(
        "TR-202",
        SourceError,
        "`wal_level` is not `logical`",
        cause="The WAL of the server lacks the information that logical decoding needs.",
        remedy="Run `ALTER SYSTEM SET wal_level = 'logical';` and restart the server.",
    ),
    ErrorCode(
        "TR-203",
        SourceError,
        "The role may not use replication",
        cause="The role of `source.dsn` lacks the attribute REPLICATION.",
        remedy='Run `ALTER ROLE "name" REPLICATION;` as a superuser.',
    ),
    ErrorCode(
        "TR-204",
        StateError,
        "The server has invalidated the replication slot",
        refill=True,
        cause="While the daemon did not run, the slot retained more WAL than `max_slot_wal_keep_size`, was idle for"
        " longer than `idle_replication_slot_timeout`, or conflicted with a standby's replay. See it with `SELECT"
        " slot_name, wal_status, invalidation_reason FROM pg_replication_slots;`.",
        remedy="Run `tailrace snapshot start --all --reconcile`, then `tailrace run`: a new slot is created, and all"
        " tables are read again. To prevent it, raise `max_slot_wal_keep_size` and alert on"
        " `tailrace_slot_full_timestamp_seconds`.",
    ),
    ErrorCode(
        "TR-205",
        SourceError,
        "The publication leaves out a part of the table's key",
        parks_table=True,
        cause="A column list of the publication has some columns of the replica identity, but not all.",
        remedy="Publish all of its columns, with the lines of HINT: `ALTER PUBLICATION tailrace DROP TABLE"
        " schema.table;`, then `ALTER PUBLICATION tailrace ADD TABLE schema.table (columns);`. `SET TABLE` would remove"
        " all other tables.",
    ),
    ErrorCode(
        "TR-206",
        SourceError,
        "Another process uses the replication slot",
        Retry.STANDBY,
        cause="Another daemon reads from the slot or is starting with it. See it with `SELECT active_pid FROM"
        " pg_replication_slots;`.",
        remedy="Nothing, if a standby is intended: it takes over when the slot is free. Else give this pipeline a"
        " `source.slot` of its own, or stop the other consumer.",
    ),
    ErrorCode(
        "TR-207",
        SourceError,
        "The publication cannot be created",
        cause="The role does not own the tables, or may not create a publication in the database. DETAIL has the"
        " message of PostgreSQL.",
        remedy="Have the owner of the tables run the statements of the hint, then start the daemon again.",
    ),
    ErrorCode(
        "TR-208",
        SourceError,
        "Tailrace cannot read from the replication slot",
        cause="A slot of this name is physical, temporary or two-phase, or is of another plugin or database. See it"
        " with `SELECT * FROM pg_replication_slots;`.",
        remedy='Choose another name under `[source]`: `slot = "tailrace_2"`. A slot that does not exist is created.',
    ),
    ErrorCode(
        "TR-209",
        SourceError,
        "PostgreSQL refused a replication command",
        Retry.RESTART,
        cause="The server answered a command of the replication protocol with an error; the message and DETAIL are its"
        " own.",
        remedy="Do what the message of PostgreSQL says. The server's log has the context.",
    ),
    ErrorCode(
        "TR-210",
        SourceError,
        "A replication message cannot be decoded",
        cause="A message of the server is truncated or has an unknown form: a bug, or a damaged connection. The"
        " slot still has the data.",
        remedy="Start the daemon again. If the error returns, report it with the versions of Tailrace and PostgreSQL.",
    ),
    ErrorCode(
        "TR-211",
        SourceError,
        "A connection to PostgreSQL was lost",
        Retry.RESTART,
        cause="The server was restarted, the connection was terminated, or the network failed. Nothing is lost: the"
        " slot"
        " retains the WAL.",
        remedy="Nothing, if the server comes back. Else look at its log.",
    ),
    ErrorCode(
        "TR-212",
        SourceError,
        "PostgreSQL could not decode a transaction in progress",
        Retry.RESTART,
        cause="The server failed with an internal error (SQLSTATE XX000), or a part of a streamed transaction with"
        " logical messages was rolled back. Such a transaction can be decoded after its commit.",
        remedy="Nothing: the daemon continues without `source.streaming`. If it occurs without streaming, look at the"
        " server's log.",
    ),
    ErrorCode(
        "TR-213",
        SourceError,
        "Row-level security hides rows of a captured table",
        parks_table=True,
        cause="The stream has all rows, but a policy applies when the role reads the table: a snapshot would lack"
        " rows.",
        remedy='Run `ALTER ROLE "name" BYPASSRLS;`, or leave the table out of `source.tables`.',
    ),
    ErrorCode(
        "TR-214",
        SourceError,
        "The database is encoded as SQL_ASCII",
        cause="Such a database accepts any bytes as text, and the topics hold UTF-8.",
        remedy="Copy it into a database with `ENCODING 'UTF8'` (`pg_dump --encoding`).",
    ),
    ErrorCode(
        "TR-220",
        SourceError,
        "A value cannot be stored exactly",
        parks_table=True,
        cause="The type on the topic cannot hold a value as it is, for example NaN in a `numeric(10,2)` or an array of"
        " more than one dimension. The message names table and columns, never the value.",
        remedy='Under `[source]`, send the column as text (`as_text = ["schema.table.column"]`), leave it out'
        ' (`exclude`), or divert such changes (`on_table_error = "divert"`). Then run'
        " `tailrace table resume schema.table`.",
    ),
    ErrorCode(
        "TR-221",
        SourceError,
        "PostgreSQL reached no consistent point in time",
        cause="A new slot waits for transactions that were open when it was created. DETAIL names the transaction that"
        " blocks it: a long-running one, or a forgotten prepared one (`SELECT * FROM pg_prepared_xacts;`).",
        remedy="End the transaction (`SELECT pg_terminate_backend(pid);`, `ROLLBACK PREPARED 'gid';`), or repeat the"
        " command with `--timeout 600`.",
    ),
    ErrorCode(
        "TR-222",
        SourceError,
        "PostgreSQL refused a step of `tailrace verify`",
        cause="The role may not create a temporary slot or read a table, or the server has no free slot"
        " (`max_replication_slots`). The message is PostgreSQL's own.",
        remedy="Give the role REPLICATION, and SELECT on the captured tables.",
    ),
    ErrorCode(
        "TR-223",
        SourceError,
        "The table of a view is not captured",
        cause="`tailrace verify` was given a view whose table is not published, or is not selected by `source.tables`."
        " DETAIL gives the reason for each table.",
        remedy="Run the lines of the hint, such as `tailrace table add schema.table`, or leave the view out.",
    ),
    ErrorCode(
        "TR-226",
        SourceError,
        "The spool of streamed transactions cannot be written or read",
        cause="The disk of `source.spool_dir` is full, the folder is missing, or the user has no right to it."
        " Nothing is"
        " lost: the slot retains the WAL.",
        remedy="Free disk space, or name a folder with more space in `source.spool_dir`. A higher"
        " `logical_decoding_work_mem` on the server makes it stream less.",
    ),
    ErrorCode(
        "TR-227",
        SourceError,
        "A captured table cannot be read",
        cause="The role lacks USAGE on the schema or SELECT on the table, or reading failed for the reason in DETAIL.",
        remedy="Run `GRANT USAGE ON SCHEMA name TO role;` and `GRANT SELECT ON schema.table TO role;`.",
    ),
    ErrorCode(
        "TR-231",
        SourceError,
        "PostgreSQL is older than version 14",
        cause="The server does not support what Tailrace needs of `pgoutput`. See it with `SHOW server_version_num;`.",
        remedy="Upgrade the server to PostgreSQL 14 or later; `pg_upgrade --check` lists the obstacles.",
    ),
    ErrorCode(
        "TR-232",
        SourceError,
        "The server is a standby that cannot be used at present",
        Retry.RESTART,
        cause="The slot is a synchronized copy of the primary's, the slot of the position is not on this server, or the"
        " standby is older than PostgreSQL 16.",
        remedy='Connect to the primary: `dsn = "postgresql://a,b/app?target_session_attrs=read-write"`.',
    ),
    ErrorCode(
        "TR-233",
        SourceError,
        "The publication and the configuration name different kinds of changes",
        cause="`publish` of the publication lacks a kind of change, and the topics are still empty; or it has more than"
        ' inserts, and `source.publish = "insert"`. See it with `SELECT * FROM pg_publication;`.',
        remedy="Run `ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete, truncate');`. If topics are"
        ' meant to be logs of inserts, set `publish = "insert"` there and under `[source]`.',
    ),
    ErrorCode(
        "TR-234",
        SourceError,
        "The publication cannot be altered",
        cause="The role does not own the publication or the tables. DETAIL has the message of PostgreSQL. Nothing was"
        " changed.",
        remedy="Have the owner run the statements of the hint.",
    ),
    ErrorCode(
        "TR-235",
        SourceError,
        "There is no publication",
        cause="`tailrace table add` or `remove` was run before the first start of the daemon, or `source.publication`"
        " is misspelled. See them with `SELECT pubname FROM pg_publication;`.",
        remedy="Run `tailrace run`, which creates the publication for all tables that `source.tables` selects.",
    ),
    ErrorCode(
        "TR-236",
        SourceError,
        "The replication slot does not exist",
        cause="`tailrace slot show` or `drop` was run before the first start of the daemon, after the slot was dropped,"
        " or with another server in `source.dsn`. See the slots with `SELECT slot_name FROM pg_replication_slots;`.",
        remedy="Check `source.dsn` and `source.slot`. `tailrace run` creates the slot on the first run, and otherwise"
        " says how to recover.",
    ),
    ErrorCode(
        "TR-240",
        SourceError,
        "Captured tables are locked",
        Retry.LOCKED,
        cause="Another session holds, or waits for, an ACCESS EXCLUSIVE lock, or a standby canceled the query to"
        " replay WAL. DETAIL names tables and processes. Tailrace gives up after a short time, so that no other session"
        " queues up after it.",
        remedy="Nothing, if the other session ends. Else see it with `SELECT * FROM pg_stat_activity WHERE pid = ...;`;"
        " on a standby raise `max_standby_streaming_delay`.",
    ),
)
