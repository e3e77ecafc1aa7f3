"""The compiled codec has the kinds as C integers, which must equal those of `Kind`."""

from __future__ import annotations

from tailrace.schemas.types import Kind
from tests.support.interpreted import interpreted


def test_kinds_have_the_same_numbers_in_the_codec() -> None:
    putvalue = interpreted()["tailrace.schemas.encode.put_value"]
    assert {kind.name: getattr(putvalue, kind.name) for kind in Kind} == {kind.name: kind.value for kind in Kind}
