"""Pass settings to spark-submit in files of mode 600: `ps` shows command lines to every user."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


@contextmanager
def submit_files(settings: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the arguments that make spark-submit read `settings`; the files are deleted after the block.

    Java options are in a file as well, which the `java` launcher reads: they may contain trust store passwords.
    """
    folder = Path(tempfile.mkdtemp(prefix="tailrace-"))  # of mode 700
    try:
        settings = dict(settings)
        if given := settings.get(_JAVA_OPTIONS, "").strip():
            options = _written(folder / "java_options", "".join(f"{_quoted(each)}\n" for each in shlex.split(given)))
            settings[_JAVA_OPTIONS] = f"@{options}"
        lines = "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
        # Otherwise, spark-submit would ignore spark-defaults.conf.
        yield "--properties-file", str(_written(folder / "spark.conf", lines)), "--load-spark-defaults"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")
    return file


def _quoted(option: str) -> str:
    # https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html#java-command-line-argument-files
    escaped = option.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _escaped(text: str) -> str:
    """Escape a name or a value in the format of java.util.Properties."""
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in "\\ =:#!":
        return f"\\{character}"
    if " " < character <= "~":
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
