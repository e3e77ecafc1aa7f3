"""TR-9xx: findings of `tailrace check` that no error reports: settings that will hurt later, and facts to know."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode

CODES: Final = (
    ErrorCode(
        "TR-901",
        None,
        "`max_slot_wal_keep_size` sets no limit",
        cause="While the daemon does not run, the slot retains all WAL, until the disk of PostgreSQL is full and the"
        " database stops.",
        remedy="Set a limit below the free space of the disk: `ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';`, then"
        " `SELECT pg_reload_conf();`. Beyond it the server invalidates the slot (TR-204), and all tables are read"
        " again.",
    ),
    ErrorCode(
        "TR-902",
        None,
        "PostgreSQL has no free replication slot",
        cause="The slots in use are as many as `max_replication_slots`, and the slot of this pipeline does not exist"
        " yet.",
        remedy="Drop slots that nobody reads (`SELECT slot_name, active FROM pg_replication_slots;`), or raise the"
        " limit and restart PostgreSQL.",
    ),
    ErrorCode(
        "TR-903",
        None,
        "PostgreSQL has no free WAL sender",
        cause="The connected standbys and subscribers are as many as `max_wal_senders`. The daemon needs one, its start"
        " a second one for a moment.",
        remedy="Raise `max_wal_senders` and restart PostgreSQL.",
    ),
    ErrorCode(
        "TR-904",
        None,
        "Updates of a published table fail on the source",
        cause="The table is in a publication that publishes updates or deletes, but has no replica identity: PostgreSQL"
        " refuses its UPDATE and DELETE statements.",
        remedy="Give it a primary key or `REPLICA IDENTITY FULL`, or move it to the publication for tables without a"
        " key.",
    ),
    ErrorCode(
        "TR-905",
        None,
        "Tables without a key become logs of events",
        cause="A table without a replica identity has no key by which a newer row replaces an older one. Its topic is"
        " not"
        " compacted, has one partition, and has inserts and truncates only.",
        remedy="If views shall show its rows, give it a primary key, or `REPLICA IDENTITY FULL` and a key in"
        " `source.keys`.",
    ),
    ErrorCode(
        "TR-906",
        None,
        "Unchanged large values are not in the WAL",
        cause="Values that PostgreSQL stores out of line (TOAST) are left out of the WAL by an update that does not"
        " change them. Tailrace completes them from a cache on its host, or from the source (`source.toast`).",
        remedy="Nothing has to be done. With `REPLICA IDENTITY FULL` the WAL has all values, and is larger.",
    ),
    ErrorCode(
        "TR-907",
        None,
        "Columns whose type on the topic cannot hold every value",
        cause="A `numeric` with a precision is a decimal on the topic, which has no NaN. A row with such a value is"
        " refused (TR-220), and its table is parked.",
        remedy="If NaN may occur, send the column as text with `source.as_text`.",
    ),
    ErrorCode(
        "TR-908",
        None,
        "Tables match `source.tables` but are not published",
        cause="The publication exists, and does not have all tables that the patterns of `source.tables` match.",
        remedy="Add them to the publication, or exclude them with `!schema.table` in `source.tables`.",
    ),
    ErrorCode(
        "TR-909",
        None,
        "A pattern of `source.tables` matches no table",
        cause="The tables were renamed or dropped, or the pattern is misspelled. A first start is refused (TR-120), a"
        " later one continues without them.",
        remedy="Correct the pattern, or remove it.",
    ),
    ErrorCode(
        "TR-910",
        None,
        "The publication limits rows or columns",
        cause="A row filter or a column list of the publication decides which rows and columns the topics have.",
        remedy="Nothing has to be done if it is intended. See `SELECT * FROM pg_publication_tables;`.",
    ),
    ErrorCode(
        "TR-911",
        None,
        "Settings of the standby let its slot be invalidated",
        cause="The source is a standby. Without `hot_standby_feedback` and `primary_slot_name`, VACUUM on the primary"
        " removes rows of catalogs that the slot needs, and the standby invalidates it.",
        remedy="Set both on the standby, and create a physical slot for it on the primary.",
    ),
    ErrorCode(
        "TR-912",
        None,
        "The slot is close to its limit",
        cause="The slot retains almost as much WAL as `max_slot_wal_keep_size` allows. Beyond it the server invalidates"
        " the slot (TR-204).",
        remedy="Start the daemon soon, or raise `max_slot_wal_keep_size`.",
    ),
    ErrorCode(
        "TR-913",
        None,
        "A daemon reads the slot",
        cause="The slot is active. A further daemon waits as a standby, and takes over when the first one ends.",
        remedy="Nothing has to be done. `tailrace status` shows where the daemon runs.",
    ),
    ErrorCode(
        "TR-914",
        None,
        "The clocks of this host and of PostgreSQL differ",
        cause="Lags in seconds compare both clocks, so they are wrong by the difference.",
        remedy="Let both hosts follow a time server, such as chrony.",
    ),
    ErrorCode(
        "TR-915",
        None,
        "A disk has little free space",
        cause="A folder of Tailrace may grow beyond the free space of its disk, or cannot be written.",
        remedy="Free space, or set another folder or a smaller limit.",
    ),
    ErrorCode(
        "TR-916",
        None,
        "A setting of the brokers is too small",
        cause="The brokers refuse what the daemon will ask for: transactions of 300 s, or requests as large as"
        " `kafka.max_message_bytes`.",
        remedy="Raise the setting of the brokers, or lower that of Tailrace.",
    ),
    ErrorCode(
        "TR-917",
        None,
        "New topics cannot be replicated as configured",
        cause="The replication factor of new topics exceeds the number of brokers, or is smaller than"
        " `min.insync.replicas`, so that nothing can be written to them.",
        remedy="Set `kafka.replication_factor` to a number between `min.insync.replicas` and the number of brokers.",
    ),
    ErrorCode(
        "TR-918",
        None,
        "The user lacks rights on Kafka",
        cause="An ACL is missing. The daemon needs read, write, create, describe and describe configs on topics with"
        " the prefix, describe on the group `tailrace-reader`, describe configs on the cluster, and describe and write"
        " on the transactional id `tailrace-PREFIX-SLOT`, which only a start can test.",
        remedy="Add the ACLs of the finding.",
    ),
    ErrorCode(
        "TR-919",
        None,
        "A deferrable primary key is no replica identity",
        cause="PostgreSQL does not use a deferrable key to identify rows in the WAL, so the table counts as one"
        " without a"
        " key.",
        remedy="Make the constraint not deferrable, or set `REPLICA IDENTITY FULL` and declare the key in"
        " `source.keys`.",
    ),
    ErrorCode(
        "TR-920",
        None,
        "A long transaction delays the creation of the slot",
        cause="A new slot begins only when all transactions that were open before it have ended.",
        remedy="Wait for it, or end it with the statement of the finding.",
    ),
    ErrorCode(
        "TR-921",
        None,
        "A recovery is requested",
        cause="Somebody has run `tailrace snapshot start --all --reconcile`. The next start creates a new slot and"
        " reads"
        " all tables again.",
        remedy="Run `tailrace run`.",
    ),
    ErrorCode(
        "TR-922",
        None,
        "A check could not be carried out",
        cause="A server refused a query of the check itself, or did not answer in time. What it would have found is"
        " unknown.",
        remedy="Grant what the message names, or start without this check.",
    ),
    ErrorCode(
        "TR-923",
        None,
        "Spark's connectors have not been fetched",
        cause="The first `tailrace views follow` on a host fetches the jars of Kafka, Iceberg and SQLite, once.",
        remedy="Nothing has to be done if the host reaches the repository. Otherwise copy the cache folder of another"
        " host"
        " and name it in `TAILRACE_CACHE`.",
    ),
    ErrorCode(
        "TR-924",
        None,
        "The next start does more than continue",
        cause="The table of starts allows this start, with a consequence that the finding names.",
        remedy="Nothing has to be done if it is intended.",
    ),
)
