"""Run `tailrace ARGUMENTS` and record its imports: `python -m tests.support.recorded_imports FILE ARGUMENTS`.

Each line of the file is the name of a thread, a tab and the module that it is about to import.
"""

from __future__ import annotations

import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TextIO


class _Recorder(MetaPathFinder):
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Record the module; it is found by the next finder."""
        self._file.write(f"{threading.current_thread().name}\t{fullname}\n")


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", buffering=1, encoding="utf-8") as output:
        sys.meta_path.insert(0, _Recorder(output))
        del sys.argv[1]

        from tailrace.cdc.cli.main import main

        main()
