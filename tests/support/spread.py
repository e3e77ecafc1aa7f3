"""Distribution of test files over workers: the long ones first, and those that share Spark on few workers."""

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
"""These start Spark themselves; all other files in ``tests/spark`` share one Spark session per worker."""

SESSIONS: Final = 2
"""Workers that open a Spark session: each session takes a core, and 30 s of it to become fast."""

FIRST: Final = (
    "faults/test_rounds.py",
    "spark/test_documentation.py",
    "spark/test_views_over_views.py",
    "spark/test_generations.py",
    "spark/test_upgrade.py",
    "spark/test_repair.py",
    "spark/test_percolate.py",
    "spark/test_query_end_to_end.py",
    "spark/test_job_processes.py",
    "spark/test_local_cluster.py",
    "spark/test_terminal.py",
    "spark/test_verify_views.py",
    "spark/test_direct_writes.py",
    "spark/test_lookups.py",
    "spark/test_history.py",
    "unit/test_secrets.py",
    "property/test_query_rewrite.py",
)
"""The files that take minutes, in the order in which they are begun: one that is begun last is waited for alone."""


def rank(nodeid: str) -> int:
    """Return the place of a test's file in `FIRST`; of all other files, the one after them."""
    file = "/".join(PurePath(nodeid.partition("::")[0]).parts[-2:])
    return FIRST.index(file) if file in FIRST else len(FIRST)


def shares_session(file: str) -> bool:
    """Whether the tests of a file use the Spark session of their worker."""
    path = PurePath(file)
    return path.parent.name == "spark" and path.name not in PROCESSES


class Spread(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's distribution by files, in which only `SESSIONS` workers open a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the first file that is for it; end the worker after its present files if there is none."""
        sessions = [each for each, files in self.assigned_work.items() if any(map(shares_session, files))]
        file = next_file(list(self.workqueue), has_session=node in sessions, sessions=len(sessions))
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker the next file only when it needs one: to begin its last test, it must know the one after it.

        xdist's own does so one test earlier, and a worker with two long tests left takes a file from an idle one.
        """
        if self.workqueue and self._pending_of(self.assigned_work[node]) == 2:
            return
        super()._reschedule(node)


def next_file(queue: list[str], *, has_session: bool, sessions: int) -> str | None:
    """Return the next file of the queue for a worker that has a Spark session or has none; None if there is none.

    A session stays on the files that need one until there are no more. `sessions` is the number of workers with one.
    """
    if has_session:
        fitting = [*filter(shares_session, queue), *queue]
    elif sessions < SESSIONS:
        fitting = queue
    else:
        fitting = [file for file in queue if not shares_session(file)]
    return fitting[0] if fitting else None
