"""The log's form of errors with several lines, and of the error that ends a program."""

from __future__ import annotations

import json

import pytest

from tailrace.schemas.errors import ConfigError
from tailrace.schemas.log_form import failure, rendered
from tailrace.spark_jobs.log import line, set_level

_ERROR = ConfigError("TR-999", "it is wrong", detail='By "this".', hint="do this\n       and that")


def test_an_error_of_several_lines_is_printed_as_lines_on_a_terminal() -> None:
    shown = rendered("error", {"event": "view parked", "error": str(_ERROR), "again_in_s": 5}, terminal=True)
    assert shown.splitlines()[1:] == str(_ERROR).splitlines()
    assert "again_in_s" in shown
    record = json.loads(rendered("error", {"event": "view parked", "error": str(_ERROR)}, terminal=False))
    assert (record["event"], record["error"]) == ("view parked", str(_ERROR))


def test_a_traceback_on_a_terminal_shows_no_values_of_variables() -> None:
    hidden = "hunter" + "2"
    try:
        hidden.index("x")
    except ValueError:
        shown = rendered("error", {"event": "it failed", "exc_info": True}, terminal=True)
    assert "ValueError" in shown
    assert hidden not in shown


def test_the_error_that_ends_a_program_is_three_lines_or_a_record() -> None:
    assert failure(_ERROR, terminal=True) == str(_ERROR)
    record = json.loads(failure(_ERROR, terminal=False))
    assert record.pop("timestamp")
    assert record == {
        "code": "TR-999",
        "event": "it is wrong",
        "detail": 'By "this".',
        "hint": "do this\n       and that",
        "level": "error",
    }
    assert json.loads(failure(ConfigError("TR-999", "it is wrong"), terminal=False)).keys() == {
        "code",
        "event",
        "level",
        "timestamp",
    }


def test_records_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_level("warning")
    try:
        line(event="batch applied", view="a")
        line(event="view parked", view="b", level="error")
    finally:
        set_level("info")
    line(event="batch applied", view="c")
    assert [json.loads(each)["view"] for each in capsys.readouterr().err.splitlines()] == ["b", "c"]
