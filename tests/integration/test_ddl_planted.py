"""The oracle for schema changes finds each mistake planted in the daemon, and none in the daemon as it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.ddl.cases import create, run_steps, stage, state_differences
from tests.ddl.planted import LARGE, MISTAKES, no_mistake, run_with
from tests.ddl.states import Difference
from tests.integration.test_ddl_cases import CASES
from tests.support.daemon import Daemon, wait_for_state

_ALL = tuple(case for cases in MISTAKES.values() for case in cases)


def _wrong_cases(servers: Servers, mistake: Callable[[], None]) -> dict[str, Difference]:
    """Run the cases of a mistake at rest; return those that differ at a cut called a state, with a difference."""
    cases = {name: (CASES | LARGE)[name] for name in MISTAKES.get(mistake, _ALL)}
    with stage(servers) as (ledger, path):
        config = load(path)
        create(ledger, cases)
        daemon = Daemon(path, program=partial(run_with, mistake))
        try:
            wait_for_state(config, ledger.connection, 300)
            for name, case in cases.items():
                run_steps(ledger, name, case, "idle")
                wait_for_state(config, ledger.connection)
        finally:
            daemon.kill()
        return {each.topic.split(".")[1]: each for each in state_differences(ledger, config)}


@pytest.fixture(scope="module")
def wrong_cases(servers: Servers) -> dict[Callable[[], None], dict[str, Difference]]:
    """The cases that differ with each mistake, and without one; the daemons run side by side."""
    mistakes = [*MISTAKES, no_mistake]
    with ThreadPoolExecutor(len(mistakes)) as pool:
        return dict(zip(mistakes, pool.map(partial(_wrong_cases, servers), mistakes), strict=True))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found_in_each_of_its_cases(
    wrong_cases: dict[Callable[[], None], dict[str, Difference]], mistake: Callable[[], None]
) -> None:
    assert wrong_cases[mistake].keys() == set(MISTAKES[mistake])


def test_nothing_is_found_in_the_same_cases_without_a_mistake(
    wrong_cases: dict[Callable[[], None], dict[str, Difference]],
) -> None:
    assert wrong_cases[no_mistake] == {}
