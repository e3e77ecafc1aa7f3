"""Tests that run in one worker: those of a file, and those of the files that share a Spark session."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from xdist.scheduler import LoadScopeScheduling

_PROCESSES: Final = {"test_end_to_end.py", "test_local_cluster.py", "test_query_end_to_end.py"}
"""These start Spark themselves."""

_SECOND: Final = {
    "test_generations.py",
    "test_percolate.py",
    "test_percolator.py",
    "test_upkeep.py",
    "test_views_over_views.py",
}
"""About half of the work on Spark: two sessions, one per core, for each takes 30 s to become fast."""


class Spread(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's distribution by files, with the larger groups."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        if file.parent.name != "spark" or file.name in _PROCESSES:
            return str(file)
        return "spark 2" if file.name in _SECOND else "spark 1"
