"""The files of expired snapshots that no retained one refers to, against a look at all of them."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pytest

from tailrace.sinks.iceberg.unreachable import Listed, unreachable

_LIST: Any = {"type": "record", "name": "manifest_file", "fields": [{"name": "manifest_path", "type": "string"}]}
_FILE: Any = {"type": "record", "name": "r2", "fields": [{"name": "file_path", "type": "string"}]}
_MANIFEST: Any = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [{"name": "status", "type": "int"}, {"name": "data_file", "type": _FILE}],
}
_ADDED, _EXISTING, _DELETED = 0, 1, 2


@dataclass
class History:
    """Snapshots that follow each other, also several one; a manifest has its entries, status and file."""

    draw: random.Random
    snapshots: dict[int, Listed] = field(default_factory=dict)
    manifests: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)

    def commit(self, parent: int | None) -> None:
        """Add files to a snapshot, remove some of its own, and rewrite the manifests of these."""
        number, found = len(self.snapshots), []
        for path in self.lists[self.snapshots[parent].manifest_list] if parent is not None else ():
            live = [file for status, file in self.manifests[path] if status != _DELETED]
            removed = {file for file in live if self.draw.random() < 0.2}
            if removed:
                path = self._manifest([(_DELETED if each in removed else _EXISTING, each) for each in live])
            if len(removed) < len(live) or self.draw.random() < 0.5:
                found.append(path)
        found.append(self._manifest([(_ADDED, f"f{number}.{n}") for n in range(self.draw.randrange(3))]))
        self.lists[f"l{number}"] = found
        self.snapshots[number] = Listed(parent, f"l{number}")

    def _manifest(self, entries: list[tuple[int, str]]) -> str:
        path = f"m{len(self.manifests)}"
        self.manifests[path] = entries
        return path

    def read(self, path: str) -> bytes:
        """Return a file as Iceberg writes it."""
        raw = io.BytesIO()
        if path in self.lists:
            fastavro.writer(raw, _LIST, [{"manifest_path": each} for each in self.lists[path]])
        else:
            entries = [{"status": status, "data_file": {"file_path": file}} for status, file in self.manifests[path]]
            fastavro.writer(raw, _MANIFEST, entries)
        return raw.getvalue()

    def reached(self, snapshots: set[int]) -> set[str]:
        """Return all files that snapshots refer to, with manifests and their lists."""
        lists = {self.snapshots[each].manifest_list for each in snapshots}
        manifests = {path for each in lists for path in self.lists[each]}
        files = {file for each in manifests for status, file in self.manifests[each] if status != _DELETED}
        return files | manifests | lists


@pytest.mark.parametrize("seed", range(300))
def test_what_only_expired_snapshots_refer_to_is_found(seed: int) -> None:
    draw = random.Random(seed)
    history = History(draw)
    history.commit(None)
    for _ in range(draw.randrange(1, 25)):
        # mostly one after the other; else a branch, or what is left behind by a rollback
        last = len(history.snapshots) - 1
        history.commit(last if draw.random() < 0.8 else draw.randrange(last + 1))
    everything = set(history.snapshots)
    expired = {each for each in everything if draw.random() < draw.choice([0.2, 0.8])}
    found = unreachable(history.snapshots, sorted(expired), history.read)
    assert len(set(found)) == len(found)
    assert set(found) == history.reached(expired) - history.reached(everything - expired)


def test_the_retained_snapshots_of_a_long_history_are_not_read() -> None:
    history = History(random.Random(1))
    history.commit(None)
    for number in range(200):
        history.commit(number)
    opened: list[str] = []

    def read(path: str) -> bytes:
        opened.append(path)
        return history.read(path)

    unreachable(history.snapshots, range(5), read)
    assert {each for each in opened if each.startswith("l")} == {f"l{number}" for number in range(6)}
