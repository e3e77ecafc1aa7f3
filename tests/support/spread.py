"""Which tests run in one worker, those of a file or of the files that share a Spark session; and in which order."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

PROCESSES: Final = {
    "test_documentation.py",
    "test_end_to_end.py",
    "test_job_processes.py",
    "test_local_cluster.py",
    "test_query_end_to_end.py",
    "test_terminal.py",
    "test_upgrade.py",
}
"""These start Spark themselves."""

SECOND: Final = {
    "test_generations.py",
    "test_percolate.py",
    "test_percolator.py",
    "test_upkeep.py",
    "test_views_over_views.py",
}
"""About half of the work on Spark: two sessions, one per core, for each takes 30 s to become fast."""

FIRST: Final = (
    "faults/test_rounds.py",
    "spark/test_asof.py",
    "spark/test_generations.py",
    "spark/test_upgrade.py",
    "spark/test_job_processes.py",
    "spark/test_local_cluster.py",
    "spark/test_terminal.py",
    "spark/test_documentation.py",
    "spark/test_query_end_to_end.py",
)
"""Of the files that keep the processor busy, those to begin with: the longest, and the groups of two of them.

A worker that is given a file with one test is given the next file with it, so a short one stands after each of these.
"""


def rank(nodeid: str) -> int:
    """Return the place of a test's file in `FIRST`; of all other files, the one after them."""
    file = "/".join(PurePath(nodeid.partition("::")[0]).parts[-2:])
    return FIRST.index(file) if file in FIRST else len(FIRST)


class Spread(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's distribution by files, with the larger groups."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        if file.parent.name != "spark" or file.name in PROCESSES:
            return str(file)
        return "spark 2" if file.name in SECOND else "spark 1"

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker the next file only when it needs one: to begin its last test, it must know the one after it.

        xdist's own does so one test earlier, and a worker with two long tests left takes a file from an idle one.
        """
        if self.workqueue and self._pending_of(self.assigned_work[node]) == 2:
            return
        super()._reschedule(node)
