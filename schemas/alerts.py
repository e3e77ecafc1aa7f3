"""The table of alerts for Prometheus; rule files and reference page are made from it.

The scrape jobs are called `tailrace` (the daemons) and `tailrace-views`. Metrics are named by `schemas.metrics.named`,
so that a name that no process exports is an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tailrace.schemas.metrics import named

_ANY_INSTANCE: Final = "without (instance, pod)"
"""A restarted job may have another address; the deadlines of its views are those that it had before."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires after `minutes` in which `expr` has a value.

    `summary` may use Prometheus' templates. `meaning` says what has happened, `remedy` what to do.
    """

    name: str
    severity: Literal["critical", "warning"]
    minutes: int
    expr: str
    summary: str
    meaning: str
    remedy: str


def _down(job: str) -> str:
    return f'sum(up{{job="{job}"}}) == 0 or absent(up{{job="{job}"}})'


def _stops_soon(share: float) -> str:
    """Return the expression for views whose time left is below a share of the limit, also while no job runs."""
    stop, limit = named("view_stop_timestamp_seconds"), named("view_stop_limit_seconds")
    left = f"max {_ANY_INSTANCE} (last_over_time({stop}[1d])) - time()"
    return f"{left} < {share} * max {_ANY_INSTANCE} (last_over_time({limit}[1d]))"


_STOP_MEANING: Final = (
    "The view advances no more, or its job does not run. If it has not advanced when the time is over, it stops for"
    " good: deletes have left the topics (TR-526), or versions of rows may be compacted away (TR-560 and TR-591)."
)
_STOP_REMEDY: Final = (
    "Start `tailrace views follow`, or find out with `tailrace views status VIEW` why the view does not advance. If"
    " that needs longer, raise `kafka.delete_retention_ms` and `kafka.min_compaction_lag_ms`, and the topics' settings."
)

DAEMON_ALERTS: Final = (
    Alert(
        "TailraceDaemonDown",
        "critical",
        2,
        _down("tailrace"),
        "No Tailrace daemon answers",
        "No daemon of the scrape job `tailrace` answers. Changes wait in the slot, and the server retains their WAL.",
        "Read the log of `tailrace run` and `tailrace status`. After exit code 2, 3 or 6 a person has to act first.",
    ),
    Alert(
        "TailraceDaemonNotReady",
        "critical",
        5,
        f"{named('ready')} == 0",
        "The Tailrace daemon at {{ $labels.instance }} is not ready",
        "The daemon runs, and no changes flow. A standby is ready.",
        "`/readyz` and `tailrace status` name the reason.",
    ),
    Alert(
        "TailraceSlotFilling",
        "critical",
        5,
        f"{named('slot_full_timestamp_seconds')} - time() < 4 * 3600",
        "The replication slot reaches its limit in {{ $value | humanizeDuration }}",
        "At the present rate, the WAL that the server retains for the slot reaches `max_slot_wal_keep_size` in less"
        " than four hours. Then the server invalidates the slot, and all tables have to be read again.",
        "The log names the transaction or the daemon that holds the slot. End it, or raise `max_slot_wal_keep_size`.",
    ),
    Alert(
        "TailraceSlotLosing",
        "critical",
        0,
        f'{named("slot_wal_status")}{{status=~"unreserved|lost"}} == 1',
        "The replication slot is {{ $labels.status }}",
        "The server no longer reserves the WAL of the slot: `unreserved` until the next checkpoint, then `lost`.",
        "Unreserved: raise `max_slot_wal_keep_size` at once. Lost: see docs/how-to/lost-slot.md.",
    ),
    Alert(
        "TailraceStalled",
        "critical",
        1,
        f"{named('stalled')} == 1",
        "The position of the Tailrace daemon at {{ $labels.instance }} does not move",
        "There is WAL, and the position has not moved for `health.stall_s`.",
        "The log and `/readyz` name the cause, for example a Kafka transaction that does not end.",
    ),
    Alert(
        "TailraceLag",
        "warning",
        5,
        f"{named('lag_seconds')} > 300",
        "A change has waited for {{ $value | humanizeDuration }} to be in Kafka",
        "The oldest committed change of a captured table that is not in Kafka is older than five minutes.",
        "A very large transaction passes by itself. Otherwise `tailrace status` and the log name what the daemon"
        " waits for.",
    ),
    Alert(
        "TailraceSourceSilent",
        "warning",
        5,
        f"time() - {named('looked_timestamp_seconds')} > 120",
        "The state of the source has been unknown for {{ $value | humanizeDuration }}",
        "The daemon could not ask PostgreSQL for its WAL and the slot. Lag and size of the slot are unknown.",
        "Is PostgreSQL reachable? `tailrace status` prints its answer.",
    ),
    Alert(
        "TailraceErrorsRepeat",
        "warning",
        0,
        f"sum without (code) (increase({named('errors_total')}[30m])) > 5",
        "The Tailrace daemon at {{ $labels.instance }} starts over again and again",
        "More than five sessions have ended with an error in half an hour. Each is retried.",
        "The metric has the codes by its label; `tailrace explain CODE` has cause and remedy.",
    ),
    Alert(
        "TailraceTableParked",
        "warning",
        0,
        f"{named('parked_tables')} == 1",
        "Table {{ $labels.table }} is parked ({{ $labels.code }})",
        "The table's changes are not written. All other tables continue; views that read the table wait.",
        "`tailrace table list` prints cause and remedy; see docs/how-to/parked-table.md.",
    ),
    Alert(
        "TailraceTableIncomplete",
        "warning",
        30,
        f"{named('incomplete_tables')} > 0 unless on (job, instance)"
        f" (sum by (job, instance) (changes({named('snapshot_rows')}[30m])) > 0)",
        "{{ $value }} tables are incomplete, and none of them is being read",
        "No cut is a state of these tables, and no rows of them have been read for half an hour. Views that read"
        " them wait.",
        "`tailrace table list` and `tailrace snapshot status` name them: parked, unpublished, paused or without the"
        " right to be read.",
    ),
    Alert(
        "TailraceTableMissing",
        "warning",
        15,
        f"{named('missing_tables')} > 0",
        "{{ $value }} tables match source.tables and are not published",
        "Changes of these tables are not captured.",
        "`tailrace status` prints the statement for each; or exclude them in `source.tables`.",
    ),
    Alert(
        "TailraceDeadLetters",
        "warning",
        0,
        f"increase({named('diverted_changes_total')}[1h]) > 0",
        "Changes were diverted to the dead-letter topic",
        'With `source.on_table_error = "divert"`, changes that a topic cannot hold are on `{prefix}.tailrace.dead`.'
        " Their rows are absent from topics and views.",
        "`tailrace verify VIEW` names the rows; `as_text` or `exclude` in `[source]` let their columns be stored.",
    ),
)
"""Alerts of `tailrace run`."""

VIEWS_ALERTS: Final = (
    Alert(
        "TailraceViewsDown",
        "critical",
        5,
        _down("tailrace-views"),
        "The Tailrace views job does not answer",
        "No job of the scrape job `tailrace-views` answers. Views do not advance. The topics keep their changes for a"
        " limited time; see TailraceViewStopsSoon.",
        "Read the log of `tailrace views follow`. After exit code 2, 3 or 6 a person has to act first.",
    ),
    Alert(
        "TailraceViewsNotReady",
        "critical",
        10,
        f"{named('views_ready')} == 0",
        "The Tailrace views job at {{ $labels.instance }} is not ready",
        "Spark is still starting, Kafka cannot be read, or all views are parked.",
        "`/readyz` on `health.views_listen` names the reason.",
    ),
    Alert(
        "TailraceViewLag",
        "warning",
        10,
        f"{named('view_lag_seconds')} > 600",
        "View {{ $labels.view }} lacks changes of the last {{ $value | humanizeDuration }}",
        "The oldest change on the topics that the view lacks is older than ten minutes.",
        "See TailraceViewParked and TailraceViewWaiting. Otherwise its batches take too long: the stage is in"
        f" `{named('view_batch_seconds_sum')}`, and `tailrace views explain VIEW` shows what a change reads.",
    ),
    Alert(
        "TailraceViewParked",
        "warning",
        5,
        f"{named('view_parked')} == 1",
        "View {{ $labels.view }} is parked ({{ $labels.code }})",
        "The batches of the view fail; they are tried again every five minutes. Other views advance.",
        "`tailrace views status VIEW` prints error and remedy. Then `tailrace views resume VIEW` tries at once.",
    ),
    Alert(
        "TailraceViewDiffers",
        "critical",
        0,
        f"{named('verify_differences')} > 0",
        "{{ $value }} keys of view {{ $labels.view }} differ from the topics",
        "The newest comparison by `[verify]` has found rows that are wrong, in the view or in a base table that it"
        " reads. Batches continue.",
        "`tailrace verify VIEW --all` prints the rows, `tailrace verify VIEW --all --repair` repairs them. Then find"
        " out who else writes to the table or index.",
    ),
    Alert(
        "TailraceViewWaiting",
        "warning",
        60,
        f"{named('view_waiting')} == 1",
        "View {{ $labels.view }} has waited for an hour ({{ $labels.code }})",
        "A table that the view reads is incomplete: it is being read, or parked.",
        "`tailrace snapshot status` shows how far a read is, `tailrace table list` a parked table.",
    ),
    Alert(
        "TailraceViewStopsSoon",
        "warning",
        5,
        _stops_soon(0.5),
        "View {{ $labels.view }} stops with {{ $labels.code }} in {{ $value | humanizeDuration }}",
        f"Less than half of the time is left. {_STOP_MEANING}",
        _STOP_REMEDY,
    ),
    Alert(
        "TailraceViewStopsVerySoon",
        "critical",
        5,
        _stops_soon(0.25),
        "View {{ $labels.view }} stops with {{ $labels.code }} in {{ $value | humanizeDuration }}",
        f"Less than a quarter of the time is left, or none. {_STOP_MEANING}",
        f"{_STOP_REMEDY} A view that has stopped: `tailrace explain CODE`.",
    ),
)
"""Alerts of `tailrace views follow`."""
