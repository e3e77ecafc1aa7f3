"""The table of the kinds of targets; a new kind is a folder of `sinks` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.sinks.iceberg.kind import WarehouseKind
from tailrace.sinks.opensearch.kind import SearchKind
from tailrace.sinks.target.kind import TargetKind

TARGETS: Final[Mapping[str, TargetKind]] = {kind.name: kind for kind in (WarehouseKind(), SearchKind())}
