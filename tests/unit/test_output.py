"""Tables and notes on a terminal: no line is wider than it, and what is to be pasted stays whole."""

from __future__ import annotations

import sys

import pytest

from tailrace.cdc.check.finding import Finding, Severity
from tailrace.cdc.cli.check import finding_lines
from tailrace.cdc.cli.output import fitted, table_lines, wrapped

ROWS = [("rows", "host=127.0.0.1 port=5432 dbname=shop", "tailrace.toml"), ("q", "/a/path/that-is-longer", "default")]


def test_a_table_that_is_too_wide_breaks_the_cells_of_its_widest_columns() -> None:
    assert list(table_lines(("name", "value", "from"), ROWS, 40, breaks_words=True)) == [
        "name  value                from",
        "rows  host=127.0.0.1       tailrace.toml",
        "      port=5432",
        "      dbname=shop",
        "q     /a/path/that-is-lon  default",
        "      ger",
    ]


@pytest.mark.parametrize("most", [61, 200, sys.maxsize])
def test_a_table_that_fits_is_one_line_for_each_row(most: int) -> None:
    assert list(table_lines(("name", "value", "from"), ROWS, most)) == [
        "name  value                                 from",
        "rows  host=127.0.0.1 port=5432 dbname=shop  tailrace.toml",
        "q     /a/path/that-is-longer                default",
    ]


def test_a_table_of_many_columns_is_wider_than_a_narrow_terminal_and_ends() -> None:
    rows = [["a" * 20] * 6]
    assert max(map(len, table_lines(["column"] * 6, rows, 30, breaks_words=True))) == 6 * 8 + 5 * 2


def test_names_stay_whole_on_a_narrow_terminal() -> None:
    head = ("table", "status", "error", "since")
    rows = [
        ("freight.customers", "parked by hand", "TR-430", "0/202494D0"),
        (f"public.{'x' * 50}", "streaming", "", ""),
    ]
    assert list(table_lines(head, rows, 40)) == [
        "table: freight.customers",
        "status: parked by hand",
        "error: TR-430",
        "since: 0/202494D0",
        "",
        "table:",
        f"  public.{'x' * 50}",
        "status: streaming",
    ]
    # cells with spaces are broken first
    assert list(table_lines(head, rows[:1], 46)) == [
        "table              status   error   since",
        "freight.customers  parked   TR-430  0/202494D0",
        "                   by hand",
    ]


def test_a_row_of_many_columns_breaks_between_them() -> None:
    row = "      source " + " ".join(f"column_{n}={n}" for n in range(40))
    lines = wrapped(row, 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("      source column_0=0 ")
    assert all(line.startswith("        column_") for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(row.split())
    assert wrapped(row, sys.maxsize) == [row]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ERROR  TR-1  one two three", "ERROR  TR-1  one two\n       three"),
        ("DETAIL one two three four", "DETAIL one two three\n       four"),
        ("HINT   tailrace status --config x.toml", "HINT   tailrace status --config x.toml"),
        ("       tailrace run --config x.toml", "       tailrace run --config x.toml"),
        ("a note of several words", "a note of several\nwords"),
        ("see /a/path/that-is-longer/than", "see\n/a/path/that-is-longer/than"),
        ("short", "short"),
    ],
)
def test_a_note_breaks_at_spaces_and_a_hint_stays_whole(text: str, shown: str) -> None:
    assert fitted(text, 20) == shown


def test_only_lines_to_paste_are_called_so() -> None:
    paste = 'Is the broker running?\nkcat -b HOST:PORT -L  # look\nALTER ROLE a REPLICATION;\nshape = "log"\nor another'
    found = Finding("TR-301", Severity.STOP, "kafka", "It is down.", "Start it.", paste, "page")
    labels = [line.split()[0] for line in list(finding_lines([found]))[2:-2]]
    assert labels == ["hint", "paste", "paste", "paste", "hint"]
