"""TR-3xx: Kafka, the topics on it, and the schema registry."""

from __future__ import annotations

from typing import Final

from tailrace.schemas.error_codes.entry import ErrorCode, Retry
from tailrace.schemas.errors import ConfigError, SinkError, SourceError, StateError

CODES: Final = (
    ErrorCode(
        "TR-301",
        SinkError,
        "Kafka does not answer",
        Retry.OUTAGE,
        cause="No broker can be reached at `kafka.bootstrap`, or the options do not fit the listener (TLS, SASL).",
        remedy="Check that the brokers run: `kcat -b HOST:PORT -L`. Compare `kafka.options` with the listener.",
    ),
    ErrorCode(
        "TR-302",
        SinkError,
        "A topic has a setting that can lose state",
        cause="A topic exists with another `cleanup.policy`, compaction lag or record size than Tailrace needs. See it"
        " with `kafka-configs.sh --describe --entity-type topics --entity-name TOPIC`.",
        remedy="Run the command of the hint: `kafka-configs.sh --alter --entity-type topics --entity-name TOPIC"
        " --add-config name=value`.",
    ),
    ErrorCode(
        "TR-303",
        SinkError,
        "Kafka refused a request",
        Retry.OUTAGE,
        cause="A broker answered with an error that is neither an outage nor a fenced producer, for example a missing"
        " right or a topic that was deleted. The message is Kafka's own.",
        remedy="Do what the message says. A missing right is granted with `kafka-acls.sh`; the broker's log has the"
        " context.",
    ),
    ErrorCode(
        "TR-304",
        SourceError,
        "The record of a row is too large for Kafka",
        parks_table=True,
        cause="The encoded row is larger than `kafka.max_message_bytes`, less 1 KiB for headers.",
        remedy='Raise `kafka.max_message_bytes`, exclude a large column (`exclude = ["schema.table.column"]` under'
        ' `[source]`), or set `on_table_error = "divert"`. Then run `tailrace table resume schema.table`.',
    ),
    ErrorCode(
        "TR-305",
        SinkError,
        "Another producer has fenced this one",
        Retry.RESTART,
        cause="Another daemon with the same `source.slot` and `kafka.prefix` has started, or a Kafka transaction took"
        " longer than its timeout. Nothing is lost or sent twice: the open transaction is aborted.",
        remedy="Nothing, if a second daemon is intended: this one becomes the standby. Else stop one of them.",
    ),
    ErrorCode(
        "TR-306",
        ConfigError,
        "The Kafka client does not accept its options",
        cause="`kafka.options` or `kafka.secret_options` has an unknown name, a value out of range, or a file that"
        " cannot be read.",
        remedy="Use the names of librdkafka's configuration. Files must be readable by the user of the process.",
    ),
    ErrorCode(
        "TR-307",
        SinkError,
        "A record is larger than the Kafka client may send",
        parks_table=True,
        cause="A record that is not a row of a table (a schema, a position, matches) is larger than"
        " `kafka.max_message_bytes`.",
        remedy="Raise `kafka.max_message_bytes` and the topic's `max.message.bytes`.",
    ),
    ErrorCode(
        "TR-330",
        SinkError,
        "A topic of the pipeline cannot be read",
        Retry.OUTAGE,
        cause="No broker answers at `kafka.bootstrap`, the credentials are wrong, or the user may not read the topic."
        " DETAIL has the reason of the client.",
        remedy="Try `kcat -b HOST:PORT -L`. For certificates: `openssl s_client -connect HOST:PORT -CAfile FILE`.",
    ),
    ErrorCode(
        "TR-331",
        SinkError,
        "A topic has a record that Tailrace did not write",
        cause="A record lacks the position header, or does not have the framing of a schema id. Another program writes"
        " to the topic.",
        remedy="Stop the other writer, or give this pipeline a `kafka.prefix` of its own.",
    ),
    ErrorCode(
        "TR-332",
        SinkError,
        "The schema of a record is not on the schemas topic",
        cause="`tailrace tail` or `verify` read a record whose schema id is unknown: the schemas topic was deleted, or"
        " `kafka.prefix` names another pipeline.",
        remedy="Check `kafka.prefix` with `tailrace config show`.",
    ),
    ErrorCode(
        "TR-333",
        SinkError,
        "A topic cannot be read to its end",
        cause="No record arrived for 30 s although the end was not reached, or the client reports a permanent error.",
        remedy="Check that all brokers run: `kcat -b HOST:PORT -L` shows partitions without a leader. If the topic was"
        " deleted, `tailrace table list` says how to continue (TR-424).",
    ),
    ErrorCode(
        "TR-340",
        SinkError,
        "A request to the schema registry failed",
        Retry.OUTAGE,
        cause="The registry is down, does not accept the credentials or the certificate, or answers with an error."
        " Known schemas are still used; only a new one waits for it.",
        remedy="Test it: `curl URL/subjects`. The settings are `url`, `user`, `password_file` and `ca_file` under"
        " `[registry]`.",
    ),
    ErrorCode(
        "TR-341",
        SinkError,
        "The table has no records on Kafka yet",
        cause="`tailrace verify` was run before the daemon wrote a record of the table, or the table is not captured.",
        remedy="Check `source.tables`, and that `tailrace run` is running: `tailrace status`.",
    ),
    ErrorCode(
        "TR-342",
        SinkError,
        "The topics did not reach the LSN of `tailrace verify` in time",
        cause="The daemon does not run, or has more to read than it could within the time limit. DETAIL gives both"
        " LSNs.",
        remedy="Look at `tailrace status`; start the daemon with `tailrace run`, or repeat with a longer `--timeout`.",
    ),
    ErrorCode(
        "TR-343",
        SinkError,
        "A view did not reach the LSN of `tailrace verify` in time",
        cause="`tailrace views follow` does not run or lags, the view is parked, or a table that it reads is parked or"
        " being read again. DETAIL says which.",
        remedy="Look at `tailrace views status` and `tailrace snapshot status`; start `tailrace views follow`, or"
        " repeat"
        " with a longer `--timeout`.",
    ),
    ErrorCode(
        "TR-344",
        ConfigError,
        "A table without a key cannot be compared",
        cause="Its topic is a log of events: no column identifies the newest record of a row.",
        remedy="Leave the view out of `tailrace verify`. To compare rows, give the table a primary key and start with"
        " another `kafka.prefix`.",
    ),
    ErrorCode(
        "TR-345",
        StateError,
        "The schema registry refuses a schema",
        parks_table=True,
        cause="The new schema breaks the compatibility rule of its subject. DETAIL has the registry's reason.",
        remedy="If all readers accept it, lift the rule while it is registered (`curl -X PUT ... /config/SUBJECT` as in"
        " the hint), then run `tailrace run`, or `tailrace table resume schema.table` if the table was parked.",
    ),
    ErrorCode(
        "TR-346",
        StateError,
        "The schema registry is not the one that the ids come from",
        cause="The registry has no schema, or another one, under an id that the topics use: `registry.url` was changed,"
        " or the registry has lost its data.",
        remedy="Restore the registry, or undo the change of `registry.url`. Else use another `kafka.prefix` (and slot)"
        " to copy all tables again.",
    ),
    ErrorCode(
        "TR-347",
        StateError,
        "Schema ids of a registry and of Tailrace would be mixed",
        cause="`registry.url` was set or removed for a pipeline that has schemas already. One id would refer to"
        " two schemas.",
        remedy="Undo the change. Else use another `kafka.prefix` (and slot) to copy all tables again.",
    ),
    ErrorCode(
        "TR-348",
        SinkError,
        "There is no position record of the slot",
        cause="`tailrace verify --log` was run before the first start, or with another `source.slot` or"
        " `kafka.prefix`.",
        remedy="Check both with `tailrace config show`; start the daemon with `tailrace run`.",
    ),
    ErrorCode(
        "TR-349",
        ConfigError,
        "The TLS files of an HTTP server cannot be used",
        cause="A `ca_file`, `cert_file` or `key_file` of `[registry]` or `[search]` does not exist, cannot be read, is"
        " not PEM, or a certificate and its key do not match.",
        remedy="Check them: `openssl x509 -in FILE -noout -subject`, `ls -l FILE`.",
    ),
)
