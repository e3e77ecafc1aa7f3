"""Files that only expired snapshots refer to, found without reading what all other snapshots refer to.

Iceberg's own procedure reads the manifests of every retained snapshot. An hour of small batches has thousands, and an
expiry would take as long as hundreds of batches. https://iceberg.apache.org/spec/#manifest-lists
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

Read = Callable[[str], bytes]

_DELETED = 2
"""The status of a manifest's entry for a file that the snapshot has removed."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A snapshot in the table's metadata: its parent, and the path of its manifest list."""

    parent: int | None
    manifest_list: str


def unreachable(snapshots: Mapping[int, Listed], expired: Collection[int], read: Read) -> list[str]:
    """Return the files that expired snapshots refer to and no retained one does: data, manifests, manifest lists.

    `snapshots` are those before the expiry, `read` returns a file's bytes. The cost is that of the expired snapshots.
    A file that a snapshot has removed does not come back in a later one. So of the retained snapshots that descend from
    each other, the first refers to all that they share with an earlier, expired one; and a retained parent of an
    expired snapshot, to all that the two share.
    """
    gone = set(expired)
    parents = {snapshots[name].parent for name in gone}
    retained = [
        each.manifest_list
        for name, each in snapshots.items()
        if name not in gone and (name in parents or _is_first(each, snapshots, gone))
    ]
    lists = [snapshots[name].manifest_list for name in gone]
    still = {path for each in retained for path in _manifests(each, read)}
    manifests = {path for each in lists for path in _manifests(each, read)} - still
    files = {path for each in manifests for path in _files(each, read)}
    if files:
        for each in still:
            files.difference_update(_files(each, read))
    return [*sorted(files), *sorted(manifests), *sorted(lists)]


def _is_first(each: Listed, snapshots: Mapping[int, Listed], gone: Collection[int]) -> bool:
    return each.parent is None or each.parent not in snapshots or each.parent in gone


def _manifests(manifest_list: str, read: Read) -> Iterator[str]:
    for record in _records(read(manifest_list)):
        yield record["manifest_path"]


def _files(manifest: str, read: Read) -> Iterator[str]:
    for record in _records(read(manifest)):
        if record["status"] != _DELETED:
            yield record["data_file"]["file_path"]


def _records(avro: bytes) -> Iterator[dict[str, Any]]:
    yield from fastavro.reader(io.BytesIO(avro))  # type: ignore[misc]
