"""The hint about a view's table that is not captured."""

from __future__ import annotations

from tailrace.schemas.records.topics import Topics, without_escapes
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.spark_jobs.query.catalog import captured, not_captured


def test_names_in_hints_are_those_of_tables_not_of_topics() -> None:
    topic = Topics("app").table("Ward X", "Night Shift.Log")
    assert topic == "app.Ward_x20X.Night_x20Shift_x2ELog"
    stored = [StoredSchema(number, f"{topic}-{kind}", "") for number, kind in enumerate(("key", "value"))]
    known = captured("app", stored)
    assert known == {"Ward X.Night Shift.Log": True}
    asked = Topics("app").table("Ward X", "Night Shift Log")
    hint = not_captured(without_escapes(asked.removeprefix("app.")), known)
    assert hint.startswith('Did you mean "Ward X.Night Shift.Log"?')
    assert without_escapes("snake_case_x and_xyz") == "snake_case_x and_xyz"
