"""Schema changes of all kinds drawn at random, with kills and restarts: each state cut is what the tables were then.

A short set; `python -m tests.ddl` plays as many rounds as asked for.
"""

from __future__ import annotations

import os

import pytest

from tailrace.cdc.dev.state import Servers
from tests.ddl.rounds import play

SEEDS = range(4 * int(os.environ.get("TAILRACE_TEST_SEEDS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
def test_altered_at_random(servers: Servers, seed: int) -> None:
    """The oracle is the source itself: its contents between any two statements, with the LSNs in between."""
    result = play(servers, seed)
    assert not result.findings, str(result)
    assert result.states >= 5
