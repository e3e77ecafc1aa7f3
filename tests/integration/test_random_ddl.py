"""Random schema changes of all kinds, with kills and restarts: each state cut equals the tables then.

A small number of rounds; `python -m tests.ddl` plays as many as requested.
"""

from __future__ import annotations

import os

import pytest

from tailrace.cdc.dev.state import Servers
from tests.ddl.rounds import play

FOUND = (8021,)
"""Seeds of mended faults: a table that was dropped while the daemon was down and had read a part of it."""

SEEDS = (*FOUND, *range(3 * int(os.environ.get("TAILRACE_TEST_SEEDS", "1"))))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schema_changes_leave_only_true_states(servers: Servers, seed: int) -> None:
    """The oracle is the source itself: its contents between any two statements, with the LSNs in between."""
    result = play(servers, seed)
    assert not result.findings, str(result)
    assert result.states >= 5
