"""Files of docker/monitoring that are made from the code: Prometheus rules and a Grafana dashboard.

Names of metrics come from `schemas/metrics.py`, alerts from `schemas/alerts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml
from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

from tailrace.schemas.alerts import Alert
from tailrace.schemas.metrics import named

_MADE: Final = "# Made by docs/generate.py from schemas/alerts.py. Do not edit.\n"


def rules(group: str, alerts: Sequence[Alert]) -> str:
    """Return a rule file of Prometheus with one group."""
    found = [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": f"{each.minutes}m",
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "description": f"{each.meaning} {each.remedy}"},
        }
        for each in alerts
    ]
    groups = {"groups": [{"name": group, "rules": found}]}
    return _MADE + yaml.safe_dump(groups, sort_keys=False, width=120, allow_unicode=True)


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: pairs of expression and legend, and the unit of its values as Grafana names it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""


_DAEMON: Final = '{job="tailrace"}'
_OF_VIEWS: Final = '{job="tailrace-views", view=~"$view"}'


def _daemon(name: str) -> str:
    return f"{named(name)}{_DAEMON}"


def _view(name: str) -> str:
    return f"{named(name)}{_OF_VIEWS}"


_ROWS: Final = {
    "Daemon": (
        Panel(
            "Lag of the topics", "s", ((_daemon("lag_seconds"), "{{instance}}"),), "Age of the oldest missing change."
        ),
        Panel(
            "Ready and stalled",
            "short",
            ((_daemon("ready"), "ready {{instance}}"), (_daemon("stalled"), "stalled {{instance}}")),
        ),
        Panel("State", "short", ((f"{_daemon('state')} == 1", "{{state}} {{instance}}"),)),
        Panel("Records", "cps", ((f"sum by (topic) (rate({_daemon('records_total')}[5m]))", "{{topic}}"),)),
        Panel("Kafka transactions", "cps", ((f"rate({_daemon('kafka_transactions_total')}[5m])", "{{instance}}"),)),
        Panel(
            "Errors and dead letters",
            "short",
            (
                (f"increase({_daemon('errors_total')}[5m])", "{{code}}"),
                (f"increase({_daemon('diverted_changes_total')}[5m])", "dead letters"),
            ),
        ),
    ),
    "Slot": (
        Panel(
            "WAL retained for the slot",
            "bytes",
            (
                (_daemon("slot_retained_wal_bytes"), "retained"),
                (_daemon("slot_safe_wal_bytes"), "left until the limit"),
            ),
        ),
        Panel("Time until the slot is full", "s", ((f"{_daemon('slot_full_timestamp_seconds')} - time()", "left"),)),
        Panel("Status of the slot", "short", ((f"{_daemon('slot_wal_status')} == 1", "{{status}}"),)),
        Panel(
            "WAL after the topics",
            "bytes",
            ((f"{_daemon('server_wal_lsn_bytes')} - {_daemon('flushed_lsn_bytes')}", "{{instance}}"),),
        ),
    ),
    "Tables": (
        Panel(
            "Tables that need attention",
            "short",
            (
                (_daemon("incomplete_tables"), "incomplete"),
                (_daemon("missing_tables"), "not published"),
                (_daemon("parked_tables"), "parked: {{table}} {{code}}"),
            ),
        ),
        Panel(
            "Bytes left to read",
            "bytes",
            ((f'{named("snapshot_bytes")}{{job="tailrace", state="left"}}', "{{table}}"),),
        ),
        Panel("Rows read", "short", ((_daemon("snapshot_rows"), "{{table}}"),)),
    ),
    "Views": (
        Panel(
            "Lag of the views",
            "s",
            ((_view("view_lag_seconds"), "{{view}}"),),
            "Age of the oldest change on the topics that the view lacks.",
        ),
        Panel("Records that the views lack", "short", ((_view("view_lag_records"), "{{view}}"),)),
        Panel("WAL that the views lack", "bytes", ((_view("view_lag_bytes"), "{{view}}"),)),
        Panel(
            "Parked and waiting views",
            "short",
            (
                (_view("view_parked"), "parked: {{view}} {{code}}"),
                (_view("view_waiting"), "waiting: {{view}} {{code}}"),
            ),
        ),
        Panel(
            "Keys that differ from the topics",
            "short",
            ((_view("verify_differences"), "{{view}}"),),
            "Of the newest comparison, if [verify] is on.",
        ),
        Panel("Time since the comparison", "s", ((f"time() - {_view('verified_timestamp_seconds')}", "{{view}}"),)),
        Panel(
            "Time until the views stop",
            "s",
            ((f"{_view('view_stop_timestamp_seconds')} - time()", "{{view}} {{code}}"),),
            "Unless they advance before.",
        ),
        Panel(
            "Duration of a batch by stage (95 %)",
            "s",
            (
                (
                    "histogram_quantile(0.95, sum by (view, stage, le)"
                    f" (rate({_view('view_batch_seconds_bucket')}[5m])))",
                    "{{view}} {{stage}}",
                ),
            ),
        ),
        Panel("Batches", "cps", ((f"rate({_view('view_batches_total')}[5m])", "{{view}}"),)),
        Panel(
            "Rows",
            "cps",
            (
                (f"rate({_view('view_rows_total')}[5m])", "{{view}}"),
                (f"rate({_view('view_late_rows_total')}[5m])", "{{view}}, late"),
            ),
        ),
        Panel("Failed batches", "short", ((f"increase({_view('view_failures_total')}[5m])", "{{view}} {{code}}"),)),
    ),
    "Processes": (
        Panel(
            "Memory",
            "bytes",
            (('process_resident_memory_bytes{job=~"tailrace|tailrace-views"}', "{{job}} {{instance}}"),),
        ),
        Panel(
            "CPU",
            "short",
            (('rate(process_cpu_seconds_total{job=~"tailrace|tailrace-views"}[5m])', "{{job}} {{instance}}"),),
        ),
    ),
}

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")


def board() -> str:
    """Return the dashboard as Grafana imports it."""
    found = (
        dashboard.Dashboard("Tailrace")
        .uid("tailrace")
        .description("Made by docs/generate.py from the metrics of the code.")
        .tags(["tailrace"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("view")
            .label("View")
            .datasource(_SOURCE)
            .query(f"label_values({named('view_stop_limit_seconds')}, view)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(VariableOption(text="All", value="$__all"))
        )
    )
    for title, panels in _ROWS.items():
        found = found.with_row(dashboard.Row(title))
        for each in panels:
            found = found.with_panel(_panel(each))
    return JSONEncoder(sort_keys=True, indent=2).encode(found.build()) + "\n"


def _panel(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .unit(panel.unit)
        .span(8)
        .height(7)
        .datasource(_SOURCE)
        .legend(
            VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
        )
    )
    if panel.text:
        made = made.description(panel.text)
    for number, (expr, legend) in enumerate(panel.queries):
        made = made.with_target(prometheus.Dataquery().ref_id(chr(ord("A") + number)).expr(expr).legend_format(legend))
    return made
