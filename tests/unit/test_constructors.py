"""Rules for all classes: constructors assign every attribute and have at most seven parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("cdc", "schemas", "sinks", "snapshot", "spark_jobs", "tests")
_MOST_PARAMETERS = 7
_CONSTRUCTORS = ("__init__", "__post_init__", "__new__")

Classes = dict[str, list[ast.ClassDef]]


@cache
def _project() -> Classes:
    return _classes(path.read_text() for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py")))


def _classes(sources: Iterable[str]) -> Classes:
    """Return the classes by name; of one name there can be several."""
    found: Classes = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def _late_attributes(classes: Classes) -> dict[str, set[str]]:
    """Return by class the attributes that methods assign, but no constructor."""
    late: dict[str, set[str]] = {}
    for name, nodes in classes.items():
        for node in nodes:
            others = (_bound(method) for method in _methods(node) if not _constructs(method))
            if found := set[str]().union(*others) - _known(node, classes):
                late[name] = found
    return late


def _crowded_constructors(classes: Classes) -> dict[str, int]:
    """Return by class the number of constructor parameters besides `self`, where they are too many."""
    counts: dict[str, int] = {}
    for name, nodes in classes.items():
        for method in (method for node in nodes for method in _methods(node) if method.name == "__init__"):
            count = len(method.args.posonlyargs) + len(method.args.args) + len(method.args.kwonlyargs) - 1
            if count > _MOST_PARAMETERS:
                counts[name] = count
    return counts


def _known(node: ast.ClassDef, classes: Classes) -> set[str]:
    """Return the names that the body and the constructors of a class and its ancestors bind."""
    known: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            known.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            known |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    for method in _methods(node):
        known |= _bound(method) if _constructs(method) else {method.name}
    for base in (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in node.bases):
        for ancestor in classes.get(base, []):
            if ancestor is not node:
                known |= _known(ancestor, classes)
    return known


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def _constructs(method: ast.FunctionDef) -> bool:
    # Hypothesis starts a state machine with the rule that is marked `initialize`
    marks = (each.func if isinstance(each, ast.Call) else each for each in method.decorator_list)
    return method.name in _CONSTRUCTORS or any(isinstance(each, ast.Name) and each.id == "initialize" for each in marks)


def _bound(method: ast.FunctionDef) -> set[str]:
    """Return the attributes of `self` that a method assigns."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_every_attribute_is_assigned_by_a_constructor() -> None:
    assert not _late_attributes(_project())


def test_no_constructor_has_more_than_seven_parameters() -> None:
    assert not _crowded_constructors(_project())


def test_an_attribute_that_is_assigned_late_is_found() -> None:
    source = "class A:\n def __init__(self): self.x = 0\nclass B(A):\n def go(self): self.x, self.y = 1, 2"
    assert _late_attributes(_classes([source])) == {"B": {"y"}}


def test_a_crowded_constructor_is_found() -> None:
    source = "class A:\n def __init__(self, a, b, c, d, e, *, f, g, h): ..."
    assert _crowded_constructors(_classes([source])) == {"A": 8}
