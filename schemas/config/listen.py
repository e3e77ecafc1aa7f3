"""Address that a process listens on, from a setting host:port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address in the setting `key` of [health]; `is_default` if the user has not set it."""

    key: str
    text: str
    is_default: bool

    @property
    def setting(self) -> str:
        return f"health.{self.key}"

    @property
    def host(self) -> str:
        return self.text.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.text.rpartition(":")[2])
