"""The documentation: generated pages are current, and the site builds without a broken link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tailrace.schemas.alerts import DAEMON_ALERTS, VIEWS_ALERTS
from tests.support.documentation import DOCS, blocks

_ROOT = Path(__file__).parents[2]


def test_reference_pages_are_current() -> None:
    checked = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    shutil.copytree(_ROOT / "docs", tmp_path / "docs")
    shutil.copy(_ROOT / "mkdocs.yml", tmp_path)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--config-file", "mkdocs.yml"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "build/site/reference/configuration/index.html").exists()


def test_paths_named_in_the_guides_exist() -> None:
    named = re.compile(r"`((?:cdc|docs|schemas|sinks|snapshot|spark_jobs|tests)/[\w./-]*)`")
    for guide in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for path in named.findall((_ROOT / guide).read_text()):
            assert (_ROOT / path).exists(), f"{guide} names {path}"


def test_every_page_with_commands_is_run_by_a_test() -> None:
    """The tests name the pages that they run."""
    tests = "".join(file.read_text() for file in (_ROOT / "tests").rglob("test_*.py") if file != Path(__file__))
    pages = {f"{each.parent.name}/{each.name}" for kind in ("how-to", "tutorial") for each in DOCS.glob(f"{kind}/*.md")}
    assert {
        page for page in pages if blocks(page) and page not in tests and f'{Path(page).name}"' not in tests
    } == set()
    assert len(pages) > 10


def test_the_guide_has_every_alert() -> None:
    guide = (DOCS / "how-to" / "alerts.md").read_text()
    assert [each.name for each in (*DAEMON_ALERTS, *VIEWS_ALERTS) if f"**{each.name}**" not in guide] == []
