"""Findings of `tailrace check`: each has an id of the registry of codes, and what to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg
from confluent_kafka import KafkaException

from tailrace.schemas.config.secret import without_remembered
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.error_codes.entry import Retry
from tailrace.schemas.errors import TailraceError


class Severity(StrEnum):
    """What a finding means for a start."""

    STOP = "stop"
    """A start is refused."""
    WARN = "warn"
    """A start succeeds; something is missing or will go wrong later."""
    NOTE = "note"
    """A fact to know."""


_RANK: Final = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `id` is a code of the registry, `object` the part that was checked.

    `seen` is the present state, `wanted` the remedy in words, `paste` lines of SQL, shell or tailrace.toml, and `page`
    the entry of the documentation.
    """

    id: str
    severity: Severity
    object: str
    seen: str
    wanted: str
    paste: str
    page: str

    @property
    def stops(self) -> bool:
        """Whether a start is refused."""
        return self.severity is Severity.STOP

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Findings:
    """Collect findings: each once. No finding has a secret of the loaded configuration."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, what: str, error: TailraceError, severity: Severity | None = None) -> None:
        """Add an error that a start raises. By default it stops the start, unless the daemon waits until it passes."""
        waits = CODES[error.code].retry in (Retry.STANDBY, Retry.LOCKED)
        chosen = severity or (Severity.WARN if waits else Severity.STOP)
        self._add(error.code, chosen, what, f"{_sentence(error.message)} {error.detail}".rstrip(), error.hint)

    def advise(self, code: str, severity: Severity, what: str, seen: str, paste: Sequence[str] | str = "") -> None:
        """Add a finding that is no error of a start; `code` is one of TR-9xx."""
        self._add(code, severity, what, seen, paste if isinstance(paste, str) else "\n".join(paste))

    def sorted(self) -> list[Finding]:
        """Return all findings, those that stop a start first."""
        return sorted(self._found.values(), key=lambda each: _RANK.index(each.severity))

    @contextmanager
    def probing(self, what: str, severity: Severity | None = None) -> Iterator[None]:
        """Turn an error in the block into a finding about `what`, so that later probes are carried out."""
        try:
            yield
        except TailraceError as error:
            self.add(what, error, severity)
        except (psycopg.Error, KafkaException, OSError, TimeoutError) as error:
            reason = without_remembered(" ".join(str(error).split())) or type(error).__name__
            self.advise("TR-922", Severity.WARN, what, f"A check of {what} failed: {reason}")
        except Exception as error:  # of a client library; its text may have a secret
            self.advise("TR-922", Severity.WARN, what, f"A check of {what} failed: {type(error).__name__}")

    def _add(self, code: str, severity: Severity, what: str, seen: str, paste: str) -> None:
        lines = "\n".join(line.strip() for line in paste.splitlines())
        page = f"docs/reference/errors.md#{code.lower()}"
        found = Finding(code, severity, what, seen, CODES[code].remedy, lines, page)
        self._found.setdefault((code, seen), found)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
