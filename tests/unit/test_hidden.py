"""Hidden columns by attribute number: which new shapes of a table would show one of them in plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.cdc.tables.hidden import check_hidden, hidden_in
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.layout import Attribute, HiddenColumn, Layout, TableState
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column

NAMES = "id ssn note"
SSN = HiddenColumn(7, 2, "public.t", "ssn")


def relation(columns: str = NAMES, name: str = "t", oid: int = 7) -> Relation:
    made = tuple(Column(column, 25, is_key=column == "id") for column in columns.split())
    return Relation(oid, "public", name, ReplicaIdentity.DEFAULT, made)


def layout(columns: str = "id:1 ssn:2 note:3", oid: int = 7) -> Layout:
    pairs = (each.split(":") for each in columns.split())
    return Layout(oid, (), (1,), tuple(Attribute(int(n), name, 25, -1, False, 5) for name, n in pairs))


def check(
    shape: Relation,
    now: Layout | None,
    *stored: HiddenColumn,
    known: str = "id ssn note",
    exclude: tuple[str, ...] = ("public.t.ssn",),
) -> tuple[HiddenColumn, ...]:
    options = ColumnOptions(Source(dsn="", exclude=list(exclude)))
    numbers = {name: n for n, name in enumerate(known.split(), 1)}
    return check_hidden(shape, now, numbers, stored or (SSN,), options)


RENAMED = relation("id tel note"), layout("id:1 tel:2 note:3")

EXPOSED = {
    "renamed": RENAMED,
    "exchanged": (relation("id note ssn"), layout("id:1 note:2 ssn:3")),
    "renamed, and the catalog is later": (relation("id tel note"), layout("id:1 again:2 note:3")),
    "renamed, and since dropped": (relation("id tel note"), layout("id:1 note:3")),
    "renamed, and the table is missing": (relation("id tel note"), None),
    "exchanged for a time": (relation("id note ssn"), layout()),
    "its table was renamed": (relation(name="u"), layout()),
    "another column has its name": (relation("id tel note ssn"), layout("id:1 tel:2 note:3 ssn:4")),
    "created again without it": (relation("id tel note", oid=8), layout("id:1 tel:2 note:3", oid=8)),
}


@pytest.mark.parametrize("shape", EXPOSED)
def test_a_shape_that_would_show_a_hidden_column_is_refused(shape: str) -> None:
    with pytest.raises(StateError) as raised:
        check(*EXPOSED[shape])
    assert raised.value.code == "TR-432"


def test_an_unchanged_or_earlier_shape_is_accepted() -> None:
    assert check(relation(), layout()) == (SSN,)
    # the stream shows the shape of before the rename
    assert check(relation(), layout("id:1 tel:2 note:3")) == (SSN,)
    with pytest.raises(StateError, match=r'column "ssn" of table "public\.t"'):
        check(relation(), layout("id:1 tel:2 note:3"), exclude=("public.t.tel",))


def test_a_new_name_in_the_options_takes_the_place_of_the_old_one() -> None:
    assert check(*RENAMED, exclude=("public.t.tel", "public.t.ssn")) == (replace(SSN, column="tel"),)
    assert check(*RENAMED, exclude=("public.t.tel",)) == (replace(SSN, column="tel"),)
    assert check(*RENAMED, exclude=()) == ()


def test_other_columns_are_free() -> None:
    assert check(relation("id ssn other"), layout("id:1 ssn:2 other:3")) == (SSN,)
    assert check(relation("id note more"), layout("id:1 note:3 more:4")) == ()
    assert check(relation("id note"), layout()) == (SSN,), "a column list of the publication leaves it out"
    assert check(relation("id ssn note email"), layout("id:1 ssn:2 note:3 email:9"), exclude=("*.ssn", "*.email")) == (
        SSN,
        HiddenColumn(7, 9, "public.t", "email"),
    )


def test_a_table_that_took_the_name_has_its_own_columns() -> None:
    again = relation("id ssn", oid=8)
    own, old = replace(SSN, oid=8), replace(SSN, replaced=True)
    assert check(again, layout("id:1 ssn:2", oid=8)) == (own, old)
    assert check(relation("id", oid=8), layout("id:1", oid=8), own, old) == (old,)
    with pytest.raises(StateError):
        check(relation(name="t_old"), layout(), old)


def test_a_state_of_an_older_version_has_its_hidden_columns_in_the_layout() -> None:
    assert hidden_in(layout(), "public.t", ColumnOptions(Source(dsn="", mask={"*.ssn": 2}))) == (SSN,)
    state = TableState(1, 7, layout(), hidden=(SSN,))
    assert TableState.from_json(state.to_json()) == state
    older = state.to_json().replace(b'"hidden"', b'"unknown"')
    assert TableState.from_json(older) == replace(state, hidden=())
