"""Tables and notes on a terminal: no line is wider than it, and what is to be pasted stays whole."""

from __future__ import annotations

import sys

import pytest

from tailrace.cdc.cli.output import fitted, table_lines

ROWS = [("rows", "host=127.0.0.1 port=5432 dbname=shop", "tailrace.toml"), ("q", "/a/path/that-is-longer", "default")]


def test_a_table_that_is_too_wide_breaks_the_cells_of_its_widest_columns() -> None:
    assert list(table_lines(("name", "value", "from"), ROWS, 40)) == [
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
    assert max(map(len, table_lines(["column"] * 6, rows, 30))) == 6 * 8 + 5 * 2


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
