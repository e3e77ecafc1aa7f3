"""Inspect and decide until the answer is settled: a broker that has just returned may not know all topics yet."""

from __future__ import annotations

from typing import Final

import psycopg
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from tailrace.cdc.startup.decide import Found, Start, decide
from tailrace.cdc.startup.observe import look
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError

_SETTLED_S: Final = 10.0
"""With several brokers, an inconsistency must last this long before the start is refused."""


def settled(config: Config, connection: psycopg.Connection, *, owned: bool) -> tuple[Found, Start]:
    """Inspect slot and topics and decide how to start; nothing is changed. StateError if the start has to be refused.

    With several brokers, the inconsistency, or the loss of a table's topic, must last. `owned`: no other process
    writes, see `cdc.startup.observe.look`.
    """
    seen: list[Found] = []

    def is_settled(state: RetryCallState) -> bool:
        return seen[-1].brokers == 1 or stop_after_delay(_SETTLED_S)(state)

    def look_and_decide() -> tuple[Found, Start]:
        seen[:] = [look(config, connection, owned=owned)]
        return seen[-1], decide(seen[-1])

    def last(state: RetryCallState) -> tuple[Found, Start]:
        assert state.outcome is not None
        found: tuple[Found, Start] = state.outcome.result()
        return found

    def loses(result: tuple[Found, Start]) -> bool:
        found, start = result
        return found.stored is not None and bool(start.lost.keys() - found.stored.parked.keys())

    unsettled = retry_if_exception_type(StateError) | retry_if_result(loses)
    again = Retrying(retry=unsettled, stop=is_settled, wait=wait_fixed(0.5), retry_error_callback=last)
    return again(look_and_decide)
