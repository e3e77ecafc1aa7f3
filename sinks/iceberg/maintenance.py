"""Compact warehouse tables, in this process or by Iceberg's own procedure, and expire their snapshots.

* A rewrite carries no cut: the applied state remains that of the newest snapshot that has one.
* Expiry removes the live generation's snapshots before a boundary: the newest snapshot with a cut that is not younger
  than the oldest state that readers, dependent views and their rebuilds may need. From the boundary on no snapshot
  is missing, so a walk back from the newest one finds every state. The applied state of a generation never expires.
  Snapshots that belong only to other generations are dropped with these (`sinks.iceberg.generations`).
* The boundary snapshot is tagged `PINNED`, for other tools that expire snapshots.

Deletion vectors are removed with their data files; there is one per file, so none need merging.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.direct.compaction import MIN_FILES
from tailrace.sinks.iceberg.generations import Snapshot
from tailrace.sinks.iceberg.target import IcebergTarget

PINNED: Final = "pinned"
_VERIFY: Final = "verify_"
_LONGEST_VERIFY_MS: Final = 86_400_000

_COMPACTION: Final = {
    # So that in a large table only new data is rewritten.
    "target-file-size-bytes": 134_217_728,
    "min-input-files": MIN_FILES,
    "max-files-to-rewrite": 1000,
}


def rebuild_pin(view: str, generation: int) -> str:
    """Return the tag with which the rebuild of a view pins a state of a table that it reads."""
    return f"pin_{view}_g{generation}"


def verify_pin(view: str) -> str:
    """Return a new tag with which a comparison of a view pins a state of a table that it reads."""
    return f"{_VERIFY}{view}_{uuid.uuid4().hex[:8]}"


def compact(target: IcebergTarget) -> dict[str, Any]:
    """Merge small files and rewrite files with many deleted rows; return the file counts.

    The rows of a table with a sort order are sorted over all files that are rewritten together.
    """
    properties = target.layout.properties
    size = int(properties.get("write.target-file-size-bytes", _COMPACTION["target-file-size-bytes"]))
    if (merged := target.merge_small(size)) is not None:
        return {"files_rewritten": merged.rewritten, "files_added": merged.added}
    given = {**_COMPACTION, "target-file-size-bytes": size}
    options = ", ".join(f"'{name}', '{value}'" for name, value in given.items())
    strategy = "strategy => 'sort', " if target.layout.sort_by else ""
    found = target.call("rewrite_data_files", f"{strategy}options => map({options})")
    return {"files_rewritten": found["rewritten_data_files_count"], "files_added": found["added_data_files_count"]}


def expire(
    target: IcebergTarget, before_ms: int, slowest: Cut | None, generations: Mapping[str, int]
) -> tuple[int, Callable[[], int]]:
    """Expire the snapshots that no reader as of `before_ms` or later and no view at cut `slowest` needs.

    Returns their number, and what deletes their files and returns the number of these: it needs no lease.
    `before_ms` is in milliseconds since 1970. `generations` are the live generations of views: a rebuild's pin counts
    until its generation is live.
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
        return 0, nothing
    kept = snapshots[first]
    target.tag(PINNED, kept.id)
    spared = target.referenced()
    dead = [snapshot.id for snapshot in snapshots[first + 1 :] if snapshot.id not in spared]
    return len(dead), target.take_out(dead) if dead else nothing


def nothing() -> int:
    """Delete nothing."""
    return 0


def commits_since_compaction(snapshots: Collection[Snapshot]) -> int:
    """Return the number of batches written since the last compaction."""
    count = 0
    for snapshot in snapshots:
        if snapshot.rewrite:
            break
        count += 1
    return count


def _oldest_pin(target: IcebergTarget, generations: Mapping[str, int]) -> float:
    """Return the time of the oldest state that a rebuild still needs, and drop the pins of finished ones.

    Milliseconds since 1970; infinity if there is none. A comparison that was killed leaves its pin: it is dropped with
    the first look after a day.
    """
    oldest = float("inf")
    for name, made_ms in target.tags().items():
        if name.startswith(_VERIFY) and time.time() * 1000 - made_ms > _LONGEST_VERIFY_MS:
            target.untag(name)
        pin = re.fullmatch(r"pin_(.+)_g(\d+)", name)
        if pin is None:
            continue
        if generations.get(pin[1], 0) >= int(pin[2]):
            target.untag(name)
        else:
            oldest = min(oldest, made_ms)
    return oldest
