"""A few seconds of the fuzzer; `python -m tests.fuzz.decoder --seconds 600` runs longer."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fuzz.decoder import fuzz


def test_damaged_messages_raise_only_our_own_errors(tmp_path: Path) -> None:
    count = fuzz(8, int(os.environ.get("TAILRACE_SEED", "1")), tmp_path)
    assert count.inputs > 500
    assert count.accepted > 50
