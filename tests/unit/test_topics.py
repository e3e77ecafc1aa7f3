"""Topic names: tables whose names would clash, and the list of our own topics."""

from __future__ import annotations

import pytest

from tailrace.schemas.records.topics import Topics


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([("public", "a"), ("public", "b"), ("other", "a"), ("public", "A")], []),
        ([("public", "a.b"), ("public", "a_x2Eb")], [("public.a.b", "public.a_x2Eb")]),
        # Kafka refuses the second of two names that differ only in a dot and an underscore
        ([("a_b", "c"), ("a", "b_c")], [("a.b_c", "a_b.c")]),
        ([("tailrace", "schemas")], [("tailrace.schemas",)]),
        ([("tailrace", "matches_alerts")], [("tailrace.matches_alerts",)]),
        # not the same topic, but the same name in messages, the configuration and the progress topic
        ([("a.b", "c"), ("a", "b.c")], [("a.b.c", "a.b.c")]),
        ([("public", "é"), ("public", "_xE9")], [("public._xE9", "public.é")]),
    ],
)
def test_tables_whose_names_clash_are_found(tables: list[tuple[str, str]], expected: list[tuple[str, ...]]) -> None:
    assert Topics("p").clashes([*tables, tables[0]]) == expected


def test_each_of_our_own_topics_is_on_one_list() -> None:
    topics = Topics("p")
    properties = [name for name, each in vars(Topics).items() if isinstance(each, property)]
    named = {value for name in properties if isinstance(value := getattr(topics, name), str)}
    assert named == {*topics.notes, *topics.beside}
    assert [topic for topic in sorted(named) if topics.may_be_in_cuts(topic)] == sorted(topics.beside)
    assert not topics.may_be_in_cuts(topics.matches("alerts"))
    assert not topics.may_be_in_cuts("pp.public.t")
    assert topics.may_be_in_cuts(topics.table("tailrace", "t"))
