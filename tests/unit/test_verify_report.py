"""The report of `tailrace verify`: both sides of a key that differs, and an error without values."""

from __future__ import annotations

from dataclasses import replace

import orjson

from tailrace.cdc.cli.verify_report import lines, summary
from tailrace.cdc.operations.verify_result import Result
from tailrace.schemas.verify_scope import Scope
from tailrace.snapshot.verify.comparison import COMPARED, Difference, Outcome

OTHER = Difference(b'["1"]', b'["1","a",null]', b'["1","b",null]', 1, 1)


def result(*differences: Difference, more: int = 0, late: bool = False) -> Result:
    outcomes = (
        Outcome(COMPARED[0], 3, 3, 0, ()),
        Outcome(COMPARED[1], 3, 2, len(differences) + more, differences),
    )
    return Result("orders", "public.orders", ("id", "note", "total"), (0,), 0x100, 0x200, outcomes, 1.25, late)


def text(found: Result) -> str:
    return "\n".join(lines(found))


def test_an_equal_view_is_reported_with_its_row_counts() -> None:
    assert text(result()).splitlines() == [
        "orders: equal  (X 0/100, C 0/200, 1.2 s)",
        "  source and topic at X: 3 and 3 rows, no difference",
        "  topic and view at C: 3 and 2 rows, no difference",
    ]
    assert summary([result()]) is None


def test_what_was_not_compared_is_said_and_survives_the_json_form() -> None:
    part = Scope(0x300, 0.01, staged=True)
    found = replace(result(OTHER), x=None, table=None, generation=4, scope=part)
    assert text(found).splitlines()[:3] == [
        "orders, staged generation 4: DIFFERENT  (C 0/200, 1.2 s)",
        "  only keys whose newest record is after 0/300; all others were not compared",
        "  a sample of 1 % of the keys; 99 % were not compared",
    ]
    value = orjson.loads(orjson.dumps(found.to_dict(), default=str))
    assert value["scope"] == {"since": "0/300", "sample": 0.01, "not_compared": 0.99, "staged": True}
    assert Result.from_dict(value).scope == part
    assert part.arguments() == ["--since=0/300", "--sample=0.01", "--staged"]
    assert "rebuild --no-swap orders" in str(summary([found]))


def test_only_the_columns_that_differ_are_shown() -> None:
    assert text(result(OTHER, more=4)).splitlines()[2:] == [
        "  topic and view at C: 3 and 2 rows, 5 keys differ",
        '    id="1"',
        '      topic  note="a"',
        '      view   note="b"',
        "    and 4 more",
    ]


def test_a_missing_row_and_a_duplicate_are_shown() -> None:
    shown = text(result(Difference(b'["1"]', None, b'["1",null,"5"]', 0, 2)))
    assert "topic  no such row" in shown
    assert 'view   note=NULL total="5" (2 rows with this key)' in shown


def test_a_long_value_is_cut_where_it_differs() -> None:
    sides = [orjson.dumps(["1", "x" * 5000 + end + "y" * 5000, None]) for end in "AB"]
    shown = text(result(Difference(b'["1"]', sides[0], sides[1], 1, 1)))
    assert "xAy" in shown
    assert "xBy" in shown
    assert len(shown) < 1000


def test_the_error_names_views_and_shows_no_value() -> None:
    failure = summary([replace(result(), view="items"), result(OTHER)])
    assert failure is not None
    assert (failure.exit_code, failure.code) == (7, "TR-700")
    assert "1 of 2 views differ: orders" in str(failure)
    assert '"a"' not in str(failure)


def test_a_late_difference_may_be_due_to_compaction() -> None:
    assert "compaction" in text(result(OTHER, late=True))
    assert "compaction" not in text(result(late=True))


def test_json_has_cut_and_differences() -> None:
    value = orjson.loads(orjson.dumps(result(OTHER).to_dict()))
    assert (value["equal"], value["x"], value["cut"]) == (False, "0/100", "0/200")
    assert value["comparisons"][1]["differences"][0]["left"] == ["1", "a", None]


def test_a_result_of_a_computed_view_is_read_from_its_json_form() -> None:
    outcome = Outcome("content and view at C", 3, 2, 1, (Difference(b"[1]", b'[1,"a"]', None, 1, 0),))
    for table, title in ((None, "totals: DIFFERENT"), ("public.t", "totals, base table of public.t: DIFFERENT")):
        made = Result("totals", table, ("id", "note"), (0,), None, 0x200, (outcome,), 1.5, late=False)
        assert Result.from_dict(orjson.loads(orjson.dumps(made.to_dict()))) == made
        shown = text(made).splitlines()
        assert shown[0] == f"{title}  (C 0/200, 1.5 s)"
        assert shown[1:] == [
            "  content and view at C: 3 and 2 rows, 1 keys differ",
            "    id=1",
            '      content note="a"',
            "      view   no such row",
        ]
