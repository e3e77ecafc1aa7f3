"""Columns that `exclude`, `mask` or `hash` hides, by attribute number: a renamed one must not appear in plain.

Options name columns, and a column can be renamed, as can its table. The number of its attribute stays, so the hidden
attributes of each table are part of its stored state. A Relation message has no numbers. They are taken from the
catalog if it shows the same columns in the same order; if not, the names decide, and in doubt the table is refused.
"""

from __future__ import annotations

import glob
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tailrace.schemas.config.columns import HIDING, ColumnOptions
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.records.layout import HiddenColumn, Layout
from tailrace.schemas.relation import Relation
from tailrace.schemas.types import Kind


def hides(options: ColumnOptions, column: str) -> bool:
    """Return whether the configuration hides a column; True if it has two options, an error of its next record."""
    try:
        option = options.of(column)
    except ConfigError:
        return True
    return option is not None and option.kind in HIDING


def hidden_in(layout: Layout, table: str, options: ColumnOptions) -> tuple[HiddenColumn, ...]:
    """Return the columns of a table with this layout that the configuration hides."""
    return tuple(
        HiddenColumn(layout.oid, each.number, table, each.name)
        for each in layout.attributes
        if hides(options, f"{table}.{each.name}")
    )


def check_hidden(
    relation: Relation,
    now: Layout | None,
    known: Mapping[str, int],
    stored: Iterable[HiddenColumn],
    options: ColumnOptions,
) -> tuple[HiddenColumn, ...]:
    """Return the hidden columns to store for a table's new shape.

    `now` is the layout in the catalog, `known` the columns and their numbers in the stored layout, `stored` the hidden
    columns of this table and of earlier ones with its name. StateError (TR-432) if a column may have values of one of
    `stored` and the configuration does not hide it.
    """
    table = relation.qualified_name
    of_this = [each for each in stored if each.oid == relation.oid]
    of_others = [each for each in stored if each.oid != relation.oid]
    numbers = _numbers(relation, now)
    shown = [each.name for each in relation.columns if not hides(options, f"{table}.{each.name}")]
    present = {column.name for column in relation.columns}
    for was in of_this:
        if not hides(options, was.full_name) and not _is_hidden_now(was, now, table, options):
            continue  # a person has removed the option
        if numbers is not None:
            found = [name for name in shown if numbers[name] == was.number]
        elif was.column in shown:
            found = [was.column]
        elif was.column in present:
            found = shown if _is_reordered(relation, known) else []
        else:
            found = [name for name in shown if name not in known]
        if found:
            raise _exposed(relation, was, found, options)
    for was in of_others:
        # of another table only the name is known
        if not was.replaced and was.column not in present and shown and hides(options, was.full_name):
            raise _exposed(relation, was, [], options)
    if numbers is None:
        return tuple(stored)
    hidden = {
        numbers[name]: HiddenColumn(relation.oid, numbers[name], table, name)
        for name in (column.name for column in relation.columns)
        if name not in shown
    }
    left = {each.number for each in now.attributes} - set(numbers.values()) if now is not None else set()
    hidden |= {each.number: each for each in of_this if each.number in left}
    replaced = [replace(each, replaced=True) for each in of_others]
    newest = [each for each in replaced if each.oid == max(other.oid for other in replaced)]
    return (*(hidden[number] for number in sorted(hidden)), *newest)


def _numbers(relation: Relation, now: Layout | None) -> dict[str, int] | None:
    """Return the attribute number of each column, None if the catalog shows the table as of another time."""
    if now is None or now.oid != relation.oid:
        return None
    names = {column.name: 0 for column in relation.columns}
    here = sorted(now.attributes, key=lambda each: each.number)
    numbers = {each.name: each.number for each in here if each.name in names}
    return numbers if list(numbers) == list(names) else None


def _is_hidden_now(was: HiddenColumn, now: Layout | None, table: str, options: ColumnOptions) -> bool:
    """Return whether the configuration hides a column under its present name."""
    attributes = now.attributes if now is not None and now.oid == was.oid else ()
    return any(each.number == was.number and hides(options, f"{table}.{each.name}") for each in attributes)


def _is_reordered(relation: Relation, known: Mapping[str, int]) -> bool:
    """Return whether columns have exchanged their names: a Relation message lists them by attribute number."""
    numbers = [known[column.name] for column in relation.columns if column.name in known]
    return numbers != sorted(numbers)


def _exposed(relation: Relation, was: HiddenColumn, found: list[str], options: ColumnOptions) -> StateError:
    table = relation.qualified_name
    resume = f"tailrace table resume {shlex.quote(table)}"
    if not found:
        return StateError(
            "TR-432",
            f'table "{table}" was created again without column "{was.column}", which the configuration hides',
            detail="Another column may have its values. No record of the new table has been written.",
            hint=f"{_setting(was, 'NAME', options)}  # under [source], if a column has them; then restart Tailrace\n"
            f"       {resume}  # the new table has no such column, or the option is in the file",
        )
    columns = ", ".join(f'"{name}"' for name in found)
    what = f"column {columns}" if len(found) == 1 else f"one of the columns {columns}"
    lines = [_setting(was, name, options, table) for name in found]
    return StateError(
        "TR-432",
        f'{what} of table "{table}" was "{was.full_name}", which the configuration hides, and would appear in plain',
        detail="A column or its table was renamed, and no option of exclude, mask or hash has its present name. No"
        " record of the new shape has been written.",
        hint="\n       ".join(
            (
                f"{lines[0]}  # under [source], beside the other columns; then restart Tailrace",
                *lines[1:],
                resume,
                f'Or remove the option of "{was.full_name}" from the file: the values then appear in plain.',
            )
        ),
    )


def _setting(was: HiddenColumn, name: str, options: ColumnOptions, table: str = "") -> str:
    """Return the line of the configuration that gives column `name` the option that `was` has."""
    try:
        option = options.of(was.full_name)
    except ConfigError:
        option = None
    column = json.dumps(glob.escape(f"{table or was.table}.{name}"), ensure_ascii=False)
    if option is not None and option.kind is Kind.MASKED:
        return f"mask = {{ {column} = {option.keep} }}"
    return f"{'hash' if option is not None and option.kind is Kind.HASHED else 'exclude'} = [{column}]"
