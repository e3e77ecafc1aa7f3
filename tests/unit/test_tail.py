"""`tailrace tail` as text: values are as PostgreSQL prints them."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.cdc.operations.tail import Line
from tailrace.schemas.lsn import Position
from tailrace.sinks.kafka.read_topic import Record


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (["1", None, "2"], "{1,NULL,2}"),
        ([["1", "2"], ["3", None]], "{{1,2},{3,NULL}}"),
        (["a b", "", "null", 'say "x"', "back\\slash", "it's"], '{"a b","","null","say \\"x\\"","back\\\\sla…'),
        ([], "{}"),
        ("[1]", "[1]"),
        (None, "NULL"),
    ],
)
def test_arrays_are_in_postgresqls_form(value: Any, printed: str) -> None:
    record = Record(0, 0, 0, b"", b"", Position(1, 8, 0))
    line = Line("public.t", record, "c", {"id": "1"}, None, {"id": "1", "v": value}, None)
    assert str(line).endswith(f"  v: {printed}")
