"""The status page's history, problems and templates, without servers."""

from __future__ import annotations

from tailrace.cdc.health.health import Health
from tailrace.cdc.operations.table_states import TableInfo
from tailrace.cdc.page.attention import named_error, problems
from tailrace.cdc.page.charts import chart
from tailrace.cdc.page.contents import MOST_TABLES, Known, contents
from tailrace.cdc.page.history import History, Sample
from tailrace.cdc.page.render import Templates
from tailrace.schemas.config.model import Config, Source
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.layout import Parked
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.progress import Counted

_CONFIG = Config(source=Source(dsn=""))


def test_the_history_is_an_hour_and_rates_are_of_the_last_seconds() -> None:
    history = History()
    for n in range(2000):
        history.add(Sample(1000.0 + 5 * n, records=100 * n, lag_s=float(n % 7)))
    now = 1000.0 + 5 * 1999
    assert history.rate(lambda each: each.records) == 20
    rates = history.rates(lambda each: each.records, now)
    assert rates.window_s == 3600
    assert set(rates.values) == {20.0}
    assert max(value or 0 for value in history.maxima(lambda each: each.lag_s, now).values) == 6


def test_a_short_history_has_a_short_window_and_unknown_values_stay_unknown() -> None:
    history = History()
    assert history.rate(lambda each: each.records) is None
    for n in range(4):
        history.add(Sample(1000.0 + 5 * n, records=n, wal_lsn=None if n == 3 else n))
    series = history.rates(lambda each: each.records, 1015.0)
    assert series.window_s == 300
    assert [value for value in series.values if value is not None] == [0.2] * 3
    assert history.rate(lambda each: each.wal_lsn) is None


def test_a_chart_has_no_style_and_no_script_of_its_own() -> None:
    history = History()
    for n in range(30):
        history.add(Sample(1000.0 + 5 * n, lag_s=float(n)))
    drawn = chart("lag", "Lag", history.maxima(lambda each: each.lag_s, 1150.0), lambda value: f"{value:.0f} s")
    assert (drawn.now, drawn.maximum, drawn.minutes) == ("29 s", "29 s", 5)
    assert "<path" in drawn.svg
    assert not [each for each in ("<style", "<script", "style=", "<!--") if each in drawn.svg]


def test_details_and_errors_without_a_code_are_not_shown() -> None:
    error = "ERROR  TR-525  view v: the query failed\nDETAIL value 4711\nHINT   first\n       second"
    assert named_error(error, "v") == ("TR-525", "view v: the query failed", "first\n       second")
    said = named_error("ValueError: value 4711", "v")
    assert said == (None, "The views job reported an error.", "tailrace views status v")
    assert named_error(None, "v") == (None, None, None)


def test_equal_errors_in_a_row_are_one_and_the_number_is_bounded() -> None:
    health = Health("s")
    for n in range(100):
        health.failed(SinkError("TR-330", f"fault {n // 2}"))
    assert len(health.past_errors) == 20
    assert {(each.times, each.code) for each in health.past_errors} == {(2, "TR-330")}
    assert problems(_CONFIG, health, None)[0].code == "TR-330"


def test_values_are_escaped_tables_bounded_and_reads_have_bars() -> None:
    health = Health("s")
    health.parked = {"public.<b>": Parked("TR-406", "lost <script>", "ALTER TABLE", 0, 0)}
    for n, done in ((0, True), (1, False)):
        chunk = Chunk("public.t0", n, ("public", "t0"), n, n + 1, size=1000)
        health.reads.planned(chunk, 1)
        if done:
            health.reads.read(chunk, 1, Counted(rows=7))
    tables = [TableInfo(f"public.t{n}", "streaming", 1) for n in range(MOST_TABLES + 9)]
    tables.append(TableInfo("public.<b>", "parked", 1, "TR-406", "lost <script>"))
    found = contents(_CONFIG, Known(health, History(), None, 0.0, tables), [], "1", 1000.0)
    assert found.tables[0].name == "public.<b>"
    assert (len(found.tables), found.more_tables) == (MOST_TABLES, 10)
    assert [(bar.table, bar.percent) for bar in found.bars] == [("public.t0", 50.0)]
    html = Templates().main(found)
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert 'href="/page/codes/TR-406"' in html
    assert "TR-406" in (Templates().code("TR-406") or "")
    assert Templates().code("TR-000") is None
