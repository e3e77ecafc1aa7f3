"""Visibility for a read: 32-bit transaction ids compared with a 64-bit snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.schemas.records.layout import Attribute, Layout
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column
from tailrace.snapshot.window import Plan, VisibleXids, moved


@pytest.mark.parametrize(
    ("snapshot", "xid", "seen"),
    [
        ("100:110:103,105", 99, True),
        ("100:110:103,105", 102, True),
        ("100:110:103,105", 103, False),
        ("100:110:103,105", 109, True),
        ("100:110:103,105", 110, False),
        ("100:110:103,105", 200, False),
        ("100:100:", 99, True),
        ("100:100:", 100, False),
        # after the first wrap of the 32-bit counter
        ("4294967296:4294967400:4294967300", 4, False),
        ("4294967296:4294967400:4294967300", 5, True),
        ("4294967296:4294967400:4294967300", 104, False),
        ("4294967290:4294967300:", 4294967295, True),
    ],
)
def test_a_32_bit_xid_is_seen_as_the_64_bit_snapshot_says(snapshot: str, xid: int, seen: bool) -> None:
    assert VisibleXids.parse(snapshot).sees(xid) is seen


def test_a_table_has_moved_if_old_chunks_or_rows_do_not_fit_it() -> None:
    columns = (Column("id", 23), Column("n", 23))
    relation = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, columns)
    attributes = tuple(Attribute(i, each.name, 23, -1, False, 5) for i, each in enumerate(columns, 1))
    layout = Layout(7, ((7, 70, False),), (1,), attributes)
    plan = Plan("public.t", 1, relation, layout)
    assert not moved(plan, relation, layout)
    assert moved(plan, relation, replace(layout, files=((7, 71, False),)))  # VACUUM FULL: chunks are ranges of blocks
    renamed = replace(relation, columns=(columns[0], Column("m", 23)))
    assert moved(plan, renamed, replace(layout, attributes=(attributes[0], replace(attributes[1], name="m"))))
    fewer = replace(relation, columns=columns[:1])
    assert not moved(plan, fewer, replace(layout, attributes=attributes[:1]))
