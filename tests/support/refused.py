"""A start that is refused is announced: `tailrace check` names its reason before it."""

from __future__ import annotations

from pathlib import Path

from tailrace.cdc.check.finding import Severity
from tailrace.cdc.check.run_check import check
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.daemon import tailrace


def assert_found(config: Config, code: str, severity: Severity = Severity.STOP) -> None:
    """Assert that `tailrace check` reports a code, with this severity."""
    found = {each.id: each.severity for each in check(config, ("source", "kafka"))}
    assert found.get(code) is severity, f"check does not report {code}, but {found}"


def assert_refused(config: Path, code: str, exit_code: int, *words: str, found: bool = True) -> str:
    """Run the daemon and check its exit code and error message, which it returns.

    `found`: `tailrace check` has to report the code before.
    """
    if found:
        assert_found(load(config), code)
    done = tailrace("run", "--config", str(config), timeout=60)
    text = done.stderr
    assert done.returncode == exit_code, text
    assert "Traceback" not in text
    lines = text.strip().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("ERROR"))
    assert lines[start].startswith(f"ERROR  {code}  "), text
    assert any(line.startswith("HINT") for line in lines[start:]), text
    for word in words:
        assert word in text, f"{word!r} is missing in: {text}"
    return text
