"""Views with windows on time, joins by time and approximate aggregates, each with PostgreSQL's own way to say it.

The SQL of PostgreSQL shares nothing with that of the view: windows are generated, sessions are islands between gaps,
frames and as-of joins are correlated subqueries, and all times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SECOND = 1_000_000
UNITS = {
    "milliseconds": 1_000,
    "seconds": SECOND,
    "minutes": 60 * SECOND,
    "hours": 3600 * SECOND,
    "days": 86400 * SECOND,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A view and the same rows by PostgreSQL, in the order of the view's columns.

    `within` maps the place of an approximate column to its relative standard deviation.
    """

    name: str
    key: tuple[str, ...]
    sql: str
    oracle: str
    within: tuple[tuple[int, float], ...] = ()


def micros(length: str) -> int:
    """Return the microseconds of a length such as "10 minutes"."""
    number, unit = length.split()
    return int(number) * UNITS[unit]


def _starts(m: str, size: str, slide: str, start: str) -> str:
    """Return a set-returning expression: the starts of all windows with a time."""
    length, step, offset = micros(size), micros(slide), micros(start)
    newest = f"(floor(({m} - {offset})::numeric / {step}) * {step} + {offset})::bigint"
    return f"generate_series({newest}, {m} - {length} + 1, -{step}) AS w(start)"


def grouped() -> Iterator[Case]:
    """Tumbling and hopping windows: size, slide, offset; and what else they are combined with."""
    lengths = [
        ("10 minutes", "10 minutes", "0 seconds"),
        ("1 hours", "1 hours", "15 minutes"),
        ("1 days", "1 days", "-1 hours"),
        ("500 milliseconds", "500 milliseconds", "0 seconds"),
        ("10 minutes", "5 minutes", "0 seconds"),
        ("30 minutes", "10 minutes", "150 seconds"),
        ("15 minutes", "10 minutes", "0 seconds"),
        ("1 days", "8 hours", "-1 hours"),
    ]
    for number, (size, slide, start) in enumerate(lengths):
        at = ("at", "tz")[number % 2]
        call = f"window({at}, '{size}', '{slide}', '{start}')"
        shown = "count(*) AS n, sum(v) AS total, count(v) AS known, min(v) AS least"
        kind = "tumbling" if size == slide else "hopping"
        yield Case(
            f"{kind} {size} {slide} {start} {at}",
            ("start", "k"),
            f"SELECT window.start AS start, window.end AS until, k, {shown} FROM public.event GROUP BY {call}, k",
            f"SELECT w.start, w.start + {micros(size)}, k, {shown} FROM e, {_starts(f'{at}_m', size, slide, start)}"
            " GROUP BY w.start, k",
        )
    ten = _starts("tz_m", "10 minutes", "10 minutes", "0 seconds")
    half = _starts("at_m", "20 minutes", "10 minutes", "0 seconds")
    yield Case(
        "tumbling of all",
        ("window",),
        "SELECT window, count(*) AS n, max(v) AS most FROM public.event GROUP BY window(tz, '10 minutes')",
        f"SELECT ARRAY[w.start, w.start + {micros('10 minutes')}], count(*), max(v) FROM e, {ten} GROUP BY w.start",
    )
    yield Case(
        "hopping of a join",
        ("start", "name"),
        "SELECT window(e.at, '20 minutes', '10 minutes').start AS start, p.name, count(*) AS n, sum(e.v) AS total"
        " FROM public.event e LEFT JOIN public.place p ON p.k = e.k WHERE e.v > 4 OR p.name = 'a'"
        " GROUP BY window(e.at, '20 minutes', '10 minutes'), p.name HAVING count(*) > 1",
        f"SELECT w.start, p.name, count(*), sum(e.v) FROM e LEFT JOIN place p ON p.k = e.k, LATERAL {half}"
        " WHERE e.v > 4 OR p.name = 'a' GROUP BY w.start, p.name HAVING count(*) > 1",
    )
    yield Case(
        "tumbling of two streams",
        ("start", "side"),
        "SELECT window.start AS start, t.side, count(*) AS n FROM (SELECT tz, 'e' AS side FROM public.event"
        " UNION ALL SELECT tz, 'm' FROM public.mark WHERE v > 8) t GROUP BY window(tz, '10 minutes'), t.side",
        f"SELECT w.start, side, count(*) FROM (SELECT tz_m, 'e' AS side FROM e UNION ALL SELECT tz_m, 'm' FROM m"
        f" WHERE v > 8) t, {ten} GROUP BY w.start, side",
    )
    yield Case(
        "windows of windows",
        ("start",),
        "SELECT window.start AS start, sum(n) AS n, count(*) AS windows FROM (SELECT window.start AS at, k, count(*)"
        " AS n FROM public.event GROUP BY window(tz, '10 minutes'), k) t GROUP BY window(at, '1 hour')",
        f"SELECT h.start, sum(n), count(*) FROM (SELECT w.start AS at, k, count(*) AS n FROM e, {ten}"
        f" GROUP BY w.start, k) t, {_starts('at', '1 hours', '1 hours', '0 seconds').replace(' w(', ' h(')}"
        " GROUP BY h.start",
    )
    yield Case(
        "the most of each window",
        ("start", "place"),
        "SELECT window.start AS start, k, sum(v) AS total, row_number() OVER (PARTITION BY window.start ORDER BY"
        " sum(v) DESC NULLS LAST, k NULLS FIRST) AS place FROM public.event GROUP BY window(at, '1 hour'), k"
        " QUALIFY place <= 2",
        "SELECT * FROM (SELECT w.start, k, sum(v), row_number() OVER (PARTITION BY w.start ORDER BY sum(v) DESC NULLS"
        f" LAST, k NULLS FIRST) AS place FROM e, {_starts('at_m', '1 hours', '1 hours', '0 seconds')}"
        " GROUP BY w.start, k) t WHERE place <= 2",
    )
    yield Case(
        "the window of each row",
        ("id",),
        "SELECT id, window(at, '10 minutes').start AS start, v FROM public.event",
        f"SELECT id, w.start, v FROM e, {_starts('at_m', '10 minutes', '10 minutes', '0 seconds')}",
    )
    yield Case(
        "device clocks",
        ("start", "k"),
        # by the device: when it happened, when it was sent; by the server: when it was received
        "SELECT window.start AS start, k, count(*) AS n FROM (SELECT e.k, s.tz - (s.at - e.at) AS happened"
        " FROM public.event e JOIN public.mark s ON s.id = e.id) c GROUP BY window(happened, '10 minutes'), k",
        "SELECT w.start, k, count(*) FROM (SELECT e.k, s.tz_m - (s.at_m - e.at_m) AS t FROM e JOIN m s USING (id)) c,"
        f" {_starts('t', '10 minutes', '10 minutes', '0 seconds')} GROUP BY w.start, k",
    )


def _islands(at: str, gap: str, source: str = "e") -> str:
    """Return rows with the number of their session: one begins after the end of all before it."""
    return (
        f"(SELECT s.*, sum(fresh) OVER (PARTITION BY k ORDER BY {at}_m, id) AS session FROM (SELECT *, {at}_m + {gap}"
        f" AS until, CASE WHEN {at}_m <= max({at}_m + {gap}) OVER (PARTITION BY k ORDER BY {at}_m, id ROWS BETWEEN"
        f" UNBOUNDED PRECEDING AND 1 PRECEDING) THEN 0 ELSE 1 END AS fresh FROM {source} WHERE {at}_m IS NOT NULL"
        f" AND {gap} > 0) s) t"
    )


def sessions() -> Iterator[Case]:
    """Sessions: each new row may join two, each deleted row may split one."""
    for gap, at in (("5 minutes", "at"), ("10 minutes", "tz"), ("150 seconds", "tz"), ("20 minutes", "at")):
        yield Case(
            f"session {gap} {at}",
            ("k", "start"),
            f"SELECT k, session_window.start AS start, session_window.end AS until, count(*) AS n, sum(v) AS total"
            f" FROM public.event GROUP BY k, session_window({at}, '{gap}')",
            f"SELECT k, min({at}_m), max(until), count(*), sum(v) FROM {_islands(at, str(micros(gap)))}"
            " GROUP BY k, session",
        )
    yield Case(
        "session with its own gap",
        ("k", "start"),
        "SELECT k, session_window.start AS start, session_window.end AS until, count(*) AS n FROM public.event"
        " GROUP BY k, session_window(at, CASE WHEN v > 12 THEN '10 minutes' WHEN v > 4 THEN '150 seconds' ELSE"
        " '-1 second' END)",
        "SELECT k, min(at_m), max(until), count(*) FROM "
        + _islands("at", "CASE WHEN v > 12 THEN 600000000 WHEN v > 4 THEN 150000000 ELSE -1 END::bigint")
        + " GROUP BY k, session",
    )
    yield Case(
        "session of some rows",
        ("k", "start"),
        "SELECT e.k, session_window.start AS start, count(*) AS n, count(DISTINCT v) AS different FROM public.event e"
        " JOIN public.place p ON p.k = e.k WHERE p.name <> 'c' AND e.v > 4 GROUP BY e.k, session_window(e.tz,"
        " '10 minutes') HAVING count(*) > 1",
        "SELECT k, min(tz_m), count(*), count(DISTINCT v) FROM "
        + _islands("tz", "600000000", "(SELECT e.* FROM e JOIN place p ON p.k = e.k WHERE p.name <> 'c' AND v > 4) j")
        + " GROUP BY k, session HAVING count(*) > 1",
    )
    yield Case(
        "number of sessions",
        ("k",),
        "SELECT k, count(*) AS sessions, max(n) AS most FROM (SELECT k, session_window.start AS start, count(*) AS n"
        " FROM public.event GROUP BY k, session_window(tz, '5 minutes')) t GROUP BY k",
        f"SELECT k, count(*), max(n) FROM (SELECT k, count(*) AS n FROM {_islands('tz', '300000000')}"
        " GROUP BY k, session) t GROUP BY k",
    )


def frames() -> Iterator[Case]:
    """Sliding frames: RANGE around each row's time. Rows without a time have each other in the frame."""
    frames_ = [
        ("at", "10 minutes", "0 seconds"),
        ("tz", "150 seconds", "300 seconds"),
        ("at", "20 minutes", "-5 minutes"),
        ("tz", "-150 seconds", "600 seconds"),
        ("tz", "2 days", "0 seconds"),
    ]
    for at, before, after in frames_:
        sides = []
        for length, forward, backward in ((before, "PRECEDING", "FOLLOWING"), (after, "FOLLOWING", "PRECEDING")):
            number, unit = length.lstrip("-").split()
            side = f"INTERVAL '{number}' {unit.upper().rstrip('S')} {backward if length[0] == '-' else forward}"
            sides.append("CURRENT ROW" if number == "0" else side)
        over = f"(PARTITION BY k ORDER BY {at} RANGE BETWEEN {sides[0]} AND {sides[1]})"
        mine = (
            f"FROM e x WHERE x.k IS NOT DISTINCT FROM e.k AND (x.{at}_m BETWEEN e.{at}_m - {micros(before)} AND"
            f" e.{at}_m + {micros(after)} OR (x.{at}_m IS NULL AND e.{at}_m IS NULL))"
        )
        yield Case(
            f"frame {at} {before} {after}",
            ("id",),
            f"SELECT id, sum(v) OVER {over} AS total, count(*) OVER {over} AS n, max(v) OVER {over} AS most"
            " FROM public.event",
            f"SELECT id, (SELECT sum(v) {mine}), (SELECT count(*) {mine}), (SELECT max(v) {mine}) FROM e",
        )
    yield Case(
        "frame backwards, of a join",
        ("id",),
        "SELECT e.id, p.name, sum(e.v) OVER w AS total FROM public.event e JOIN public.place p ON p.k = e.k"
        " WINDOW w AS (PARTITION BY p.name ORDER BY e.at DESC RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING"
        " AND CURRENT ROW)",
        "SELECT e.id, p.name, (SELECT sum(x.v) FROM e x JOIN place q ON q.k = x.k WHERE q.name = p.name AND (x.at_m"
        " BETWEEN e.at_m AND e.at_m + 300000000 OR (x.at_m IS NULL AND e.at_m IS NULL))) FROM e JOIN place p"
        " ON p.k = e.k",
    )
    yield Case(
        "rows that end a burst",
        ("id",),
        "SELECT id, n FROM (SELECT id, count(*) OVER (PARTITION BY k ORDER BY tz RANGE BETWEEN INTERVAL 10 MINUTES"
        " PRECEDING AND CURRENT ROW) AS n FROM public.event WHERE tz IS NOT NULL) t WHERE n >= 3",
        "SELECT * FROM (SELECT id, (SELECT count(*) FROM e x WHERE x.k IS NOT DISTINCT FROM e.k AND x.tz_m BETWEEN"
        " e.tz_m - 600000000 AND e.tz_m) AS n FROM e WHERE tz IS NOT NULL) t WHERE n >= 3",
    )
