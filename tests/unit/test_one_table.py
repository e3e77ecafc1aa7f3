"""What a start does about an error of one table: park it, or refuse the start. Without servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.startup.one_table import Before, Refusals
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.errors import ConfigError, SourceError
from tailrace.schemas.records.layout import TableState, TableStatus
from tests.unit.test_table_registry import LAYOUT, READ, T

_MASKED = "n\0MASKED 0 e3b0c44298fc1c14"
_PARKED = TableState(4, 7, status=TableStatus.PARKED)


def refusals(state: TableState | None = READ, key: tuple[str, ...] = ("id",), **source: Any) -> Refusals:
    made = Source(dsn="", **source)
    states = {} if state is None else {"public.t": state}
    return Refusals(made, ColumnOptions(made), Before(states, {"public.t": key}))


@pytest.mark.parametrize("code", ["TR-122", "TR-123", "TR-124", "TR-133"])
def test_a_configured_key_is_refused_only_if_the_configuration_has_changed(code: str) -> None:
    assert is_parked(refusals(keys={"public.t": ["id"]}), code)
    assert not is_parked(refusals(keys={"public.t": ["n"]}), code)
    assert not is_parked(refusals(keys={"public.t": ["n"]}, key=()), code), "its topic is a log"
    assert is_parked(refusals(_PARKED, keys={"public.t": ["n"]}), code), "parked before"


@pytest.mark.parametrize("code", ["TR-128", "TR-129"])
def test_column_options_are_refused_only_if_the_configuration_has_changed(code: str) -> None:
    masked, excluded = replace(READ, columns=("id", _MASKED)), replace(READ, columns=("id",))
    options: dict[str, Any] = {"mask": {"public.t.n": 0}}
    assert is_parked(refusals(masked, **options), code)
    assert not is_parked(refusals(**options), code), "the column had no option"
    assert not is_parked(refusals(excluded, **options), code)
    assert not is_parked(refusals(replace(masked, layout=None), **options), code), "not known"
    assert is_parked(refusals(None, **options), code), "a new table"
    assert is_parked(refusals(excluded, exclude=["public.t.n"]), code)
    assert not is_parked(refusals(masked, exclude=["public.t.n"]), code)
    assert not is_parked(refusals(masked, **options, as_text=["public.t.*"]), code), "two options for a known column"
    longer = replace(masked, layout=replace(LAYOUT, attributes=LAYOUT.attributes[:1]), columns=("id",))
    assert is_parked(refusals(longer, **options), code), "the column is new"


def test_all_errors_of_a_start_are_one_and_those_of_a_parked_table_too() -> None:
    made = refusals()
    for error in (SourceError("TR-205", "one"), SourceError("TR-213", "two"), SourceError("TR-205", "one")):
        made.add(T, error)
    made.check()
    ((relation, parked),) = made.parked
    assert (relation, parked.code, parked.message) == (T, "TR-205", "one; two (TR-213)")
    assert made.left([T]) == []
    made.add(None, ConfigError("TR-121", "three"))
    made.add(T, ConfigError("TR-136", "four"))
    with pytest.raises(ConfigError, match="three; four"):
        made.check()


def test_a_first_start_and_on_table_error_stop_refuse() -> None:
    made = Source(dsn="")
    assert not is_parked(Refusals(made, ColumnOptions(made), None), "TR-205")
    assert not is_parked(refusals(on_table_error="stop"), "TR-205")
    assert is_parked(refusals(on_table_error="divert"), "TR-205")


def test_of_tables_that_share_a_topic_those_without_one_so_far_are_parked() -> None:
    assert refusals().newcomers(("public.t", "public.u")) == ["public.u"]
    assert refusals(_PARKED).newcomers(("public.t", "public.u")) == ["public.t", "public.u"]
    assert refusals().newcomers(("public.t",)) == ("public.t",)


def is_parked(made: Refusals, code: str) -> bool:
    made.add(T, SourceError(code, "wrong"))
    return bool(made.parked)
