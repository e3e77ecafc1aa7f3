"""Whether librdkafka's handle can be taken from an object of confluent-kafka, as `direct.pxd` does."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import confluent_kafka

_KNOWN: Final = ((2, 16),)
"""Versions of confluent-kafka (major, minor) whose Producer and Consumer objects begin with librdkafka's handle."""


def has_handle(client: object) -> bool:
    """Return whether the object is a Producer or a Consumer that begins with librdkafka's handle."""
    found = tuple(int(part) for part in version("confluent-kafka").split(".")[:2])
    return isinstance(client, confluent_kafka.Producer | confluent_kafka.Consumer) and found in _KNOWN
