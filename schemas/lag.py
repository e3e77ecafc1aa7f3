"""Age of the changes that a reader lacks: the definition of lag for topics and views.

Lag is the time since the commit of the oldest change of a captured table that a reader does not have yet, in seconds;
0 if there is none. Commit times are from the source's clock, `now` is from ours.
"""

from __future__ import annotations

from collections.abc import Collection

from tailrace.schemas.records.position import Cut


def age(since: float | None, now: float) -> float:
    """Return the lag (s) at `now`; `since` is the commit time of the oldest missing change, None if none."""
    return 0.0 if since is None else round(max(0.0, now - since), 3)


def lacking(cut: Cut, newest: Cut, topics: Collection[str]) -> int:
    """Return the number of records on the topics from the cut to the newest one; markers of transactions count."""
    return sum(
        max(0, end - (cut.offsets[topic][partition] if partition < len(cut.offsets.get(topic, ())) else 0))
        for topic in topics
        for partition, end in enumerate(newest.offsets.get(topic, ()))
    )


def missing_since(cut: Cut, first: Cut, taken_s: float) -> float:
    """Return the commit time (s) of the oldest change after `cut`; `first` is the first cut that has changes after it.

    Rows of a snapshot have no commit time: for them it is `taken_s`, the time at which `first` was recorded.
    """
    commit_us = first.commit_ts_us
    return commit_us / 1e6 if commit_us > cut.commit_ts_us else taken_s
