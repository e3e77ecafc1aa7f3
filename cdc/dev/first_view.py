"""Compare the first view with the source while the other views still start."""

from __future__ import annotations

import threading
import time
from typing import Final

from tailrace.cdc.operations.verify_result import Result
from tailrace.cdc.operations.views import holds_rows
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position

_POLL_S: Final = 0.3


class FirstView:
    """The comparison of the first view that has the rows of a table, in a thread that ends with the process.

    It begins at the first state of the topics, so that the view's first batch can be what is compared.
    """

    def __init__(self, config: Config, patience_s: float) -> None:
        self._config = config
        self._patience_s = patience_s
        self._name = next((name for name, view in config.views.items() if holds_rows(view)), None)
        self._thread = threading.Thread(target=self._run, name="first view", daemon=True)
        self._error: TailraceError | None = None
        self.result: Result | None = None
        """Set once source, topic and view are compared."""
        if self._name is not None:
            self._thread.start()

    @property
    def done(self) -> bool:
        """Whether nothing more will be found: it is compared, could not be compared, or there is no such view."""
        return not self._thread.is_alive()

    def text(self) -> str | None:
        """Return what was found, for a person, once it is `done`; None if there is no such view."""
        if self._name is None:
            return None
        if self.result is None:
            return f"{self._name} was not compared with the source: {self._error}"
        return sentence(self.result)

    def _run(self) -> None:
        # pyiceberg and the rest take a second to import, which is better spent here
        from tailrace.cdc.operations.verify import verify

        assert self._name is not None
        try:
            while not self._has_state():
                time.sleep(_POLL_S)
            (self.result,) = verify(self._config, [self._name], timeout_s=self._patience_s, limit=1, say=lambda _: None)
        except TailraceError as error:
            self._error = error

    def _has_state(self) -> bool:
        try:
            record = read_position(self._config.kafka, Topics(self._config.kafka.prefix), self._config.source.slot)
        except SinkError:
            return False
        return record is not None and record.state is not None


def sentence(result: Result) -> str:
    """Return what a comparison of source, topic and view has found."""
    source, view = result.outcomes
    if not result.equal:
        return f"{result.view} differs from the source: tailrace verify {result.view}"
    return (
        f"verified {result.view}: {source.left_rows:,} rows of the source at {format_lsn(result.x or 0)}"
        f" are those of the topic, and {view.right_rows:,} of the view"
    )
