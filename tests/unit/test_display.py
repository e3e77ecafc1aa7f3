"""A job's log lines on a terminal, and the display's output without a terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.job import as_on_terminal, take
from tailrace.cdc.operations.progress import counted
from tests.support.terminal import on_terminal


class Recorded(Display):
    """Records everything that is shown."""

    def __init__(self) -> None:
        super().__init__("nothing yet")
        self.seen: list[object] = []

    def show(self, what: str, share: float | None, rate: str = "", seconds_left: float | None = None) -> None:
        self.seen.append((what, share, rate, seconds_left))

    def note(self, text: str) -> None:
        self.seen.append(text)


PROGRESS = {"event": "progress", "view": "orders", "stage": "read", "rows": 1200, "share": 0.25, "seconds_left": 30}
SWAPPED = {
    "event": "generation swapped",
    "view": "orders",
    "generation": 2,
    "lsn": "0/1",
    "timestamp": "x",
    "level": "info",
}


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (json.dumps(PROGRESS), ("orders: read", 0.25, "120 rows/s", 30)),
        (json.dumps(PROGRESS | {"seconds_left": None}), ("orders: read", 0.25, "1,200 rows", None)),
        (json.dumps(SWAPPED), "orders: generation swapped  generation 2  lsn 0/1"),
        (json.dumps({"event": "views job started", "views": ["a"]}), "views job started  views ['a']"),
        ("ERROR  TR-500  as it is", "ERROR  TR-500  as it is"),
        ("{not JSON", "{not JSON"),
        ('{"no": "event"}', '{"no": "event"}'),
    ],
)
def test_a_jobs_log_lines_become_progress_or_notes(line: str, seen: object) -> None:
    display = Recorded()
    take(display, line)
    assert display.seen == [seen]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (json.dumps(SWAPPED), r"\S+Z \[info     \] generation swapped +generation=2 lsn=0/1 view=orders"),
        (
            '{"code": "TR-513", "detail": "Why.", "hint": "do", "event": "no catalog", "level": "error"}',
            "ERROR  TR-513  no catalog\nDETAIL Why.\nHINT   do",
        ),
        ("Exception in thread", "Exception in thread"),
    ],
)
def test_a_services_log_is_text_on_a_terminal(line: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.fullmatch(shown, as_on_terminal(line))


def test_off_a_terminal_notes_and_results_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Display("something") as display:
        display.step("something else", 1, 2, "rows")
        display.note("a note")
        display.phase("a phase")
        display.line("a result")
        time.sleep(0.7)
    assert capsys.readouterr() == ("a result\n", "a note\na phase\n")


def test_counted_reports_its_count_and_passes_all_items_on() -> None:
    calls: list[tuple[str, int, int | None]] = []

    def slow() -> list[int]:
        time.sleep(0.25)
        return [1, 2, 3]

    items = list(counted((slow() for _ in range(2)), lambda *far: calls.append(far), "rows", 9))
    assert items == [[1, 2, 3]] * 2
    assert calls == [("rows", 0, 9), ("rows", 3, 9), ("rows", 6, 9)]


def main() -> None:
    """Simulate a long command with progress, a note and a result."""
    with Display("beginning") as display:
        time.sleep(1.0)
        for done in range(1, 11):
            display.step("view [bold]é: reading", done * 1000, 10_000, "rows")
            time.sleep(0.15)
        display.note("a note")
        display.line("a result")
        time.sleep(0.3)
    sys.exit(0)


@pytest.mark.parametrize(("width", "environment"), [(80, {"NO_COLOR": "1"}), (200, {}), (80, {"TERM": "dumb"})])
def test_on_a_terminal_progress_is_drawn_and_removed_at_the_end(
    width: int, environment: dict[str, str], tmp_path: Path
) -> None:
    seen = on_terminal([], width=width, cwd=tmp_path, module="tests.unit.test_display", environment=environment)
    assert seen.code == 0, seen.text
    last = seen.raw.split("\x1b[2K")[-1]
    if environment.get("TERM") == "dumb":
        assert seen.raw == "a note\r\na result\r\n"
        return
    for words in ("view [bold]é: reading", "100%", " rows/s", " left", "a note\r\n", "a result\r\n"):
        assert words in seen.raw, seen.text
    frames = [line for line in seen.drawn if "reading" in line]
    assert {line[:2] for line in frames} <= {"- ", "\\ ", "| ", "/ "}, "the spinner and the clock stop at 100%"
    assert last == "", "something of the display stays"
    assert "\x1b[?25l" not in seen.raw, "the cursor is hidden"
    assert bool(seen.colors) == (not environment)
