"""Spark's Python daemon, without Spark's archives on its module path.

Spark puts `pyspark.zip`, py4j's archive and the jar of its core there, and before each task a worker makes Python read
the directories of all archives again: some 190 ms of CPU, more than most tasks take.
"""

from __future__ import annotations

import gc
import re
import sys
from importlib.util import find_spec
from typing import Final

_ARCHIVES: Final = re.compile(r"/(pyspark\.zip|py4j-[^/]*\.zip|spark-core_[^/]*\.jar)(/|$)")


def without_archives() -> None:
    """Remove Spark's archives from the module path, unless PySpark is installed nowhere else."""
    before = sys.path[:]
    sys.path[:] = [path for path in before if not _ARCHIVES.search(path)]
    if find_spec("pyspark") is None:
        sys.path[:] = before
        return
    for path in list(sys.path_importer_cache):
        if _ARCHIVES.search(path):
            del sys.path_importer_cache[path]
    # the jar's folder "org" is a package without a file: `copy` and `pickle` import it, in search of Jython
    for name, module in list(sys.modules.items()):
        if any(_ARCHIVES.search(path) for path in getattr(module, "__path__", ())):
            del sys.modules[name]


if __name__ == "__main__":
    without_archives()

    from pyspark.daemon import manager

    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
