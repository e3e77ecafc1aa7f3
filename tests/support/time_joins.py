"""Views that join by time, and aggregates that are approximate or percentiles; see `tests.support.window_views`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.window_views import Case

_SHOWN = "e.id AS e, m.id AS m, e.v AS ev, m.v AS mv"
_PAIR = "e.id, m.id, e.v, m.v"


def interval_joins() -> Iterator[Case]:
    """Two streams within an interval: inner, left, semi, anti; bounds inside and outside of it."""
    # the condition in Spark, and in microseconds
    within = {
        "around at": (
            "m.at BETWEEN e.at - INTERVAL 5 MINUTES AND e.at + INTERVAL 10 MINUTES",
            "m.at_m BETWEEN e.at_m - 300000000 AND e.at_m + 600000000",
        ),
        "after tz": (
            "m.tz >= e.tz AND m.tz < e.tz + INTERVAL 10 MINUTES",
            "m.tz_m >= e.tz_m AND m.tz_m < e.tz_m + 600000000",
        ),
        "a day before tz": (
            "m.tz < e.tz AND m.tz > e.tz - INTERVAL 1 DAY",
            "m.tz_m < e.tz_m AND m.tz_m > e.tz_m - 86400000000",
        ),
        "from time to time": ("m.at <= e.at AND e.tz <= m.tz", "m.at_m <= e.at_m AND e.tz_m <= m.tz_m"),
    }
    for name, (condition, in_micros) in within.items():
        both = f"public.event e {{}} JOIN public.mark m ON m.k = e.k AND {condition}"
        mine = f"e {{}} JOIN m ON m.k = e.k AND {in_micros}"
        yield Case(
            f"inner {name}",
            ("e", "m"),
            f"SELECT {_SHOWN} FROM {both.format('INNER')}",
            f"SELECT {_PAIR} FROM {mine.format('INNER')}",
        )
        yield Case(
            f"left {name}",
            ("e", "m"),
            f"SELECT {_SHOWN} FROM {both.format('LEFT')} AND m.v > 4",
            f"SELECT {_PAIR} FROM {mine.format('LEFT')} AND m.v > 4",
        )
        yield Case(
            f"without {name}",
            ("e",),
            f"SELECT e.id AS e, e.k FROM {both.format('LEFT ANTI')}",
            f"SELECT id, k FROM e WHERE NOT EXISTS (SELECT FROM m WHERE m.k = e.k AND {in_micros})",
        )
    condition, in_micros = within["around at"]
    yield Case(
        "matches of each",
        ("e",),
        f"SELECT e.id AS e, count(m.id) AS n, min(m.at) AS first_at, sum(m.v) AS total FROM public.event e"
        f" LEFT JOIN public.mark m ON m.k = e.k AND {condition} GROUP BY e.id",
        "SELECT e.id, count(m.id), min(m.at_m), sum(m.v) FROM e LEFT JOIN m ON m.k = e.k"
        f" AND {in_micros} GROUP BY e.id",
    )
    yield Case(
        "expired without a match",
        ("e",),
        # the clock of the streams: the newest time of this k
        "SELECT e.id AS e, e.tz FROM public.event e JOIN (SELECT k, max(tz) AS now FROM public.mark GROUP BY k) c"
        " ON c.k = e.k WHERE e.tz < c.now - INTERVAL 10 MINUTES AND NOT EXISTS (SELECT 1 FROM public.mark m"
        " WHERE m.k = e.k AND m.tz BETWEEN e.tz AND e.tz + INTERVAL 10 MINUTES)",
        "SELECT e.id, e.tz_m FROM e WHERE (SELECT max(tz_m) FROM m WHERE m.k = e.k) - 600000000 > tz_m AND NOT EXISTS"
        " (SELECT FROM m WHERE m.k = e.k AND m.tz_m BETWEEN e.tz_m AND e.tz_m + 600000000)",
    )
    yield Case(
        "windows of pairs",
        ("start", "name"),
        "SELECT window(m.at, '10 minutes').start AS start, p.name, count(*) AS n FROM public.event e"
        f" JOIN public.mark m ON m.k = e.k AND {condition} JOIN public.place p ON p.k = e.k"
        " GROUP BY window(m.at, '10 minutes'), p.name",
        "SELECT floor(m.at_m::numeric / 600000000)::bigint * 600000000 AS start, p.name, count(*) FROM e JOIN m"
        f" ON m.k = e.k AND {in_micros} JOIN place p ON p.k = e.k GROUP BY start, p.name",
    )


def as_of() -> Iterator[Case]:
    """For each event, the newest mark of its `k` at its time. Of equal times, the one with the greatest id."""
    for kind in ("LEFT", "INNER"):
        for at, how in (("at", "<="), ("tz", "<")):
            yield Case(
                f"as of {kind} {at}",
                ("id",),
                f"SELECT e.id, m.id AS m, m.{at} AS since, m.v FROM public.event e {kind} JOIN public.mark m"
                f" ON m.k = e.k AND m.{at} {how} e.{at} QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY"
                f" m.{at} DESC, m.id DESC) = 1",
                f"SELECT e.id, r.id, r.{at}_m, r.v FROM e {kind} JOIN LATERAL (SELECT * FROM m WHERE m.k = e.k AND"
                f" m.{at}_m {how} e.{at}_m ORDER BY m.{at}_m DESC, m.id DESC LIMIT 1) r ON true",
            )
    yield Case(
        "as of, not older than ten minutes",
        ("id",),
        "SELECT e.id, m.v, m.tz AS since FROM public.event e LEFT JOIN public.mark m ON m.k = e.k AND m.tz BETWEEN"
        " e.tz - INTERVAL 10 MINUTES AND e.tz QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY m.tz DESC, m.id)"
        " = 1",
        "SELECT e.id, r.v, r.tz_m FROM e LEFT JOIN LATERAL (SELECT * FROM m WHERE m.k = e.k AND m.tz_m BETWEEN"
        " e.tz_m - 600000000 AND e.tz_m ORDER BY m.tz_m DESC, m.id LIMIT 1) r ON true",
    )
    yield Case(
        "the next mark",
        ("id",),
        "SELECT e.id, (SELECT min(m.at) FROM public.mark m WHERE m.k = e.k AND m.at > e.at) AS next_at"
        " FROM public.event e",
        "SELECT e.id, r.at_m FROM e LEFT JOIN LATERAL (SELECT * FROM m WHERE m.k = e.k AND m.at_m > e.at_m"
        " ORDER BY m.at_m LIMIT 1) r ON true",
    )
    yield Case(
        "totals as of",
        ("mark",),
        "SELECT t.mark, count(*) AS n, sum(t.v) AS total FROM (SELECT e.v, m.id AS mark FROM public.event e JOIN"
        " public.mark m ON m.k = e.k AND m.at <= e.at QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY m.at DESC,"
        " m.id DESC) = 1) t GROUP BY t.mark",
        "SELECT r.id, count(*), sum(e.v) FROM e JOIN LATERAL (SELECT * FROM m WHERE m.k = e.k AND m.at_m <= e.at_m"
        " ORDER BY m.at_m DESC, m.id DESC LIMIT 1) r ON true GROUP BY r.id",
    )


def approximate() -> Iterator[Case]:
    """Distinct counts by HyperLogLog, by theta sketches (exact for few values), and percentiles (exact)."""
    ten = "floor(at_m::numeric / 600000000)::bigint * 600000000"
    for deviation in (0.05, 0.01):
        yield Case(
            f"about {deviation}",
            ("k",),
            f"SELECT k, approx_count_distinct(tz, {deviation}) AS n, count(*) AS rows FROM public.event GROUP BY k",
            "SELECT k, count(DISTINCT tz_m), count(*) FROM e GROUP BY k",
            within=((1, deviation),),
        )
    yield Case(
        "about, in windows",
        ("start",),
        "SELECT window.start AS start, approx_count_distinct(k) AS n, count(DISTINCT k) AS exactly FROM public.event"
        " GROUP BY window(at, '10 minutes')",
        f"SELECT {ten} AS start, count(DISTINCT k), count(DISTINCT k) FROM e WHERE at IS NOT NULL GROUP BY start",
        within=((1, 0.05),),
    )
    yield Case(
        "sketch",
        ("k",),
        "SELECT k, theta_sketch_estimate(theta_sketch_agg(tz_m, 12)) AS n FROM (SELECT k, unix_micros(tz) AS tz_m FROM"
        " public.event) t GROUP BY k",
        "SELECT k, count(DISTINCT tz_m) FROM e GROUP BY k",
    )
    yield Case(
        "sketches of sketches",
        ("name",),
        "SELECT p.name, theta_sketch_estimate(theta_union_agg(s.sketch)) AS n FROM (SELECT k, theta_sketch_agg(v)"
        " AS sketch FROM public.event GROUP BY k) s JOIN public.place p ON p.k = s.k GROUP BY p.name",
        "SELECT p.name, count(DISTINCT e.v) FROM e JOIN place p ON p.k = e.k GROUP BY p.name",
    )
    yield Case(
        "percentiles",
        ("k",),
        "SELECT k, percentile(v, 0.5) AS mid, median(v) AS median, percentile(v, 0.25) AS low,"
        " percentile_cont(0.75) WITHIN GROUP (ORDER BY v) AS high,"
        " percentile_disc(0.5) WITHIN GROUP (ORDER BY v) AS disc FROM public.event GROUP BY k",
        "SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY v), percentile_cont(0.5) WITHIN GROUP (ORDER BY v),"
        " percentile_cont(0.25) WITHIN GROUP (ORDER BY v), percentile_cont(0.75) WITHIN GROUP (ORDER BY v),"
        " percentile_disc(0.5) WITHIN GROUP (ORDER BY v) FROM e GROUP BY k",
    )
    yield Case(
        "percentiles in windows",
        ("start",),
        "SELECT window.start AS start, percentile(v, array(0.25, 0.5)) AS low, count(*) FILTER (WHERE v > 8) AS n"
        " FROM public.event GROUP BY window(at, '10 minutes')",
        f"SELECT {ten} AS start, percentile_cont(ARRAY[0.25, 0.5]) WITHIN GROUP (ORDER BY v), count(*) FILTER"
        " (WHERE v > 8) FROM e WHERE at IS NOT NULL GROUP BY start",
    )
