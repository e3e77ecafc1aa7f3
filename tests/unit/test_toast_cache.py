"""The file of the TOAST cache: its values over restarts, its failures, and invalidation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cdc.toast.catalog_facts import ToastShape
from tailrace.cdc.toast.store import FILE_NAME, Shape, ToastCache
from tailrace.cdc.toast.table_cache import TableToast
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column

_CUT = Cut(Position(1, 2**40, 8), 2**40 + 100, 5, "77", 1, {"t.public.docs": [5, 0, 7]})
_MIB = 2**20


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ToastCache]:
    made = ToastCache(tmp_path / "toast", 64 * _MIB)
    yield made
    made.close()


def test_values_are_visible_before_the_commit(cache: ToastCache) -> None:
    cache.put(1, b"k", "body", b"one")
    cache.put(1, b"k", "more", b"two", until=9)
    assert (cache.get(1, b"k", "body"), cache.get(1, b"k", "more")) == ((b"one", 0), (b"two", 9))
    cache.put(1, b"k", "body", b"three")
    assert cache.get(1, b"k", "body") == (b"three", 0)
    assert sorted(cache.names(1, b"k")) == ["body", "more"]
    cache.erase(1, b"k", ["body"])
    assert cache.names(1, b"k") == ["more"]
    assert (cache.get(2, b"k", "more"), cache.get(1, b"l", "more")) == (None, None)
    cache.clear(1)
    assert (cache.names(1, b"k"), cache.has(1)) == ([], False)


def test_only_committed_values_survive_a_restart(tmp_path: Path) -> None:
    first = ToastCache(tmp_path, _MIB)
    assert first.at is None
    first.put(1, b"k", "body", b"one")
    first.set_shape(1, Shape("t.public.docs", "mark", 2**41, True))
    first.commit(_CUT, "origin")
    first.put(1, b"k", "body", b"two")
    first.put(1, b"l", "body", b"three")
    first.close()
    second = ToastCache(tmp_path, _MIB)
    assert second.at == (_CUT, "origin")
    assert (second.get(1, b"k", "body"), second.get(1, b"l", "body")) == ((b"one", 0), None)
    assert (second.has(1), second.may_have(1, b"k"), second.has(2)) == (True, True, False)
    assert (second.shape(1), second.oids("t.public.docs")) == (Shape("t.public.docs", "mark", 2**41, True), [1])
    second.clear_all()
    assert [second.at, second.shape(1), second.names(1, b"k")] == [None, None, []]
    second.close()


def test_folder_and_file_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    ToastCache(tmp_path / "new", _MIB).close()
    modes = [(tmp_path / "new").stat().st_mode, (tmp_path / "new" / FILE_NAME).stat().st_mode]
    assert [mode & 0o777 for mode in modes] == [0o700, 0o600]


def test_the_oldest_values_give_way_to_the_stream_not_to_a_snapshot(tmp_path: Path) -> None:
    cache = ToastCache(tmp_path, 4 * _MIB)
    for n in range(1000):
        cache.put(1, b"%d" % n, "body", bytes([n % 256]) * 10_000)
        cache.put(1, b"kept", "body", b"new" * 1000)
    assert cache.get(1, b"0", "body") is None
    assert cache.get(1, b"999", "body") == (bytes([999 % 256]) * 10_000, 0)
    assert cache.get(1, b"kept", "body") == (b"new" * 1000, 0)
    cache.commit(_CUT, "origin")
    before = {n for n in range(1000) if cache.get(1, b"%d" % n, "body")}
    assert 300 < len(before) < 420
    for n in range(1000, 2000):
        cache.put(1, b"%d" % n, "body", bytes(10_000), evict=False)
    cache.put(1, b"999", "body", bytes(10_000), evict=False)
    assert cache.get(1, b"999", "body") is None, "no room, but the one before must not stay"
    assert {n for n in range(1000) if cache.get(1, b"%d" % n, "body")} == before - {999}
    cache.commit(_CUT, "origin")
    cache.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 5.5 * _MIB


def test_a_value_too_large_to_cache_removes_the_one_before(cache: ToastCache) -> None:
    cache.put(1, b"k", "body", b"one")
    cache.put(1, b"k", "body", bytes(17 * _MIB))
    assert cache.get(1, b"k", "body") is None


@pytest.mark.parametrize("damage", [b"no database at all" * 1000, b""])
def test_a_damaged_file_is_replaced_by_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    cache = ToastCache(tmp_path, _MIB)
    assert cache.at is None
    cache.put(1, b"k", "body", b"one")
    assert cache.get(1, b"k", "body") == (b"one", 0)
    cache.close()


def test_a_file_of_another_version_is_emptied(tmp_path: Path) -> None:
    cache = ToastCache(tmp_path, _MIB)
    cache.put(1, b"k", "body", b"one")
    cache.commit(_CUT, "origin")
    cache.close()
    other = sqlite3.connect(tmp_path / FILE_NAME)
    other.execute("PRAGMA user_version = 2")
    other.close()
    cache = ToastCache(tmp_path, _MIB)
    assert (cache.at, cache.get(1, b"k", "body")) == (None, None)
    cache.close()


def test_a_file_whose_damage_is_found_in_use_is_deleted(tmp_path: Path) -> None:
    cache = ToastCache(tmp_path, 64 * _MIB)
    for n in range(2000):
        cache.put(1, b"%d" % n, "body", bytes(5000))
    cache.commit(_CUT, "origin")
    cache.close()
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 6_000_000)
    cache = ToastCache(tmp_path, 64 * _MIB)
    assert [cache.get(1, b"%d" % n, "body") for n in range(2000)] == [None] * 2000
    cache.put(1, b"k", "body", b"one")
    cache.commit(_CUT, "origin")
    cache.close()
    assert not (tmp_path / FILE_NAME).exists()


def test_without_a_usable_folder_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (None, tmp_path / "file" / "below"):
        cache = ToastCache(folder, _MIB)
        cache.put(1, b"k", "body", b"one")
        cache.set_shape(1, Shape("t", "mark", 1, True))
        cache.commit(_CUT, "origin")
        assert (cache.get(1, b"k", "body"), cache.shape(1), cache.at, cache.oids("t")) == (None, None, None, [])
        cache.close()


def test_a_file_in_use_by_another_cache_is_left_alone(cache: ToastCache, tmp_path: Path) -> None:
    cache.put(1, b"k", "body", b"one")
    other = ToastCache(tmp_path / "toast", _MIB)
    other.put(1, b"k", "body", b"two")
    other.commit(_CUT, "origin")
    assert other.get(1, b"k", "body") is None
    other.close()
    assert cache.get(1, b"k", "body") == (b"one", 0)
    assert (tmp_path / "toast" / FILE_NAME).exists()


# Invalidation of a table's values

_RELATION = Relation(1, "public", "docs", ReplicaIdentity.DEFAULT, (Column("id", 23, -1, True), Column("body", 25)))


def _took(table: TableToast, lsn: int, body: bytes) -> None:
    message = b"\0\2t\0\0\0\1" + b"7" + b"t" + len(body).to_bytes(4, "big") + body
    table.took(b"I\0\0\0\1N" + message, 5, lsn, [(0, b"\0\0\0\0\1\x0e", b"value")])


def _kept(cache: ToastCache) -> bool:
    return cache.get(1, b"\x0e", "body") is not None


@pytest.fixture
def table(cache: ToastCache) -> TableToast:
    made = TableToast(cache, _RELATION, ToastShape({1: 10}, 20, "mark", 100))
    made.seen("t.public.docs", "mark", 100)
    return made


def test_a_relation_message_without_a_change_keeps_values(table: TableToast, cache: ToastCache) -> None:
    _took(table, 50, b"x" * 100)
    _took(table, 100, b"y" * 100)  # the stream has passed the LSN at which the catalog was read
    table.seen("t.public.docs", "mark", 300)
    assert _kept(cache)


@pytest.mark.parametrize(("topic", "mark"), [("t.public.docs", "other"), ("t.public.docs", None), ("t.b.docs", "mark")])
def test_a_relation_message_of_a_changed_table_drops_values(
    table: TableToast, cache: ToastCache, topic: str, mark: str
) -> None:
    _took(table, 100, b"x" * 100)
    table.seen(topic, mark, 300)
    assert not _kept(cache)


def test_values_from_before_the_catalog_was_read_are_dropped(table: TableToast, cache: ToastCache) -> None:
    """Its change may be in the catalog's answer already, so that both answers are the same."""
    _took(table, 99, b"x" * 100)
    table.seen("t.public.docs", "mark", 300)
    assert not _kept(cache)
    _took(table, 299, b"x" * 100)
    table.seen("t.public.docs", "mark", 400)
    assert not _kept(cache)


def test_without_a_catalog_answer_each_relation_message_drops_values(cache: ToastCache) -> None:
    table = TableToast(cache, _RELATION, ToastShape({1: 10}, 20, None, 0))
    table.seen("t.public.docs", None, 0)
    _took(table, 100, b"x" * 100)
    assert _kept(cache)
    table.seen("t.public.docs", None, 0)
    assert not _kept(cache)
