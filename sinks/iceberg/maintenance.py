"""Compaction and expiry of a table in the warehouse, by Iceberg's own procedures.

* A rewrite carries no cut: what is applied stays with the newest snapshot that has one.
* Expiry only takes what the live generation had before one snapshot: the newest with a cut that is older than readers
  may ask for, and that no view which reads the table, and no rebuild of one, still needs. From there on nothing is
  missing, so a walk from the newest snapshot back finds every state in between; what is applied is never taken, of
  any generation. Snapshots of other generations alone go with these (`sinks.iceberg.generations`).
* That snapshot is tagged `PINNED`, for whoever else expires snapshots.

Deletion vectors go with the files that they belong to; there is one for each file, so that none need be merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.generations import Snapshot
from tailrace.sinks.iceberg.target import IcebergTarget

PINNED: Final = "pinned"

_COMPACTION: Final = {
    # Of a large table only what is new is written again.
    "target-file-size-bytes": 134_217_728,
    "min-input-files": 5,
    "max-files-to-rewrite": 1000,
}


def rebuild_pin(view: str, generation: int) -> str:
    """Return the tag by which the rebuild of a view keeps a state of what it reads."""
    return f"pin_{view}_g{generation}"


def compact(target: IcebergTarget) -> dict[str, Any]:
    """Merge small files, and write files anew of which many rows are deleted; return what was done."""
    options = ", ".join(f"'{name}', '{value}'" for name, value in _COMPACTION.items())
    found = target.call("rewrite_data_files", f"options => map({options})")
    return {"files_rewritten": found["rewritten_data_files_count"], "files_added": found["added_data_files_count"]}


def expire(
    target: IcebergTarget, before_ms: int, slowest: Cut | None, generations: Mapping[str, int]
) -> dict[str, Any]:
    """Expire what neither a reader as of `before_ms` or later needs, nor a view that stands at `slowest`.

    `generations` are the live generations of views: a rebuild's pin counts until its generation is live.
    """
    snapshots = target.snapshots()
    oldest_pin_ms = _oldest_pin(target, generations)
    first = next(
        (
            place
            for place, snapshot in enumerate(snapshots)
            if snapshot.cut is not None
            and snapshot.timestamp_ms <= min(before_ms, oldest_pin_ms)
            and (slowest is None or snapshot.cut.order <= slowest.order)
        ),
        None,
    )
    if first is None or first == len(snapshots) - 1:
        return {"snapshots_expired": 0}
    kept = snapshots[first]
    target.tag(PINNED, kept.id)
    spared = target.referenced()
    dead = [snapshot.id for snapshot in snapshots[first + 1 :] if snapshot.id not in spared]
    target.take_out(dead)
    return {"snapshots_expired": len(dead)}


def commits_since_compaction(snapshots: Collection[Snapshot]) -> int:
    """Return how many batches have been written since small files were last merged."""
    count = 0
    for snapshot in snapshots:
        if snapshot.rewrite:
            break
        count += 1
    return count


def _oldest_pin(target: IcebergTarget, generations: Mapping[str, int]) -> float:
    """Return when the oldest state was made that a rebuild still needs; drop the pins of those that are done."""
    oldest = float("inf")
    for name, made_ms in target.tags().items():
        pin = re.fullmatch(r"pin_(.+)_g(\d+)", name)
        if pin is None:
            continue
        if generations.get(pin[1], 0) >= int(pin[2]):
            target.untag(name)
        else:
            oldest = min(oldest, made_ms)
    return oldest
