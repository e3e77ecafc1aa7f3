"""The error of `tailrace dev up` about a program that has ended, taken from its log."""

from __future__ import annotations

from pathlib import Path

from tailrace.cdc.dev.failure import last_failure
from tailrace.cdc.dev.up import died
from tailrace.schemas.errors import SinkError
from tailrace.schemas.log_form import failure, rendered

_ERROR = SinkError("TR-999", "the catalog cannot be used", detail="No such folder.", hint="mkdir it")


def test_the_error_of_a_program_is_the_cause_with_its_hint(tmp_path: Path) -> None:
    log = tmp_path / "views.log"
    log.write_text(
        rendered("info", {"event": "views job started"}, terminal=False) + "\n" + failure(_ERROR, terminal=False)
    )
    error = died("views", log)
    assert (error.code, error.message) == ("TR-611", "the views job has ended")
    assert error.detail == "TR-999 the catalog cannot be used. No such folder."
    assert error.hint == f"mkdir it\n       Full log: {log}"


def test_a_log_that_ends_without_an_error_is_referred_to(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    parked = rendered("error", {"event": "table parked", "code": "TR-304", "error": "x", "table": "t"}, terminal=False)
    for text in (parked, "Killed", "", "[1]"):
        log.write_text(text)
        assert last_failure(log) is None
        assert died("daemon", log).hint == f"Full log: {log}"
    assert last_failure(tmp_path / "none.log") is None
