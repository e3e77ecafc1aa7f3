"""The uncompiled form of the modules that Cython may have compiled, loaded from their files."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
_COMPILED = (
    *(f"tailrace.schemas.encode.{name}" for name in ("values", "varint", "buffer", "put_value")),
    *(f"tailrace.schemas.encode.{name}" for name in ("row_codec", "partition", "encoder")),
    "tailrace.sinks.kafka.direct",
    "tailrace.sinks.kafka.outbox",
    "tailrace.snapshot.copystream",
    "tailrace.cdc.wal.copydata",
    "tailrace.cdc.changes.row_path",
    # not compiled themselves, but they use compiled modules
    "tailrace.cdc.changes.dead_letters",
    "tailrace.cdc.changes.toast_completion",
    "tailrace.cdc.changes.assembler",
    "tailrace.cdc.backfill.snapshot_rows",
)


def interpreted() -> dict[str, ModuleType]:
    """Return all modules that may be compiled, as plain Python, importing each other's plain form."""
    importlib.import_module("tailrace.cdc.changes.assembler")
    importlib.import_module("tailrace.cdc.backfill.snapshot_rows")
    compiled = {name: sys.modules.pop(name) for name in _COMPILED if name in sys.modules}
    try:
        for name in _COMPILED:
            spec = importlib.util.spec_from_file_location(name, ROOT / (name.replace(".", "/") + ".py"))
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return {name: sys.modules[name] for name in _COMPILED}
    finally:
        for name in _COMPILED:
            del sys.modules[name]
        sys.modules.update(compiled)
