"""The registry of error codes matches the source: no code is missing, unused or of another class."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tailrace.schemas import errors
from tailrace.schemas.error_codes import CODES, ErrorCode, Retry, code, is_refilled, parks_table, retry_of
from tailrace.schemas.errors import ConfigError, RebuildError, SourceError, StateError, TailraceError, UsageError

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("cdc", "schemas", "sinks", "snapshot", "spark_jobs")
_CODE: Final = re.compile(r"TR-\d{3}")


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, TailraceError)


_CLASSES: Final[dict[str, type[TailraceError] | None]] = {
    **{each.__name__: each for each in vars(errors).values() if _is_error(each)},
    "Waiting": StateError,  # spark_jobs.maintain.waiting
    "SchemaRefused": StateError,  # sinks.http.registry
    "PartOfKey": SourceError,  # cdc.postgres.catalog
    # functions and methods whose first argument is a code, and the class of the error that they make
    "error": ConfigError,  # QueryText.error
    "_error": UsageError,  # cdc.cli.tree
    "advise": None,  # cdc.check.finding
    "_refusal": None,  # cdc.daemon.http_wait
    "line": None,  # spark_jobs.log
}


@dataclass(frozen=True, slots=True)
class Mention:
    """A code in a string of the source that is no docstring."""

    code: str
    place: str


@dataclass(frozen=True, slots=True)
class Raise:
    """A call that creates an error, or an answer over HTTP, with a code."""

    code: str
    place: str
    error: type[TailraceError] | None


@cache
def _modules() -> dict[str, ast.Module]:
    files = [*_ROOT.glob("tailrace*.py"), *_ROOT.glob("tailrace/*.py")]
    files += [file for package in _PACKAGES for file in (_ROOT / package).rglob("*.py")]
    registry = _ROOT / "schemas" / "error_codes"
    sources = [file for file in files if registry not in file.parents]
    return {str(file.relative_to(_ROOT)): ast.parse(file.read_text("utf-8")) for file in sources}


def _docstrings(tree: ast.Module) -> set[ast.expr]:
    """Return the docstrings, also those below a constant or an attribute."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {value for value in alone if isinstance(value, ast.Constant)}


def _mentions() -> Iterator[Mention]:
    for path, tree in _modules().items():
        docstrings = _docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield from (Mention(found, f"{path}:{node.lineno}") for found in _CODE.findall(node.value))


@cache
def _constants() -> dict[str, set[str]]:
    """Return the codes in module constants, by the constant's name."""
    found = defaultdict(set)
    for tree in _modules().values():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and _CODE.fullmatch(str(value.value)):
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id].add(str(value.value))
    return found


def _codes(node: ast.expr) -> set[str]:
    """Return the codes that an expression may be."""
    if isinstance(node, ast.IfExp):
        return _codes(node.body) | _codes(node.orelse)
    if isinstance(node, ast.Name):
        return _constants().get(node.id, set())
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
        return {node.value}
    return set()


@cache
def _raises() -> tuple[Raise, ...]:
    return tuple(_found_raises())


def _found_raises() -> Iterator[Raise]:
    for path, tree in _modules().items():
        bases = {
            id(call): _CLASSES[node.name]
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name in _CLASSES
            for call in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                # a finding of spark_jobs.query.refusals, which are raised by QueryText.error
                yield from (Raise(each, f"{path}:{node.lineno}", ConfigError) for each in _codes(node.value.elts[0]))
            if not isinstance(node, ast.Call):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            # `_refusal` takes the HTTP status first
            for each in sorted({each for argument in (*node.args[:2], *given) for each in _codes(argument)}):
                place, name = f"{path}:{node.lineno}", ast.unparse(node.func).rpartition(".")[2]
                if name == "__init__":
                    yield Raise(each, place, bases[id(node)])
                elif name in _CLASSES:
                    yield Raise(each, place, _CLASSES[name])
                else:
                    pytest.fail(f"{place}: say in _CLASSES of which class an error is that {name}({each}) makes")


def test_every_code_in_the_source_is_registered() -> None:
    unknown = {f"{mention.place} {mention.code}" for mention in _mentions() if mention.code not in CODES}
    assert not unknown


def test_every_registered_code_is_raised() -> None:
    assert set(CODES) == {found.code for found in _raises()}


def test_the_registry_has_the_class_of_every_raise() -> None:
    wrong = [found for found in _raises() if found.code in CODES and not _fits(found, CODES[found.code])]
    assert not wrong


def _fits(found: Raise, entry: ErrorCode) -> bool:
    if found.error is None or entry.error is None:
        return found.error is entry.error
    return issubclass(found.error, entry.error) and found.error.exit_code == entry.exit_code


def test_constants_of_one_name_have_one_code() -> None:
    assert {name: codes for name, codes in _constants().items() if len(codes) > 1} == {}


def test_every_entry_has_its_texts() -> None:
    for entry in CODES.values():
        texts = (entry.cause, entry.remedy, entry.retry.value)
        assert _CODE.fullmatch(entry.id), entry
        assert 0 < len(entry.title) <= 80, entry
        assert not entry.title.endswith("."), entry
        assert all(text.endswith(".") and "  " not in text for text in texts), entry
        assert all(text.count("`") % 2 == 0 for text in (entry.title, *texts)), entry


def test_titles_and_ids_are_unique() -> None:
    assert list(CODES) == sorted(CODES)
    # two programs have their own number for a view, and for a schema, that is missing
    titles = [entry.title for entry in CODES.values() if entry.id not in ("TR-501", "TR-523")]
    assert len(titles) == len(set(titles))


def test_known_and_unknown_codes_are_looked_up() -> None:
    assert code("TR-204").exit_code == 6
    assert code("TR-204").refill
    assert code("TR-578").exit_code is None
    with pytest.raises(KeyError):
        code("TR-999")
    assert retry_of("TR-999") is Retry.NEVER
    assert retry_of("TR-301") is Retry.OUTAGE
    assert not parks_table("TR-999")
    assert not is_refilled("TR-999")


def test_codes_have_the_retry_park_and_refill_rules_listed_here() -> None:
    """The entries decide it, so a rule that is changed by mistake would change the daemon's behaviour."""

    def ids(rule: Retry) -> set[str]:
        return {entry.id for entry in CODES.values() if entry.retry is rule}

    assert ids(Retry.STANDBY) == {"TR-206"}
    assert ids(Retry.LOCKED) == {"TR-240"}
    assert ids(Retry.OUTAGE) == {"TR-301", "TR-303", "TR-330", "TR-340"}
    assert ids(Retry.RESTART) == {"TR-201", "TR-209", "TR-211", "TR-212", "TR-232", "TR-305"}
    assert ids(Retry.ROUND) == {"TR-582", "TR-583", "TR-584"}
    about_one_table = {
        *("TR-122", "TR-123", "TR-124", "TR-125", "TR-126", "TR-128", "TR-129", "TR-133"),
        *("TR-205", "TR-213", "TR-220", "TR-304", "TR-307", "TR-345", "TR-406", "TR-424", "TR-428", "TR-431"),
        "TR-432",
    }
    assert {entry.id for entry in CODES.values() if entry.parks_table} == about_one_table
    gaps = {"TR-204", "TR-401", "TR-402", "TR-403", "TR-404", "TR-421", "TR-422"}
    assert {entry.id for entry in CODES.values() if entry.refill} == gaps


def test_the_hint_of_a_base_table_names_the_view_that_is_rebuilt() -> None:
    said = 'view "_base.app.public.orders" has no cut'
    error = RebuildError(
        "TR-521", said, view="_base.app.public.orders", detail="d", before="Stop it, then: ", after=" (all of it)"
    )
    assert error.hint == "Stop it, then: tailrace views rebuild _base.app.public.orders (all of it)"
    other = error.of_base_table("public.orders", "totals")
    wanted = 'view "totals": the base table of public.orders has no cut'
    assert (other.code, other.message, other.detail) == ("TR-521", wanted, "d")
    assert other.hint == "Stop it, then: tailrace views rebuild totals (all of it)"
