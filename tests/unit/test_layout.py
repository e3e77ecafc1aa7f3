"""Source folders: READMEs name all modules, and modules are imported only as tailrace.*."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("cdc", "schemas", "sinks", "snapshot", "spark_jobs")
_OF_OURS = re.compile(rf"(?:from|import) (?:{'|'.join(_FOLDERS)})\b")


def _packages() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from (init.parent for init in sorted((_ROOT / folder).rglob("__init__.py")))


def test_each_folder_names_its_modules_and_no_others() -> None:
    for package in _packages():
        if package.name == "error_codes":  # documented in its __init__
            continue
        text = (package / "README.md").read_text()
        named = set(re.findall(r"`([a-z_0-9]+\.py)`", text))
        modules = {file.name for file in package.glob("*.py")} - {"__init__.py"}
        assert modules <= named, f"{package / 'README.md'} lacks {sorted(modules - named)}"
        assert all((package / name).exists() for name in named - modules), f"{package / 'README.md'} names too much"
        assert len(text.splitlines()) <= 60, f"{package / 'README.md'} is longer than a page"


def test_modules_are_imported_only_by_their_installed_name() -> None:
    """By another name a module is loaded twice: two classes of each error, two of each cache."""
    for file in [*(_ROOT / "tests").rglob("*.py"), *(file for package in _packages() for file in package.glob("*.py"))]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in _FOLDERS, f"{file}:{node.lineno}"
            elif isinstance(node, ast.Import):
                assert not {name.name.split(".")[0] for name in node.names} & set(_FOLDERS), f"{file}:{node.lineno}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
                assert not _OF_OURS.search(node.value), f"{file}:{node.lineno}: a program in a string"


def test_an_applications_module_named_like_our_folder_is_not_loaded(tmp_path: Path) -> None:
    for name in _FOLDERS:
        (tmp_path / f"{name}.py").write_text("raise AssertionError('the application has this')\n")
    code = "import tailrace; import tailrace.cdc.cli.main; tailrace.Views('missing.toml')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ConfigError" in done.stderr, done.stderr
