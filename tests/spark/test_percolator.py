"""Stored queries in a real index: matches, parked queries and their reasons; pages, chunks, versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.schemas.config.model import Search
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut
from tailrace.sinks.opensearch import percolator, stored_queries
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.opensearch.percolator import match
from tailrace.sinks.opensearch.stored_queries import StoredQueries, UsersQueries, store_queries

COLUMNS = {"id": "int", "body": "string", "n": "bigint", "at": "timestamp", "script": "string", "a.b": "string"}


class Rows(list[Any]):
    """The part of a DataFrame that `StoredQueries.store` uses."""

    def foreachPartition(self, work: Any) -> None:
        work(iter(self))


def cut(lsn: int) -> Cut:
    return Cut(Position(0, lsn, 0), lsn + 1, 0, "sys", 1)


def stored(search_url: str, prefix: str, queries: dict[str, Any], lsn: int = 100) -> tuple[Search, StoredQueries]:
    search = Search(hosts=[search_url], index_prefix=f"{prefix}-")
    index = StoredQueries(search, "alerts", "public.saved.query")
    assert index.open(COLUMNS) is None
    index.store(Rows((key, "v1", _text(query)) for key, query in queries.items()), COLUMNS, cut(lsn))  # type: ignore[arg-type]
    assert index.open(COLUMNS) == cut(lsn)
    return search, index


def _text(query: Any) -> str:
    return query if isinstance(query, str) else json.dumps(query, indent=1)


def matched(search: Search, index: StoredQueries | UsersQueries, documents: list[dict[str, Any]]) -> set[Any]:
    queries = index.opened()
    try:
        rows = [(f"[{n}]", 1000 + n, 4 * n, json.dumps(document)) for n, document in enumerate(documents)]
        found = list(match(rows, search, queries))
        assert all((lsn, ordinal) == (1000 + int(key[1:-1]), 4 * int(key[1:-1])) for _, _, key, lsn, ordinal in found)
        assert len(set(found)) == len(found)
        return {(query, version, key) for query, version, key, _, _ in found}
    finally:
        index.close(queries)


def test_invalid_queries_are_parked_and_the_others_match(search_url: str, prefix: str) -> None:
    queries = {
        '["fox"]': {"match": {"body": "fox"}},
        '["dotted"]': {"match": {"a_x2Eb": "fox"}},
        '["a column called script"]': {"match": {"script": {"query": "fox"}}},
        '["other field"]': {"match": {"nope": "fox"}},
        '["misspelt"]': {"mtach": {"body": "fox"}},
        '["not an object"]': '"fox"',
        '["not JSON"]': "{body: fox}",
        '["empty"]': "{}",
        '["no date"]': {"range": {"at": {"gt": "tomorrow-ish"}}},
        '["script"]': {"bool": {"must": [{"script": {"script": "doc['n'].value > 5"}}]}},
        '["score"]': {"script_score": {"query": {"match_all": {}}, "script": {"source": "1 / doc['n'].value"}}},
        '["' + "k" * 600 + '"]': {"range": {"n": {"gt": 5}}},
    }
    search, index = stored(search_url, prefix, queries)
    count, parked = index.parked(100)
    reasons = {each.query: each.error for each in parked}
    assert count == len(reasons) == 8
    assert "[nope]" in reasons['["other field"]']
    assert "mtach" in reasons['["misspelt"]']
    assert reasons['["script"]'] == reasons['["score"]'] == "scripts are not supported"
    documents: list[dict[str, Any]] = [{"body": "a fox", "n": 3}, {"a_x2Eb": "fox", "n": 6}, {"script": "fox"}, {}]
    found = {(query, key) for query, _, key in matched(search, index, documents)}
    assert found == {
        ('["fox"]', "[0]"),
        ('["dotted"]', "[1]"),
        ('["' + "k" * 600 + '"]', "[1]"),
        ('["a column called script"]', "[2]"),
    }


def test_queries_match_in_the_version_of_the_newest_cut(
    search_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small pages and chunks; a repeated old batch changes nothing."""
    monkeypatch.setattr(percolator, "_PAGE", 3)
    monkeypatch.setattr(percolator, "_DOCUMENTS", 2)
    monkeypatch.setattr(stored_queries, "_QUERIES", 4)
    first = {f"[{n}]": {"range": {"n": {"gte": n}}} for n in range(10)}
    search, index = stored(search_url, prefix, first)
    documents: list[dict[str, Any]] = [{"n": n} for n in (-1, 0, 4, 100, 8)]
    expected = {(f"[{q}]", "v1", f"[{d}]") for d, each in enumerate(documents) for q in range(10) if each["n"] >= q}
    assert matched(search, index, documents) == expected

    changes = [("[0]", "v2", '{"range": {"n": {"gte": 50}}}'), ("[1]", "v2", "{"), ("[2]", "v2", None)]
    held = index.opened()
    index.store(Rows(changes), COLUMNS, cut(200))  # type: ignore[arg-type]
    old_rows = [(key, "v1", _text(query)) for key, query in first.items()]
    store_queries(old_rows, search, f"{prefix}-alerts-queries", 100)
    later = {each for each in expected if each[0] not in ("[0]", "[1]", "[2]")} | {("[0]", "v2", "[3]")}
    assert matched(search, index, documents) == later
    assert [each.query for each in index.parked(10)[1]] == ["[1]"]
    old = list(match([("k", 1, 1, '{"n": 0}')], search, held))
    index.close(held)
    assert [(query, version) for query, version, *_ in old] == [("[0]", "v1")], "what is held does not change"

    assert index.open(COLUMNS) == cut(200)
    assert index.open({**COLUMNS, "more": "int"}) is None, "made anew for other fields"
    assert matched(search, index, documents) == set()


def test_queries_of_the_users_own_index_match_in_their_newest_version(search_url: str, prefix: str) -> None:
    search = Search(hosts=[search_url])
    index = UsersQueries(search, f"{prefix}-mine")
    with pytest.raises(ConfigError, match=r"TR-593.*no percolator field"):
        index.opened()
    fields = {"n": {"type": "long"}, "x": {"properties": {"q": {"type": "percolator"}}}}
    with connect(Search(hosts=[search_url])) as client:
        body = {"settings": {"number_of_shards": 3}, "mappings": {"properties": fields}}
        client.indices.create(index=f"{prefix}-mine", body=body)
        for n in range(20):
            client.index(index=f"{prefix}-mine", id=str(n), body={"x": {"q": {"term": {"n": n % 2}}}})
        client.index(index=f"{prefix}-mine", id="1", body={"x": {"q": {"term": {"n": 0}}}})
        client.indices.refresh(index=f"{prefix}-mine")
    found = matched(search, index, [{"n": 1}, {"n": 0}, {"n": 2}])
    expected = {(str(n), "1", "[0]" if n % 2 else "[1]") for n in range(20) if n != 1} | {("1", "2", "[1]")}
    assert found == expected
