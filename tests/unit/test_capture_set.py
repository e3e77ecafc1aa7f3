"""Patterns of `source.tables`: the names that they match, and the patterns that are invalid."""

from __future__ import annotations

import pytest

from tailrace.cdc.postgres.capture_set import CaptureSet, broken, deciding
from tailrace.cdc.postgres.membership import Missing, shown, statements
from tailrace.schemas.errors import ConfigError


def test_the_last_matching_pattern_decides() -> None:
    captured = CaptureSet(["shop.*", "!shop.audit_*", "shop.audit_public", "hr.p?ople"])
    names = ["shop.orders", "shop.audit_log", "shop.audit_public", "hr.people", "hr.peeople", "Shop.orders"]
    taken = [name for name in names if captured.captures(*name.split("."))]
    assert taken == ["shop.orders", "shop.audit_public", "hr.people"]
    assert deciding("shop.audit_log", captured.patterns) == "!shop.audit_*"
    assert deciding("other.t", captured.patterns) is None


@pytest.mark.parametrize("pattern", ["shop[.*", "s.[!]", "s.[]", "s.[!]]x[", "orders", "", " ", "!", "shop*"])
def test_an_invalid_pattern_is_refused_by_name(pattern: str) -> None:
    assert broken(pattern)
    with pytest.raises(ConfigError, match="TR-127") as raised:
        CaptureSet(["a.*", pattern]).check(["shop.orders", "a.b"])
    assert f'"{pattern}"' in raised.value.message


@pytest.mark.parametrize("pattern", ["*", "*.*", "!a.b", "s.[ab]*", "s.[]]", "s.[!]]", "s.[[]x", "S.T", "a.b.c"])
def test_a_valid_pattern_is_accepted(pattern: str) -> None:
    assert broken(pattern) is None


def test_only_unmatched_patterns_that_include_tables_are_refused() -> None:
    captured = CaptureSet(["shop.*", "!shop.none", "!other.*"])
    names = ["shop.orders", "hr.people"]
    assert captured.unmatched(names) == ["!shop.none", "!other.*"]
    captured.refuse_unmatched(names)
    with pytest.raises(ConfigError, match=r"shop\.oders"):
        CaptureSet(["shop.*", "shop.oders", "!x.y"]).refuse_unmatched(names)


def test_statements_publish_all_missing_tables() -> None:
    missing = [
        Missing("shop", 'o"dd', "p"),
        Missing("shop", "b", "p"),
        Missing("shop", "log", "p_nokey"),
        Missing("shop", "alone", None),
        Missing("shop", "parts", "p", by_leaf=True),
    ]
    assert statements(missing, ["p", "p_nokey"]) == [
        'ALTER TABLE "shop"."alone" REPLICA IDENTITY FULL;',
        'ALTER PUBLICATION "p" SET (publish_via_partition_root = true);',
        'ALTER PUBLICATION "p" ADD TABLE "shop"."o""dd", "shop"."b", "shop"."alone";',
        'ALTER PUBLICATION "p_nokey" ADD TABLE "shop"."log";',
    ]


def test_names_after_the_twentieth_are_only_counted() -> None:
    assert shown([str(n) for n in range(20)]) == [str(n) for n in range(20)]
    assert shown([str(n) for n in range(25)])[-2:] == ["19", "and 5 more"]
