"""`tailrace explain` prints what the registry of error codes has."""

from __future__ import annotations

import json
import sys

import pytest

from tailrace.cdc.cli import output
from tailrace.cdc.cli.explain import explain
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.errors import UsageError


@pytest.mark.parametrize("given", ["TR-204", "tr-204", "204"])
def test_a_code_is_explained(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    explain(given)
    printed = capsys.readouterr().out
    entry = CODES["TR-204"]
    assert printed.startswith(f"TR-204  {entry.title}\n")
    for text in (entry.cause, entry.remedy, entry.what_follows):
        assert text in printed
    assert printed.endswith("Exit code  6\n")


def test_an_explanation_is_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.width() == sys.maxsize
    monkeypatch.setattr(output, "width", lambda: 60)
    explain("TR-220")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 60
    assert "`tailrace table resume`" in " ".join(printed.split())


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    explain()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["code", "exit", "retry", "title"]
    assert [row.split()[0] for row in rows] == list(CODES)
    assert all(row.endswith(entry.title) for row, entry in zip(rows, CODES.values(), strict=True))


def test_json_has_the_registrys_entries(capsys: pytest.CaptureFixture[str]) -> None:
    explain("TR-304", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == CODES["TR-304"].to_dict()
    about = [found[name] for name in ("exit_code", "error", "retry", "parks_table")]
    assert about == [4, "SourceError", "never", True]
    explain(json=True)
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == list(CODES)


def test_an_unknown_code_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="TR-005") as refused:
        explain("TR-2044")
    assert refused.value.hint == 'Did you mean "tailrace explain TR-204"? tailrace explain  # lists all codes'
    with pytest.raises(UsageError, match="there is no error code TR-999") as refused:
        explain("999")
    assert (refused.value.exit_code, refused.value.hint) == (2, "tailrace explain  # lists all codes")
    assert all(each in CODES for each in refused.value.detail.removeprefix("The nearest are ")[:-1].split(", "))
    with pytest.raises(UsageError) as refused:
        explain("everything")
    assert refused.value.hint == "tailrace explain  # lists all codes"
