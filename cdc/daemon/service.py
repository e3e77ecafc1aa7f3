"""The daemon: a sequence of sessions. After a retryable error, a new session replaces the failed one."""

from __future__ import annotations

import threading
import time

import psycopg
import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_random_exponential,
)

from tailrace.cdc.daemon.allocator import reclaim, settle
from tailrace.cdc.daemon.session import Session
from tailrace.cdc.daemon.standby import wait_for_slot
from tailrace.cdc.health.health import Health
from tailrace.cdc.postgres.connect import DECODING_FAILED, connection_lost
from tailrace.schemas.config.model import Config
from tailrace.schemas.error_codes import Retry, retry_of
from tailrace.schemas.errors import TailraceError

log = structlog.get_logger()

_SAY_AGAIN_S = 60.0


class Service:
    """The daemon of one slot. `run` returns when `stop` is set, at a transaction boundary.

    A server that does not answer is tried again: before this process has streamed, for `delivery.start_timeout_s`.
    """

    def __init__(self, config: Config, stop: threading.Event, health: Health) -> None:
        self._config = config
        self._stop = stop
        self._health = health
        self._streamed = False
        self._waiting = False
        self._gives_up_at = 0.0

    @property
    def has_streamed(self) -> bool:
        """Whether a session has been set up, so that a later error ended it and did not refuse the start."""
        return self._streamed

    def run(self) -> None:
        """Stream until `stop` is set. Raises TailraceError for errors that need an operator."""
        settle()
        self._gives_up_at = time.monotonic() + self._config.delivery.start_timeout_s
        for attempt in Retrying(
            retry=retry_if_exception(self._passes),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            sleep=sleep_using_event(self._stop),
            stop=stop_when_event_set(self._stop),
            before_sleep=_Retries(self._health).log,
            reraise=True,
        ):
            with attempt:
                while not self._one_session():
                    wait_for_slot(self._config.source.dsn.get_secret_value(), self._config.source.slot, self._stop)

    def _one_session(self) -> bool:
        """Stream until `stop` is set and return True; return False if another daemon owns the slot."""
        if self._stop.is_set():
            return True
        session: Session | None = None
        try:
            session = Session(self._config, self._stop, self._health)
            session.start()
            self._waiting = False
            session.run()
            return True
        except psycopg.OperationalError as error:
            # from a query of the catalog or of a row: which one is irrelevant
            raise connection_lost(str(error)) from None
        except TailraceError as error:
            if retry_of(error.code) is Retry.STANDBY:
                self._stand_by(error)
                return False
            self._health.failed(error)
            if session is not None and retry_of(error.code) is Retry.OUTAGE:
                session.outlast(error)
            if error.code == DECODING_FAILED:
                self._go_on_without_streaming()
            raise
        finally:
            if session is not None:
                self._streamed |= session.begun
                session.close()
            del session
            reclaim()

    def _stand_by(self, error: TailraceError) -> None:
        """Log once that another daemon owns the slot; from now on, retry after a server restart as well."""
        if not self._waiting:
            log.info("waiting as standby", slot=self._config.source.slot, reason=error.message)
        self._waiting = self._streamed = True
        self._health.state = "standby"

    def _go_on_without_streaming(self) -> None:
        """Turn `source.streaming` off after a decoding error.

        PostgreSQL cannot decode some transactions in progress (DDL, messages of rolled-back parts), but it can decode
        the same transactions after they have committed.
        """
        if self._config.source.streaming:
            log.warning("source.streaming turned off: PostgreSQL could not decode a transaction in progress")
            source = self._config.source.model_copy(update={"streaming": False})
            self._config = self._config.model_copy(update={"source": source})

    def _passes(self, error: BaseException) -> bool:
        if not isinstance(error, TailraceError):
            return False
        rule = retry_of(error.code)
        if rule in (Retry.RESTART, Retry.OUTAGE):
            # at a start, the cause may also be a wrong address, which an operator has to mend
            return self._streamed or time.monotonic() < self._gives_up_at
        return rule is Retry.LOCKED


class _Retries:
    """Log of restarts: a new reason at once, the same reason once a minute with a count."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._said: tuple[str, str, int] | None = None
        self._said_at = 0.0
        self._times = 0

    def log(self, state: RetryCallState) -> None:
        """Log the error of an attempt."""
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, TailraceError):
            return
        # after another session has started, it is a new fault even if the message is the same
        now, reason = time.monotonic(), (error.code, error.message, self._health.sessions)
        self._times += 1
        if reason == self._said and now - self._said_at < _SAY_AGAIN_S:
            return
        log.warning(
            "session failed: restarting", code=error.code, error=error.message, detail=error.detail, times=self._times
        )
        self._said, self._said_at, self._times = reason, now, 0
