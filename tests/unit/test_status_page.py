"""The status page's history, problems and templates, without servers."""

from __future__ import annotations

from dataclasses import replace

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.health.health import Health
from tailrace.cdc.operations.table_states import TableInfo
from tailrace.cdc.page.attention import named_error, problems
from tailrace.cdc.page.charts import chart
from tailrace.cdc.page.checks import Checked, Checks
from tailrace.cdc.page.contents import MOST_DEAD, MOST_FINDINGS, MOST_TABLES, Contents, Known, contents
from tailrace.cdc.page.history import History, Sample
from tailrace.cdc.page.render import Templates
from tailrace.cdc.page.watched import Watched
from tailrace.cdc.tables.position import new_origin
from tailrace.schemas.config.model import Config, Source
from tailrace.schemas.config.secret import remember
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.layout import Parked
from tailrace.schemas.records.position import Diverted
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


def test_findings_are_shown_those_that_stop_a_start_first() -> None:
    findings = Findings()
    findings.advise("TR-908", Severity.NOTE, "source", "In no publication: <i>.", "ALTER PUBLICATION")
    findings.add("kafka", SinkError("TR-330", "Kafka does not answer"))
    for n in range(MOST_FINDINGS):
        findings.advise("TR-919", Severity.WARN, "source", f"The key of t{n} is deferrable.")
    found = _contents(Checked(1000.0, 0.5, findings.sorted()))
    assert found.check is not None
    assert (found.check.tone, found.check.more, len(found.check.findings)) == ("bad", 2, MOST_FINDINGS)
    assert found.check.result == f"1 finding stops the next start, {MOST_FINDINGS} warnings"
    first = found.check.findings[0]
    assert (first.code, first.tone, first.object) == ("TR-330", "bad", "kafka")
    html = Templates().main(found)
    assert 'href="/page/codes/TR-330"' in html
    assert "1970-01-01 00:16:40 UTC" in html
    assert "500 ms" in html


def test_findings_are_escaped_and_without_secrets() -> None:
    remember(Config(source=Source(dsn="postgresql://me:Linnet-9-Tin@db/x")))
    findings = Findings()
    findings.advise("TR-908", Severity.NOTE, "source", "In no publication: <i>.", 'ALTER TABLE "<b>";')
    with findings.probing("kafka"):
        raise OSError("cannot connect to db as me with Linnet-9-Tin")
    html = Templates().main(_contents(Checked(1000.0, 0.5, findings.sorted())))
    assert "cannot connect to db as me" in html
    assert "Linnet" not in html
    assert "In no publication: &lt;i&gt;." in html
    assert "ALTER TABLE &#34;&lt;b&gt;&#34;;" in html
    assert "nothing stops the next start, 1 warning" in html


def test_before_the_first_check_the_page_says_so() -> None:
    html = Templates().main(_contents(None))
    assert "The first check runs." in html
    assert "nothing stops" not in html


def test_checks_rest_a_minute_or_nineteen_times_their_duration() -> None:
    checks = Checks(_CONFIG, Watched(), lambda: None)
    assert [checks.rest_s(took_s) for took_s in (0.1, 3.0, 60.0)] == [60.0, 60.0, 1140.0]


def test_nothing_is_read_while_nobody_looks_and_the_end_ends_the_waits() -> None:
    watched = Watched()
    assert not watched.now
    watched.look()
    assert watched.now
    assert watched.wait()
    watched.close()
    assert not watched.wait()
    watched.rest(60)


def test_dead_letters_are_listed_by_table() -> None:
    health = Health("s")
    tables = {f"public.<t{n}>": Diverted(3, 1000 * n) for n in range(MOST_DEAD + 2)}
    record = replace(new_origin(1, 1000, "1", 1, (1, 0), []), diverted=40, diverted_tables=tables)
    health.record = record
    found = contents(_CONFIG, Known(health, History(), None, 0.0, []), [], "1", 1000.0)
    assert (found.dead.changes, found.dead.uncounted, found.dead.more_tables) == (40, 4, 2)
    assert [each.table for each in found.dead.tables[:2]] == ["public.<t11>", "public.<t10>"]
    html = Templates().main(found)
    assert "public.&lt;t11&gt;" in html
    assert "1970-01-01 00:00:11 UTC" in html
    assert "earlier, not counted by table" in html
    health.record = replace(record, diverted=36)
    html = Templates().main(contents(_CONFIG, Known(health, History(), None, 0.0, []), [], "1", 1000.0))
    assert "not counted by table" not in html


def _contents(checked: Checked | None) -> Contents:
    return contents(_CONFIG, Known(Health("s"), History(), None, 0.0, [], checked), [], "1", 1000.0)
