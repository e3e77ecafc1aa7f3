"""Repair views whose rows differ from their content, recomputed from the topics, and compare them again.

    python -m tailrace.spark_jobs.jobs.repair [--config tailrace.toml] [--limit N] VIEW...

Prints one JSON object for each repaired target and, for queries, histories and logs, one for each comparison after it,
in the form of `tailrace verify --json`; its log as JSON lines on stderr. `tailrace views follow` may run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError, all_of
from tailrace.sinks.target.kind import not_made
from tailrace.spark_jobs.jobs.command import opened, parser, run
from tailrace.spark_jobs.jobs.mend import Mended, mend
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.log import line, result
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.views import declare
from tailrace.spark_jobs.views.lower import in_order


def main(arguments: Sequence[str]) -> int:
    options = parser("Repair views by their content, computed from the topics.")
    options.add_argument("--limit", type=int, default=20, help="differing keys to list for each comparison")
    options.add_argument("views", nargs="+", metavar="VIEW")
    given = options.parse_args(arguments)

    def job(config: Config) -> None:
        with opened(config, given.views) as shared:
            repair(shared, given.views, given.limit, lambda found: result(orjson.dumps(found, default=str).decode()))

    return run(job, given.config)


def repair(shared: Shared, names: Sequence[str], limit: int, say: Callable[[dict[str, Any]], None]) -> None:
    """Repair views and compare them again; also those that read what was repaired, as their rows derive from it.

    `say` is called with each repaired target, under "repaired", and with each comparison. Views that failed do not stop
    the others: their errors are raised at the end.
    """
    config = shared.config
    views = {name: open_view(shared, name) for name in in_order(config, names)}
    failed: list[TailraceError] = []
    waiting = list(views)
    while waiting:
        name = waiting.pop(0)
        view = views[name]
        line(event="progress", view=name, stage="computing its content")
        try:
            done = mend(shared, view)
            for mended in done:
                say({"repaired": asdict(mended)})
            for reader in _readers(shared, view, done):
                if reader not in views:
                    views[reader] = open_view(shared, reader)
                waiting += [reader] if reader not in waiting else []
            # a view of one table is compared by the command, with its source
            if not isinstance(view.batch, TableBatch):
                for found in verify(shared, view, limit):
                    say(found)
        except TailraceError as error:
            # a view that has no rows yet has none that derive from wrong ones
            if name in names or error.code != not_made(name).code:
                failed.append(error)
        finally:
            shared.records.release()
    if failed:
        raise all_of(failed)


def _readers(shared: Shared, view: KeptView, done: Sequence[Mended]) -> list[str]:
    """Return the other views whose rows derive from what was repaired, each after those that it reads."""
    tables = {mended.table for mended in done}
    found = []
    for name in shared.config.views if done else ():
        try:
            reader = declare(shared.config, name)
        except TailraceError:
            continue
        reads_view = None in tables and view.declared.name in reader.views
        if name != view.declared.name and (reads_view or tables & set(reader.tables)):
            found.append(name)
    return in_order(shared.config, found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
