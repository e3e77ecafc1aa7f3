"""TR-1xx: the configuration and what it names."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode
from tailrace.schemas.errors import ConfigError

CODES: Final = (
    ErrorCode(
        "TR-101",
        ConfigError,
        "There is no configuration file",
        cause="No file was found at any of the places that DETAIL lists, in that order.",
        remedy="Name one with `--config FILE` or TAILRACE_CONFIG. `tailrace dev up` writes one for the demo.",
    ),
    ErrorCode(
        "TR-102",
        ConfigError,
        "The configuration file is not valid TOML",
        cause="The file has a syntax error, or is not encoded as UTF-8. DETAIL gives the line or the byte offset.",
        remedy="Correct the line. A file in another encoding is converted by `iconv -f latin1 -t utf-8`.",
    ),
    ErrorCode(
        "TR-103",
        ConfigError,
        "A reference to an environment variable cannot be resolved",
        cause='A value holds "${NAME}" and the variable is not set, or holds a "${" that is not such a reference.',
        remedy="Set the variable, or give a default as `${NAME:-value}`. A dollar sign is written as `$$`.",
    ),
    ErrorCode(
        "TR-104",
        ConfigError,
        "A setting has a value that cannot be used",
        cause="A value has the wrong type or form, is out of range, contradicts another setting, or is missing. DETAIL"
        " says whether it comes from the file, the environment, a flag or a secret file. The value is not shown.",
        remedy="Correct the setting that the message names. `tailrace config show` prints all settings with their"
        " origin, `tailrace config schema` what is allowed.",
    ),
    ErrorCode(
        "TR-105",
        ConfigError,
        "The configuration has an unknown key",
        cause="A key or a section is misspelled, or is in the wrong section.",
        remedy="The hint names the nearest key. `tailrace config schema` prints all of them.",
    ),
    ErrorCode(
        "TR-106",
        ConfigError,
        "The configuration file or a secret file cannot be read",
        cause="The path is a folder, the file does not exist, or the user of the process has no right to read it.",
        remedy="Look at the file with `ls -l FILE`, and correct the path or its permissions.",
    ),
    ErrorCode(
        "TR-107",
        ConfigError,
        "There is no view of this name",
        cause="A command, or a request of the wait endpoint, names a view that the configuration does not declare.",
        remedy='Use a name that DETAIL lists, or declare the view: `[views.NAME] table = "schema.table"`.',
    ),
    ErrorCode(
        "TR-108",
        ConfigError,
        "The configuration declares no view",
        cause="A command about all views was run with a configuration that has no section `[views.NAME]`.",
        remedy='Declare a view: `[views.orders] table = "public.orders"`.',
    ),
    ErrorCode(
        "TR-109",
        ConfigError,
        "The content of the view cannot be compared",
        cause="`tailrace verify` was given a percolate view with `queries_index`. Its matches depend on the queries"
        " that were in that index when a change arrived, and no topic has their versions. Or, with `--since`, a query"
        " that reads only views: its rows have no LSN.",
        remedy="Name other views: `tailrace verify VIEW`, or `tailrace verify --all`. Or have the queries in a captured"
        ' table, and declare a view with `queries = "schema.table.column"`.',
    ),
    ErrorCode(
        "TR-110",
        ConfigError,
        "An optional Python package is not installed",
        cause="Views need Spark, a schema registry its client, and traces OpenTelemetry. They are extras of the"
        " distribution.",
        remedy="Run the command of the hint: `pip install 'tailrace[views]'`, `[registry]` or `[traces]`.",
    ),
    ErrorCode(
        "TR-111",
        ConfigError,
        "The table has no topic",
        cause="`tailrace tail` was given a table that is not captured, or the daemon has not run yet.",
        remedy='Write the table as "schema.table", check `source.tables`, and start the daemon with `tailrace run`.',
    ),
    ErrorCode(
        "TR-112",
        ConfigError,
        "The daemon or the views job cannot listen on its HTTP address",
        cause="`health.listen`, or `health.views_listen`, names an address of another host, or a port that another"
        " process holds. DETAIL names the process where the system shows it.",
        remedy='Choose another port under `[health]`: `listen = "127.0.0.1:9465"`; port 0 is any free one, an empty'
        " string turns the endpoint off.",
    ),
    ErrorCode(
        "TR-120",
        ConfigError,
        "`source.tables` selects no table",
        cause="At a first start a pattern matches no table of the database, or the publication has no table that the"
        " patterns select. Nothing was changed.",
        remedy="Correct the pattern (DETAIL has the nearest names), or add the table to the publication:"
        " `ALTER PUBLICATION tailrace ADD TABLE schema.name;`.",
    ),
    ErrorCode(
        "TR-121",
        ConfigError,
        "`source.keys` names a table that is not captured",
        cause='The name is misspelled, is not written as "schema.table", or `source.tables` does not select it. After'
        " the first start this is logged as a warning only.",
        remedy="Correct the name, select the table in `source.tables`, or remove the entry from `source.keys`.",
    ),
    ErrorCode(
        "TR-122",
        ConfigError,
        "`source.keys` names a column that the table does not have",
        parks_table=True,
        cause="The column is misspelled, is quoted, was dropped or renamed, or the publication's column list leaves it"
        " out.",
        remedy="Write the names as `\\d schema.table` of psql prints them, without quotes.",
    ),
    ErrorCode(
        "TR-123",
        ConfigError,
        "The configured key is not the replica identity of the table",
        parks_table=True,
        cause="Without REPLICA IDENTITY FULL the WAL has only the identity's columns of an updated or deleted row, so"
        " no other key can be exact.",
        remedy="Run `ALTER TABLE schema.table REPLICA IDENTITY FULL;`, or remove the table from `source.keys`.",
    ),
    ErrorCode(
        "TR-124",
        ConfigError,
        "The configured key is not unique",
        parks_table=True,
        cause="No unique index covers the configured columns, or some of them. An index that is partial or deferrable,"
        " or whose columns may be NULL, does not count.",
        remedy="Run `CREATE UNIQUE INDEX CONCURRENTLY ON schema.table (columns);` and"
        " `ALTER TABLE schema.table ALTER COLUMN name SET NOT NULL;`.",
    ),
    ErrorCode(
        "TR-125",
        ConfigError,
        "A table would have the topic of another table, or one of Tailrace's own topics",
        parks_table=True,
        cause="In a topic name all characters but letters, digits, `_` and `-` are written as `_xHH`, and Kafka treats"
        " a dot and an underscore alike. So different tables can have one topic name.",
        remedy='Rename one of the tables, or leave it out: `tables = ["public.*", "!public.name"]`.',
    ),
    ErrorCode(
        "TR-126",
        ConfigError,
        "The topic name of the table would be too long",
        parks_table=True,
        cause="A topic name consists of `kafka.prefix`, schema and table, and Kafka allows 249 characters.",
        remedy="Rename the table, leave it out of `source.tables`, or use a shorter `kafka.prefix` for a new pipeline.",
    ),
    ErrorCode(
        "TR-127",
        ConfigError,
        "`source.tables` has a pattern that cannot be used",
        cause="A pattern is empty, has no dot between schema and table, or has a bracket that is not closed.",
        remedy='Write patterns as "schema.table" with `*`, `?` and `[...]`, after `!` to exclude:'
        ' `tables = ["public.*", "!public.audit_*"]`.',
    ),
    ErrorCode(
        "TR-128",
        ConfigError,
        "A column of the key cannot be excluded, masked or hashed",
        parks_table=True,
        cause="The key identifies the rows, on the topic and in every view.",
        remedy="Remove the column from `exclude`, `mask` and `hash` under `[source]`, or the table from `tables`.",
    ),
    ErrorCode(
        "TR-129",
        ConfigError,
        "Two column options match the same column",
        parks_table=True,
        cause="The column matches patterns of two different options among `as_text`, `exclude`, `mask` and `hash`, or"
        " of one option with two different values.",
        remedy="Make the patterns narrower, so that one of them matches.",
    ),
    ErrorCode(
        "TR-130",
        ConfigError,
        "The daemon refuses a request about a table",
        cause="`tailrace snapshot` or `tailrace table` requested something that is not possible now: the table is not"
        " captured, has no key, or is in another state. DETAIL gives the reason for each table.",
        remedy="Look at `tailrace snapshot status` and `tailrace table list`, then repeat the command.",
    ),
    ErrorCode(
        "TR-132",
        ConfigError,
        "A table cannot be added to or removed from the publication",
        cause="`tailrace table add` or `remove` was given a table that does not exist, that `source.tables` does not"
        " select, or that is published with all tables (of a schema). Nothing was changed.",
        remedy="Run the lines of the hint. `tailrace status` names the tables that can be added.",
    ),
    ErrorCode(
        "TR-133",
        ConfigError,
        "`source.keys` names a table whose updates and deletes are not published",
        parks_table=True,
        cause="The table is in the publication for tables without a key only, which publishes inserts and truncates, so"
        " its topic is a log of events.",
        remedy="Move it to the first publication: `tailrace table remove schema.table`, then `tailrace table add"
        " schema.table`; or remove the entry from `source.keys`.",
    ),
    ErrorCode(
        "TR-135",
        ConfigError,
        "`snapshot.where` names a table that is not captured",
        cause="The name is misspelled, or `source.tables` does not select the table. After the first start this is"
        " logged as a warning only.",
        remedy='Correct it under `[snapshot]`: `where = { "schema.table" = "condition" }`.',
    ),
    ErrorCode(
        "TR-136",
        ConfigError,
        "A condition of `snapshot.where` is not valid SQL for its table",
        cause="PostgreSQL refuses the condition; DETAIL has its message.",
        remedy="Try the condition: `SELECT count(*) FROM schema.table WHERE condition;`.",
    ),
    ErrorCode(
        "TR-137",
        ConfigError,
        "Topics that are logs of inserts cannot be compared with their tables",
        cause='With `source.publish = "insert"` updates, deletes and truncates are not on the topics, so they differ'
        " from the tables by configuration.",
        remedy="Check the topics by themselves: `tailrace verify --log`.",
    ),
    ErrorCode(
        "TR-139",
        ConfigError,
        "`tailrace verify --log` needs exactly-once delivery",
        cause='With `delivery.guarantee = "at-least-once"` there may be records between two cuts that no'
        " position record counts, so the topics cannot be checked against the position records.",
        remedy="Compare the topics with the source instead: `tailrace verify`.",
    ),
    ErrorCode(
        "TR-140",
        ConfigError,
        "Dropping the replication slot requires its name",
        cause="`tailrace slot drop` was run without `--confirm`, or with a name that is not that of the slot. Without"
        " the slot, changes that are not on the topics yet cannot be streamed; DETAIL names their WAL. Nothing was"
        " dropped.",
        remedy="If the pipeline is abandoned, or is to be copied again: `tailrace slot drop --confirm NAME`.",
    ),
    ErrorCode(
        "TR-141",
        ConfigError,
        "A file of `tailrace init` exists already, or cannot be written",
        cause="`tailrace init` writes tailrace.toml and tailrace.sql, or the files that `--output` names, and"
        " overwrites nothing.",
        remedy="Name other files with `--output FILE`, or move the existing ones.",
    ),
)
