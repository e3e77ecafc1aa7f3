"""TR-5xx except those for the text of a query: views, their targets, generations and reads."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode, Retry
from tailrace.schemas.errors import ConfigError, DeadlineError, FoundError, SinkError, StateError, TailraceError

CODES: Final = (
    ErrorCode(
        "TR-501",
        ConfigError,
        "There is no view of this name",
        cause="A Spark job, or a read of a view from Python, names a view that the configuration does not declare.",
        remedy='Use a name that `tailrace views list` prints, or declare it: `[views.NAME] table = "schema.table"`.',
    ),
    ErrorCode(
        "TR-502",
        ConfigError,
        "A view that is a query needs a warehouse",
        cause="The tables that queries read are maintained in the warehouse, whatever the target of the view, and the"
        " configuration has no `[warehouse]`.",
        remedy='Add it: `[warehouse] uri = "jdbc:sqlite:/path/catalog.db"`, `location = "/path/warehouse"`.',
    ),
    ErrorCode(
        "TR-504",
        ConfigError,
        "A certificate file of `kafka.options` cannot be read",
        Retry.BATCH,
        cause="Spark's Kafka client gets the content of the PEM files that `ssl.ca.location`,"
        " `ssl.certificate.location` and `ssl.key.location` name, and one cannot be read by this user.",
        remedy="Look at the file with `ls -l FILE`, and correct the path or its permissions.",
    ),
    ErrorCode(
        "TR-505",
        ConfigError,
        "An option of `kafka.options` has no counterpart in Spark's Kafka client",
        Retry.BATCH,
        cause="Spark reads Kafka with the Java client, which has other names for its options. The option is about"
        " security, so it is not ignored.",
        remedy='Give all options of the Java client under its own names: `java_options = { "security.protocol" = "SSL",'
        " ... }` under `[kafka]`.",
    ),
    ErrorCode(
        "TR-506",
        ConfigError,
        "The table of a view names no schema",
        cause='`table` is not of the form "schema.table".',
        remedy='Write `table = "public.NAME"`.',
    ),
    ErrorCode(
        "TR-507",
        ConfigError,
        "No schema of the view's table is known",
        Retry.BATCH,
        cause="The table is not captured, is misspelled, or the daemon has not written a record of it yet.",
        remedy="Correct the name (the hint has the nearest), select the table in `source.tables`, or start the daemon.",
    ),
    ErrorCode(
        "TR-508",
        ConfigError,
        "The topic of a view's table is a log without keys",
        Retry.BATCH,
        cause='The table has no key, or `source.publish` is "insert": nothing on the topic identifies the newest'
        " record of a row.",
        remedy='Declare the view with `shape = "log"`; or give the table a primary key (or REPLICA IDENTITY FULL and an'
        " entry in `source.keys`) and start with another `kafka.prefix`.",
    ),
    ErrorCode(
        "TR-509",
        ConfigError,
        "The key of a view is not the key of its table",
        Retry.BATCH,
        cause="`key` of a view of one table names other columns than the key on the topic.",
        remedy="Remove `key` from `[views.NAME]`: the key of the table is the default.",
    ),
    ErrorCode(
        "TR-510",
        SinkError,
        "The applied cut of a view cannot be written to Kafka",
        Retry.BATCH,
        cause="No broker answers, or the user may not write to the topic of view records. What is in the target is"
        " complete.",
        remedy="Try `kcat -b HOST:PORT -L`; grant the user WRITE on `{prefix}.tailrace.views`.",
    ),
    ErrorCode(
        "TR-511",
        ConfigError,
        "The section of a view's target is missing",
        cause='A view has `target = "warehouse"`, `target = "search"` or `shape = "percolate"`, and the configuration'
        " has no `[warehouse]` or `[search]`.",
        remedy='Add it: `[search] hosts = ["http://localhost:9200"]`, or `[warehouse]` with `uri` and `location`.',
    ),
    ErrorCode(
        "TR-512",
        StateError,
        "The view has no rows yet",
        cause="No batch has been applied to it: `tailrace views follow` has not run, or its first batch is not done.",
        remedy="Run `tailrace views follow`, or `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-513",
        SinkError,
        "The catalog or the folder of the warehouse cannot be used",
        cause="The catalog's database or REST server does not answer, refuses the credentials or is damaged, or the"
        " folder cannot be created or written to.",
        remedy="Check `uri` and `location` under `[warehouse]`: `tailrace config show`. DETAIL has the reason.",
    ),
    ErrorCode(
        "TR-514",
        SinkError,
        "The JVM of the Spark job has ended",
        cause="It was killed by a signal, often for lack of memory. Uncommitted work is repeated at the next start.",
        remedy="See `dmesg | grep -i 'killed process'`; give it memory under `[spark]`, or `tailrace verify` under"
        ' `[verify]`: `driver_memory = "4g"`. Then start the job again.',
    ),
    ErrorCode(
        "TR-515",
        ConfigError,
        "Spark lacks a driver or a file system for the warehouse",
        cause="The class path has no JDBC driver for `warehouse.uri`, or no file system for the scheme of"
        " `warehouse.location`.",
        remedy='Add the jar and its settings under `[spark.conf]`: `"spark.driver.extraClassPath" ='
        ' "/path/to/driver.jar"`.',
    ),
    ErrorCode(
        "TR-516",
        ConfigError,
        "The argument is not an LSN",
        cause="`tailrace.wait` or `tailrace.table` was called with a text that is not in PostgreSQL's form of an LSN,"
        " or with a number that is not of 64 bits.",
        remedy="Use `SELECT pg_current_wal_insert_lsn()::text` after the commit.",
    ),
    ErrorCode(
        "TR-517",
        ConfigError,
        "The view is not in the warehouse",
        cause="`tailrace.table` was called with a view that is not declared, or has another target.",
        remedy='Use a view with `target = "warehouse"`: `tailrace views list` prints them.',
    ),
    ErrorCode(
        "TR-518",
        TailraceError,
        "A signal has ended the Spark job",
        cause="The job's process was killed and could not report it: by the kernel if memory is short (SIGKILL;"
        " `dmesg` names it), by a person, or by a fault in native code (SIGSEGV). The command exits with 128 plus the"
        " signal's number.",
        remedy="Give it more memory or less to do (`spark.driver_memory`, `spark.views_at_once`; for `tailrace verify`"
        " `verify.driver_memory`), and start it again: it repeats what was not committed.",
    ),
    ErrorCode(
        "TR-520",
        StateError,
        "A column has changed its type, and older rows cannot be converted",
        Retry.BATCH,
        cause="Rows written before an ALTER TABLE are still on the topic with the old type, which does not widen to the"
        " new one without loss.",
        remedy="Read the table again, so that all rows have the new type: `tailrace snapshot start schema.table`.",
    ),
    ErrorCode(
        "TR-521",
        StateError,
        "A commit of the view does not contain its cut",
        Retry.BATCH,
        cause="Another program commits to the Iceberg table, or a Spark extension drops snapshot properties.",
        remedy="Let nothing else write to the table, then run `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-522",
        StateError,
        "A column has changed to a type that the view cannot adopt in place",
        Retry.BATCH,
        cause="The type of a column, or of an expression of the query, has changed in a way that the Iceberg table or"
        " the index does not allow for a column that exists.",
        remedy="Run `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-523",
        SinkError,
        "The schema of a record is not on the schemas topic",
        Retry.BATCH,
        cause="The views job read a record whose schema id is unknown: the schemas topic was deleted, or"
        " `kafka.prefix` names another pipeline.",
        remedy="Check `kafka.prefix` with `tailrace config show`.",
    ),
    ErrorCode(
        "TR-524",
        StateError,
        "Reading a cut takes longer than the compaction lag",
        Retry.BATCH,
        cause="Reading the records of a cut took so long that compaction could delete some of them. Newer cuts had the"
        " same problem.",
        remedy="Raise `kafka.min_compaction_lag_ms` and `min.compaction.lag.ms` of the topics, for example to"
        " 21600000.",
    ),
    ErrorCode(
        "TR-525",
        StateError,
        "The view was built from other topics, or from another server",
        Retry.BATCH,
        cause="The topics were recreated and are shorter than what the view has applied, or the source is now"
        " another server.",
        remedy='Run `tailrace views rebuild VIEW`. A view of shape "history" or "log" cannot continue: leave it and'
        " declare another one.",
    ),
    ErrorCode(
        "TR-526",
        StateError,
        "The view was not maintained for longer than deletes stay on the topics",
        Retry.BATCH,
        cause="`tailrace views follow` did not run, or the view was parked, for longer than"
        " `kafka.delete_retention_ms`."
        " A delete may have been compacted away unseen.",
        remedy="Run `tailrace views rebuild VIEW`. To prevent it, load the alert TailraceViewStopsSoon.",
    ),
    ErrorCode(
        "TR-527",
        SinkError,
        "A Spark job failed",
        Retry.BATCH,
        cause="Spark, Iceberg or a file system reported an error that has no code of its own. The message has the"
        " cause, unless it may contain values of rows.",
        remedy="Do what the cause says. `TAILRACE_TRACE=1 tailrace views rebuild VIEW --no-swap` prints the whole"
        " error, which may contain values of rows; `views follow` may keep running.",
    ),
    ErrorCode(
        "TR-528",
        StateError,
        "The view is being rebuilt, compared or swapped by another process",
        cause="Another command on this host holds the rebuild lease of the view.",
        remedy="Wait for the other command or end it, then repeat this one.",
    ),
    ErrorCode(
        "TR-529",
        StateError,
        "Another process has held the lease of the view for too long",
        Retry.BATCH,
        cause="A batch or a rebuild of another process has had the lease for 600 s. The live generation is unchanged.",
        remedy="Look for a `tailrace views follow` or `rebuild` that hangs, end it, and repeat the command.",
    ),
    ErrorCode(
        "TR-530",
        SinkError,
        "A request to OpenSearch failed",
        Retry.BATCH,
        cause="The cluster cannot be reached, refuses the credentials or the certificate, or answers with an error."
        " DETAIL has its status and reason.",
        remedy="Test it: `curl URL/_cluster/health`. The settings are under `[search]`.",
    ),
    ErrorCode(
        "TR-531",
        SinkError,
        "OpenSearch refuses a document",
        Retry.BATCH,
        cause="A document does not fit the mapping or a limit of the index. DETAIL has operation, status, type of the"
        " error and field, never the value.",
        remedy="Look at the server's log and at the mapping: `curl URL/INDEX/_mapping`. Nothing is lost.",
    ),
    ErrorCode(
        "TR-532",
        SinkError,
        "A search view cannot be read at a finished cut",
        cause="A read of the view found a batch in progress each time: batches follow one another without a pause, or"
        " one was interrupted and no process continues it.",
        remedy="Start `tailrace views follow`, which finishes an interrupted batch; then read again.",
    ),
    ErrorCode(
        "TR-533",
        ConfigError,
        "A column has a type that OpenSearch does not support",
        Retry.BATCH,
        cause="The query of a search view returns a type, such as a map, that has no counterpart in OpenSearch.",
        remedy="Cast the column in `query`, for example to string.",
    ),
    ErrorCode(
        "TR-534",
        StateError,
        "The index of a search view is missing",
        Retry.BATCH,
        cause="It was deleted in OpenSearch, or restored without its mapping. A write would create an index of the same"
        " name, without the alias that searches use.",
        remedy="Run `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-535",
        ConfigError,
        "The layout of a view names a column that it lacks or cannot use so",
        Retry.BATCH,
        cause="`partition_by`, `sort_by`, `mapping` or `routing` names a column that the view does not have (any more),"
        " or a transform does not fit its type, or the column of `routing` is not part of the key: only the key of a"
        " deleted row is known, so its document could not be found.",
        remedy="Correct the setting; the error lists the columns.",
    ),
    ErrorCode(
        "TR-536",
        ConfigError,
        "The layout of a view sets what Tailrace relies on",
        Retry.BATCH,
        cause="A table property, an index setting or a parameter of a field would break a promise: how a batch is"
        " written and becomes visible, that every value can be stored, which states can be read back.",
        remedy="Take it out of `table_properties`, `index_settings` or `mapping` of the view.",
    ),
    ErrorCode(
        "TR-537",
        StateError,
        "The view was built with another layout",
        Retry.BATCH,
        cause="`partition_by`, `sort_by`, `deletes`, `mapping`, `index_settings` or `routing` of the view was changed"
        " since its live generation was built.",
        remedy="Run `tailrace views rebuild VIEW`, or undo the change. A view of shape `history` or `log` retains its"
        " history; one with soft deletes loses the deleted rows whose deletions are not on the topic any more.",
    ),
    ErrorCode(
        "TR-538",
        ConfigError,
        "A view with soft deletes has a table with a column `_deleted_at`",
        Retry.BATCH,
        cause='With `deletes = "soft"` the view has a column `_deleted_at` of its own, the time of a row\'s deletion.',
        remedy='Set `deletes = "hard"`, exclude the column (`source.exclude`), or rename it in the source.',
    ),
    ErrorCode(
        "TR-548",
        StateError,
        "The view was built from another query or key, or of another shape",
        Retry.BATCH,
        cause="`query`, `key` or `shape` of the view was changed since its live generation was built.",
        remedy='Run `tailrace views rebuild VIEW`. A view of shape "history" loses its history by that: undo the'
        " change, or give the new view another name.",
    ),
    ErrorCode(
        "TR-549",
        StateError,
        "The key of a view is not unique in the rows of its query",
        Retry.BATCH,
        cause="The query returns several rows with the same key, whether or not the keys of its tables rule that out.",
        remedy="Give `[views.NAME]` a `key` that identifies its rows, then run `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-550",
        ConfigError,
        "Spark cannot run the query of a view",
        Retry.BATCH,
        cause="Spark's analysis refuses the query: an unknown function, wrong types, or an ambiguity. The message has"
        " Spark's error condition.",
        remedy="Change `query` of `[views.NAME]`; try it with `tailrace views explain VIEW --check`.",
    ),
    ErrorCode(
        "TR-551",
        StateError,
        "The state that a view needs of one of its inputs is missing",
        Retry.BATCH,
        cause="A view or a base table that the query reads was rebuilt, or its snapshots expired, since the last"
        " batch of the view.",
        remedy="Run `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-560",
        StateError,
        "Versions that a history or log view needs may be compacted away",
        Retry.BATCH,
        cause="The view has not advanced for longer than `kafka.min_compaction_lag_ms`, so its topic may"
        " lack versions. DETAIL gives the LSN of the view.",
        remedy="Keep the view and declare another one, which begins now; or discard its rows: set `history_from` in"
        " `[views.NAME]`, then `tailrace views rebuild VIEW`.",
    ),
    ErrorCode(
        "TR-561",
        StateError,
        "The view does not go back to the requested LSN",
        cause="The LSN is before the start of a history view, or before the oldest snapshot of another view that has"
        " not expired.",
        remedy='Ask for a later LSN. A view of shape "history" keeps all states from its start on.',
    ),
    ErrorCode(
        "TR-562",
        StateError,
        "The view has not reached the requested LSN yet",
        cause="The LSN is past the last cut that was applied to the view.",
        remedy="Wait for it: `tailrace wait --lsn LSN --view VIEW`. See `tailrace views status`.",
    ),
    ErrorCode(
        "TR-563",
        ConfigError,
        "The shape of a view does not fit its other settings",
        cause='`history_from` needs `shape = "history"` or `"log"`; these shapes are of one table and in the'
        " warehouse.",
        remedy="Change the setting that the hint gives.",
    ),
    ErrorCode(
        "TR-564",
        ConfigError,
        "The table has a column with a name that the shape adds",
        Retry.BATCH,
        cause='Shapes such as "history" and "log" add columns of their own (`valid_from`, `op`, ...), and the table has'
        " one of these names.",
        remedy='Rename the column of the table, or use `shape = "current"`.',
    ),
    ErrorCode(
        "TR-565",
        ConfigError,
        "A view cannot start at its `history_from`",
        Retry.BATCH,
        cause="Versions from before that LSN may be compacted away, or were never on the topic.",
        remedy="Set `history_from` to the LSN of the hint or a later one, or remove it.",
    ),
    ErrorCode(
        "TR-566",
        StateError,
        "A column of a history has changed to a type that its old values cannot have",
        Retry.BATCH,
        cause="An ALTER TABLE changed the type, and the old versions keep values of the old one.",
        remedy="Leave the view as it is, and declare another one, which begins now.",
    ),
    ErrorCode(
        "TR-567",
        ConfigError,
        'The view is not of shape "history"',
        cause="Versions were requested (`tailrace.table(..., versions=True)`) of a view that has the present rows or"
        " changes only.",
        remedy='Declare a view with `shape = "history"`.',
    ),
    ErrorCode(
        "TR-570",
        DeadlineError,
        "Views did not reach the LSN in time",
        cause="`tailrace wait` or GET /wait ended at its timeout: the daemon or the views job does not run or lags,"
        " or a"
        " view is parked. DETAIL names each view with its LSN.",
        remedy="Look at `tailrace status` and `tailrace views status`; repeat with a longer `--timeout`.",
    ),
    ErrorCode(
        "TR-571",
        StateError,
        "The view has no such generation",
        cause="No generation is staged for a swap, or none has the given number. DETAIL lists them.",
        remedy="Build one: `tailrace views rebuild VIEW --no-swap`.",
    ),
    ErrorCode(
        "TR-572",
        StateError,
        "The view has no generation to go back to",
        cause="`tailrace views rollback` needs the generation that was live before, and it was dropped or never was.",
        remedy="Set `keep_generations` in `[views.NAME]` to keep more of them after a swap.",
    ),
    ErrorCode(
        "TR-573",
        FoundError,
        "Two generations of a view differ",
        cause="`tailrace views compare` compared the live and the staged generation at one cut and printed the keys.",
        remedy="If the difference is intended: `tailrace views swap VIEW`. Else change the query and rebuild.",
    ),
    ErrorCode(
        "TR-574",
        StateError,
        "Two generations of a view cannot be compared",
        cause="They have different keys, begin at different LSNs, or did not reach one cut in time because the live one"
        " was built from another query.",
        remedy="Do what the hint says: swap without a comparison (`tailrace views swap VIEW`), or run `tailrace views"
        " follow` with the former query meanwhile.",
    ),
    ErrorCode(
        "TR-575",
        ConfigError,
        "Dropping a view that readers see needs a confirmation",
        cause="`tailrace views drop` was asked to drop the live generation.",
        remedy="Repeat it with the name: `tailrace views drop VIEW --confirm VIEW`, and remove the view from the"
        " configuration.",
    ),
    ErrorCode(
        "TR-576",
        StateError,
        "The retry of a parked view failed",
        cause="`tailrace views resume` retried a parked view, and its batch failed. DETAIL has the error.",
        remedy="Do what that error says (`tailrace explain CODE`). `tailrace views follow` tries the view again, too.",
    ),
    ErrorCode(
        "TR-577",
        DeadlineError,
        "No process has retried the view in time",
        cause="`tailrace views resume` waits for the `tailrace views follow` of this host, which does not run.",
        remedy="Run `tailrace views follow`.",
    ),
    ErrorCode(
        "TR-578",
        None,
        "The parameters of GET /wait cannot be used (HTTP 400)",
        cause='`lsn` is missing or not in the form "0/16B3748", or `timeout` is not a number of seconds.',
        remedy="Request `/wait?lsn=0/16B3748&view=orders&timeout=30`.",
    ),
    ErrorCode(
        "TR-579",
        StateError,
        "The topics have no state yet to build the view from",
        cause="The first snapshot is not complete, or the daemon has not run.",
        remedy="Look at `tailrace status` and `tailrace snapshot status`, and repeat the command later.",
    ),
    ErrorCode(
        "TR-580",
        ConfigError,
        "A view reads itself",
        cause="The queries of views form a cycle. DETAIL lists it.",
        remedy="Change `query` of one of them.",
    ),
    ErrorCode(
        "TR-581",
        ConfigError,
        "A query reads a view that cannot be read by queries",
        cause='Queries can read views of shape "current" or "history" in the warehouse only.',
        remedy="Declare another view with the same query for the warehouse, and read that one.",
    ),
    ErrorCode(
        "TR-582",
        StateError,
        "A view waits for a view that it reads",
        Retry.ROUND,
        cause="The view below is parked or is not at the cut yet. DETAIL has its error.",
        remedy="Do what the error of the view below says; this one continues by itself.",
    ),
    ErrorCode(
        "TR-583",
        StateError,
        "A view that a batch reads was rebuilt during the batch",
        Retry.ROUND,
        cause="The rebuild has replaced the states that the batch reads.",
        remedy="Nothing: the next batch starts over.",
    ),
    ErrorCode(
        "TR-584",
        StateError,
        "A view waits for tables that are being read",
        Retry.ROUND,
        cause="A table that the view reads is incomplete: its snapshot runs, or it is parked. No cut is a state of all"
        " its tables.",
        remedy="Nothing, while a snapshot runs: `tailrace snapshot status`. A parked table needs `tailrace table"
        " resume schema.table`.",
    ),
    ErrorCode(
        "TR-585",
        None,
        "Too many requests of GET /wait at once (HTTP 503)",
        cause="The daemon holds a limited number of waits, and all of them are in use.",
        remedy="Ask again later, or wait in the application: `tailrace.Views` shares one consumer between threads.",
    ),
    ErrorCode(
        "TR-586",
        SinkError,
        "A wait ended because its process stopped",
        cause="The daemon was stopped while a request of GET /wait was open, or `tailrace.Views` was closed during a"
        " wait.",
        remedy="Repeat the request.",
    ),
    ErrorCode(
        "TR-590",
        None,
        "Stored queries of a percolate view are parked (warning)",
        cause="OpenSearch refuses these queries, or they contain a script. The view matches all others.",
        remedy="`tailrace views explain VIEW` lists them with the reason; correct them in their table.",
    ),
    ErrorCode(
        "TR-591",
        StateError,
        "Changes that a percolate view needs may be compacted away",
        Retry.BATCH,
        cause="The view has not advanced for longer than `kafka.min_compaction_lag_ms`.",
        remedy="Run `tailrace views rebuild VIEW`: it continues from now, and changes in between are not matched.",
    ),
    ErrorCode(
        "TR-592",
        StateError,
        "A percolate view cannot continue in its table",
        cause="The table was built from another definition, or has matches that are past the end of the topics.",
        remedy="Leave the view as it is, and declare another one, which begins now.",
    ),
    ErrorCode(
        "TR-593",
        ConfigError,
        "The index of queries does not have exactly one percolator field",
        Retry.BATCH,
        cause="`queries_index` names an index whose mapping has no field of type `percolator`, or several.",
        remedy='Create the index with `"mappings": {"properties": {"query": {"type": "percolator"}, ...}}`.',
    ),
    ErrorCode(
        "TR-594",
        ConfigError,
        "The table of stored queries lacks the column or a key",
        Retry.BATCH,
        cause="`queries` names a column that the table does not have, or a table without a key.",
        remedy='Correct it: `queries = "schema.table.column"`. A table needs a primary key.',
    ),
    ErrorCode(
        "TR-595",
        StateError,
        "The matches topic is ahead of the view",
        Retry.BATCH,
        cause="The topics of the pipeline were recreated, and matches from the former ones had already been forwarded.",
        remedy="Declare the view under another name: its matches get a topic of their own.",
    ),
)
