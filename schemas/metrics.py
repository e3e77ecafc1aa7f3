"""The table of all metrics: what `tailrace run` and `tailrace views follow` export, in base units.

Reference page, alerts and dashboard are made from it. Names lack the prefix ``tailrace_`` and, for counters, the suffix
``_total``. Times are timestamps rather than ages, so that `time() - x` grows while a process does not answer. A lag is
an age: it grows while a change is missing and is 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "tailrace_"


@dataclass(frozen=True, slots=True)
class Description:
    """The kind, help text and labels of a metric; `when` says when it is absent."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    when: str = ""


_STARTED = "absent until the first Kafka transaction"
_ASKED = "absent until the source has been asked"
_LAG = "absent at a start and while the source cannot be asked"

DAEMON: Final = {
    "build_info": Description("gauge", "1, with the version.", ("version",)),
    "state": Description("gauge", "1 for the daemon's current state, 0 for the others.", ("state",)),
    "ready": Description("gauge", "1 if /readyz answers 200."),
    "stalled": Description("gauge", "1 if the position does not move although the server writes WAL."),
    "sessions": Description("counter", "Sessions started, including the first."),
    "errors": Description("counter", "Errors that ended a session, by code.", ("code",)),
    "flushed_lsn_bytes": Description("gauge", "LSN up to which Kafka has all changes.", when=_STARTED),
    "source_commit_timestamp_seconds": Description(
        "gauge", "Source commit time of the newest transaction in Kafka.", when="absent until a change is in Kafka"
    ),
    "incomplete_tables": Description("gauge", "Tables of which no cut is a state.", when=_STARTED),
    "parked_tables": Description("gauge", "1 for each parked table, by the code of its error.", ("table", "code")),
    "diverted_changes": Description("counter", "Changes in the dead-letter topic.", when=_STARTED),
    "table_diverted_changes": Description(
        "counter",
        "Changes of a table in the dead-letter topic, of the 100 tables with the newest ones; without those of versions"
        " that did not count by table.",
        ("table",),
    ),
    "table_diverted_timestamp_seconds": Description("gauge", "Time of a table's newest dead letter.", ("table",)),
    "last_commit_timestamp_seconds": Description(
        "gauge", "Time of the newest commit of a Kafka transaction.", when=_STARTED
    ),
    "lag_seconds": Description(
        "gauge", "Age of the oldest committed change that is not in Kafka; 0 if there is none.", when=_LAG
    ),
    "complete_timestamp_seconds": Description(
        "gauge", "Kafka has everything that was committed by this time: the time of the scrape less the lag.", when=_LAG
    ),
    "kafka_transactions": Description("counter", "Transactions committed to Kafka."),
    "records": Description("counter", "Records committed to Kafka, by topic.", ("topic",)),
    "snapshot_chunks": Description("gauge", "Chunks of a table's newest read: done or left.", ("table", "state")),
    "snapshot_bytes": Description("gauge", "Bytes of the table in these chunks: done or left.", ("table", "state")),
    "snapshot_rows": Description("gauge", "Rows sent by a table's newest read.", ("table",)),
    "heartbeats": Description("counter", "Logical messages written to move the slot."),
    "missing_tables": Description("gauge", "Tables that match source.tables and are in no publication.", when=_ASKED),
    "server_wal_lsn_bytes": Description("gauge", "LSN of the end of the server's WAL.", when=_ASKED),
    "looked_timestamp_seconds": Description("gauge", "Time of the newest query of the source's state.", when=_ASKED),
    "slot_confirmed_flush_lsn_bytes": Description("gauge", "LSN confirmed to the server.", when=_ASKED),
    "slot_retained_wal_bytes": Description("gauge", "WAL that the server retains for the slot.", when=_ASKED),
    "slot_safe_wal_bytes": Description(
        "gauge", "WAL that can be written until the slot may be lost.", when="absent without max_slot_wal_keep_size"
    ),
    "slot_full_timestamp_seconds": Description(
        "gauge", "Time at which the slot reaches its limit at the present rate.", when="absent if it does not fill"
    ),
    "slot_wal_status": Description("gauge", "1 for the slot's pg_replication_slots.wal_status.", ("status",)),
}
"""Metrics of `tailrace run`."""

_KNOWN = "absent until the view's position is known"
_LEVEL = "absent until the view's position is known and while Kafka does not answer"

VIEWS: Final = {
    "build_info": DAEMON["build_info"],
    "views_ready": Description("gauge", "1 if /readyz answers 200."),
    "views_looked_timestamp_seconds": Description(
        "gauge", "Time of the newest successful look at the topics' position.", when="absent before the first"
    ),
    "view_lag_seconds": Description(
        "gauge",
        "Age of the oldest committed change on the topics that the view lacks; 0 if there is none. Changes that are not"
        " on the topics yet: tailrace_lag_seconds.",
        ("view",),
        when=_LEVEL,
    ),
    "view_lag_bytes": Description(
        "gauge", "WAL between the view's LSN and that of the topics; 0 if it lacks no change.", ("view",), when=_LEVEL
    ),
    "view_lag_records": Description(
        "gauge", "Records of its topics that the view lacks; markers of transactions count.", ("view",), when=_LEVEL
    ),
    "view_applied_lsn_bytes": Description("gauge", "LSN that the view has applied.", ("view",), when=_KNOWN),
    "view_level_timestamp_seconds": Description(
        "gauge", "Newest time at which the view is known to have had all records of its topics.", ("view",), when=_KNOWN
    ),
    "view_stop_timestamp_seconds": Description(
        "gauge",
        "Time at which the view stops with the error of the label, and needs a person, if it does not advance before:"
        " TR-526 when deletes leave the topics, TR-560 and TR-591 when compaction may remove versions.",
        ("view", "code"),
        when=_KNOWN,
    ),
    "view_stop_limit_seconds": Description(
        "gauge", "Time that the view may be without an advance before it stops with this error.", ("view", "code")
    ),
    "view_parked": Description(
        "gauge", "1 while a view is parked: its last batch failed with this code.", ("view", "code")
    ),
    "view_waiting": Description(
        "gauge", "1 while a view waits for tables that are incomplete, by the code of the reason.", ("view", "code")
    ),
    "view_failures": Description("counter", "Batches that failed, by the code of the error.", ("view", "code")),
    "view_batches": Description("counter", "Batches that changed the view or its position.", ("view",)),
    "view_rows": Description("counter", "Rows or records that these batches applied.", ("view",)),
    "view_late_rows": Description("counter", "Late rows that these batches counted.", ("view",)),
    "view_batch_timestamp_seconds": Description(
        "gauge", "Time at which the newest of these batches ended.", ("view",), when="absent before the first"
    ),
    "verified_timestamp_seconds": Description(
        "gauge",
        "Time of the newest state of the view that was compared with its content from the topics (`[verify]`).",
        ("view",),
        when="absent before the first",
    ),
    "verify_differences": Description(
        "gauge",
        "Keys that differed then, in the view and the base tables that it reads; absent after a repair until the next"
        " comparison.",
        ("view",),
        when="absent before the first",
    ),
    "verify_failures": Description(
        "counter", "Comparisons that failed, by the code of the error; the view is not affected.", ("view", "code")
    ),
    "view_batch_seconds": Description(
        "histogram",
        "Duration of the stages of these batches: read (and decode), apply (look up, compute, write and commit),"
        " publish (the position); queries (percolate views) and copy (rebuilt histories).",
        ("view", "stage"),
    ),
}
"""Metrics of `tailrace views follow`; labels are bounded by the declared views, the error codes and the stages."""


def exported(descriptions: Mapping[str, Description]) -> Iterator[str]:
    """Yield the names of the samples of metrics, as they are in a scrape."""
    suffixes = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    for name, each in descriptions.items():
        yield from (f"{PREFIX}{name}{suffix}" for suffix in suffixes[each.kind])


NAMES: Final = frozenset((*exported(DAEMON), *exported(VIEWS)))
"""Names of all samples that our processes export."""


def named(name: str) -> str:
    """Return the full name of a sample, for example of `errors_total`; KeyError if no process exports it."""
    full = f"{PREFIX}{name}"
    if full not in NAMES:
        raise KeyError(f"no metric has samples with the name {full}")
    return full
