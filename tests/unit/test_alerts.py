"""Alerts and board: each alert fires in its cases and not in those beside them; all metrics that are named exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tailrace.schemas.alerts import DAEMON_ALERTS, VIEWS_ALERTS, Alert
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.metrics import NAMES, named
from tests.support.daemon import ROOT

_FOLDER: Final = ROOT / "docker" / "monitoring"
_RULES: Final = sorted(_FOLDER.glob("alerts-*.yaml"))
_ALERTS: Final = {each.name: each for each in (*DAEMON_ALERTS, *VIEWS_ALERTS)}

_DAEMON: Final = 'job="tailrace",instance="db:9464"'
_VIEWS: Final = 'job="tailrace-views",instance="views:9485",view="orders"'
_HOUR: Final = 3600


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation, one value a minute, in which an alert fires at a minute or does not."""

    series: dict[str, str]
    fires: bool
    minute: int = 60


def steady(value: float, minutes: int = 120) -> str:
    return f"{value}x{minutes}"


def case(name: str, labels: str, values: str, *, fires: bool, minute: int = 60) -> Case:
    return Case({f"{named(name)}{{{labels}}}": values}, fires, minute)


def both(name: str, labels: str, bad: float, good: float) -> list[Case]:
    """Return a case with a value that fires, and one with a value that does not."""
    return [case(name, labels, steady(bad), fires=True), case(name, labels, steady(good), fires=False)]


def stops(share: float) -> list[Case]:
    """Return cases of a view whose limit is two hours: of a job that runs, and of one that has ended."""
    stop = f'{named("view_stop_timestamp_seconds")}{{{_VIEWS},code="TR-526"}}'
    limit = f'{named("view_stop_limit_seconds")}{{{_VIEWS},code="TR-526"}}'
    whole, few = 2 * _HOUR, 20

    def seen(values: str, minutes: int, *, fires: bool, minute: int, other: str = "") -> Case:
        series = {stop: values, limit: steady(whole, minutes)}
        if other:  # the same view, maintained by a job with another address
            series |= {
                each.replace("views:9485", "views-2:9485"): text
                for each, text in ((stop, other), (limit, steady(whole)))
            }
        return Case(series, fires, minute)

    level = f"{whole}+60x{few}"  # the view is level with the topics: its deadline moves with the time
    late, early = round(whole * (1 - share)) // 60 + 10, round(whole * (1 - share)) // 60 - 10
    return [
        seen(steady(whole, 2 * late), 2 * late, fires=True, minute=late),
        seen(steady(whole, 2 * late), 2 * late, fires=False, minute=early),
        seen(f"{whole}+60x{2 * late}", 2 * late, fires=False, minute=late),
        # the job ended after 20 minutes
        seen(level, few, fires=True, minute=late + few),
        seen(level, few, fires=False, minute=early + few),
        # and was started elsewhere
        seen(level, few, fires=False, minute=late + few, other=f"_x{few} {whole + few * 60}+60x{2 * late}"),
    ]


def up(job: str) -> list[Case]:
    return [
        Case({f'up{{job="{job}",instance="a:1"}}': steady(0)}, True),
        Case({f'up{{job="{job}x",instance="a:1"}}': steady(1)}, True),
        Case({f'up{{job="{job}",instance="a:1"}}': steady(0), f'up{{job="{job}",instance="b:1"}}': steady(1)}, False),
    ]


_PARKED: Final = f'{_DAEMON},table="public.t",code="TR-220"'
_INCOMPLETE: Final = f"{named('incomplete_tables')}{{{_DAEMON}}}"
_ROWS: Final = f'{named("snapshot_rows")}{{{_DAEMON},table="public.t"}}'

CASES: Final[dict[str, list[Case]]] = {
    "TailraceDaemonDown": up("tailrace"),
    "TailraceDaemonNotReady": both("ready", _DAEMON, 0, 1),
    "TailraceSlotFilling": both("slot_full_timestamp_seconds", _DAEMON, 4.5 * _HOUR, 6 * _HOUR),
    "TailraceSlotLosing": [
        case("slot_wal_status", f'{_DAEMON},status="unreserved"', steady(1), fires=True),
        case("slot_wal_status", f'{_DAEMON},status="unreserved"', steady(0), fires=False),
        case("slot_wal_status", f'{_DAEMON},status="extended"', steady(1), fires=False),
    ],
    "TailraceStalled": both("stalled", _DAEMON, 1, 0),
    "TailraceLag": both("lag_seconds", _DAEMON, 301, 300),
    "TailraceSourceSilent": [
        case("looked_timestamp_seconds", _DAEMON, steady(0), fires=True),
        case("looked_timestamp_seconds", _DAEMON, "0+60x120", fires=False),
    ],
    "TailraceErrorsRepeat": [
        case("errors_total", f'{_DAEMON},code="TR-301"', "0+1x120", fires=True),
        case("errors_total", f'{_DAEMON},code="TR-301"', "0+0.1x120", fires=False),
    ],
    "TailraceTableParked": [
        case("parked_tables", _PARKED, steady(1), fires=True),
        case("parked_tables", _PARKED, "1x10 stale", fires=False),
    ],
    "TailraceTableIncomplete": [
        *both("incomplete_tables", _DAEMON, 2, 0),
        Case({_INCOMPLETE: steady(2), _ROWS: "0+100x120"}, False),
        Case({_INCOMPLETE: steady(2), _ROWS: "0+100x30 3000x90"}, True, 110),
    ],
    "TailraceTableMissing": both("missing_tables", _DAEMON, 1, 0),
    "TailraceDeadLetters": [
        case("diverted_changes_total", _DAEMON, "7x50 8x60", fires=True),
        case("diverted_changes_total", _DAEMON, steady(7), fires=False),
    ],
    "TailraceViewsDown": up("tailrace-views"),
    "TailraceViewsNotReady": both("views_ready", 'job="tailrace-views"', 0, 1),
    "TailraceViewLag": both("view_lag_seconds", _VIEWS, 601, 600),
    "TailraceViewParked": [
        case("view_parked", f'{_VIEWS},code="TR-527"', steady(1), fires=True),
        # a batch that failed once
        case("view_parked", f'{_VIEWS},code="TR-527"', "_x57 1x2 stale", fires=False),
    ],
    "TailraceViewDiffers": [
        *both("verify_differences", _VIEWS, 1, 0),
        # repaired: absent until the next comparison
        case("verify_differences", _VIEWS, "1x20 stale", fires=False),
    ],
    "TailraceViewWaiting": [
        case("view_waiting", f'{_VIEWS},code="TR-584"', steady(1), fires=True, minute=61),
        case("view_waiting", f'{_VIEWS},code="TR-584"', steady(1), fires=False, minute=30),
    ],
    "TailraceViewStopsSoon": stops(0.5),
    "TailraceViewStopsVerySoon": stops(0.25),
}


def promtool() -> str:
    """Return the program; skip without it, or fail where no test may be skipped."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    return found


def test_each_alert_has_cases_in_which_it_fires_and_does_not() -> None:
    assert CASES.keys() == _ALERTS.keys()
    for name, cases in CASES.items():
        assert {each.fires for each in cases} == {True, False}, name


def test_the_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    tests = [_promtool_test(_ALERTS[name], each) for name, cases in CASES.items() for each in cases]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(each) for each in _RULES], "tests": tests}))
    done = subprocess.run([promtool(), "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _promtool_test(alert: Alert, each: Case) -> dict[str, Any]:
    series = [{"series": name, "values": values} for name, values in each.series.items()]
    # whether it fires, and not with which labels: that is an expression over Prometheus' own series of alerts
    firing = f'count(ALERTS{{alertname="{alert.name}", alertstate="firing", severity="{alert.severity}"}}) or vector(0)'
    expected = [{"labels": "{}", "value": int(each.fires)}]
    at = f"{each.minute}m"
    return {
        "name": f"{alert.name} {each}",
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": f"({firing}) > bool 0", "eval_time": at, "exp_samples": expected}],
    }


def test_prometheus_accepts_the_files() -> None:
    done = subprocess.run(
        [promtool(), "check", "config", _FOLDER / "prometheus.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load((_FOLDER / "prometheus.yaml").read_text())
    assert sorted(config["rule_files"]) == [each.name for each in _RULES]
    jobs = {each["job_name"] for each in config["scrape_configs"]}
    everything = "".join(each.read_text() for each in _FOLDER.iterdir())
    assert jobs == {"tailrace", "tailrace-views"}
    assert set(re.findall(r'job=\\?"([\w-]+)\\?"', everything)) == jobs


_NAME: Final = re.compile(r"\btailrace_[a-z0-9_]+\b")
_NO_METRICS: Final = {"tailrace_nokey", "tailrace_2"}
"""Names of a publication and of a slot in the documentation."""


def test_every_metric_that_is_named_anywhere_is_exported() -> None:
    """A scrape has exactly these (test_health, test_job_processes)."""
    files = [*_FOLDER.iterdir(), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docker" / "compose.yaml"]
    unknown = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in _NAME.findall(file.read_text())
        if name not in NAMES | _NO_METRICS and not (name.endswith("_seconds") and f"{name}_bucket" in NAMES)
    }
    assert unknown == set()


def test_every_metric_is_on_the_reference_page_and_every_alert_in_the_rules() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    listed = set(re.findall(r"^\| `(tailrace_\w+)` \|", page, re.MULTILINE))
    assert {name for name in NAMES if re.sub(r"_(bucket|sum|count)$", "", name) not in listed} == set()
    rules = [rule for file in _RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == list(_ALERTS)
    for each in _ALERTS.values():
        assert set(re.findall(r"TR-\d+", each.expr + each.meaning + each.remedy)) <= CODES.keys()


def test_the_dashboard_shows_each_metric_that_an_alert_uses() -> None:
    board = json.loads((_FOLDER / "dashboard.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    shown = {name for panel in panels for target in panel["targets"] for name in _NAME.findall(target["expr"])}
    alerted = {name for each in _ALERTS.values() for name in _NAME.findall(each.expr)}
    ready_and_age = {named("views_ready"), named("view_stop_limit_seconds"), named("looked_timestamp_seconds")}
    assert alerted - shown == ready_and_age
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
