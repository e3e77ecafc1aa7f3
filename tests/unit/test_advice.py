"""Commands, options and configuration keys that messages and pages name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import typer
from pydantic import BaseModel

from tailrace.cdc.cli.main import app
from tailrace.schemas.config.model import Config

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("cdc", "schemas", "sinks", "snapshot", "spark_jobs")
_SECTIONS = {name: field for name, field in Config.model_fields.items() if name != "views"}
_COMMAND = re.compile(
    r"(?<![\w./'\"\[-])tailrace ((?:[a-z-]+ )*[a-z]+(?:-[a-z]+)*)((?: (?:--[a-z-]+|[A-Z0-9_./:-]+))*)"
)
_KEY = re.compile(rf"(?<![\w./-])({'|'.join(_SECTIONS)})\.(?!log\b|dirs\b|default_pipeline\b)([a-z_]+)\b(?![.(/])")


@cache  # not at import: each worker imports all tests
def _texts() -> tuple[tuple[str, str], ...]:
    return tuple(_found())


def _found() -> Iterator[tuple[str, str]]:
    """Yield the sources' strings except docstrings, with a word for each value, and the pages' lines."""
    for package in _PACKAGES:
        for file in (_ROOT / package).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(file.read_text())))
            inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
            documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in inner | documentation:
                    yield f"{file.relative_to(_ROOT)}:{node.lineno}", _text(node)
    for page in ("README.md", "docs/how-to/read-views.md", "docs/explanation/views.md"):
        for number, line in enumerate((_ROOT / page).read_text().splitlines(), 1):
            yield f"{page}:{number}", line


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "NAME"


def test_commands_and_options_in_texts_exist() -> None:
    seen = 0
    whole = typer.main.get_command(app)
    for place, text in _texts():
        for words, rest in _COMMAND.findall(text):
            command, left = whole, words.split()
            while left and left[0] in getattr(command, "commands", {}):
                command = command.commands[left.pop(0)]  # type: ignore[attr-defined]
            if left == words.split() or (not left and hasattr(command, "commands")):
                continue  # the product's name in a sentence
            seen += 1
            assert not hasattr(command, "commands"), f"{place}: tailrace {words}"
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            assert {word for word in rest.split() if word.startswith("--")} <= known, f"{place}: {words}{rest}"
    assert seen > 50


def test_configuration_keys_in_texts_exist() -> None:
    seen = 0
    for place, text in _texts():
        for section, key in _KEY.findall(text):
            seen += 1
            kinds = (_SECTIONS[section].annotation, *get_args(_SECTIONS[section].annotation))
            (model,) = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            assert key in model.model_fields, f"{place}: {section}.{key}"
    assert seen > 50
