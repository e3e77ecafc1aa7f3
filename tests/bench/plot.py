"""Draw the figures of the stream benchmark as bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pygal


def draw(results: dict[str, Any], path: Path) -> None:
    """Write an SVG of the changes/s of the daemon and of pg_recvlogical, by workload and connection."""
    chart = pygal.Bar(title="changes/s, all to acknowledged records", legend_at_bottom=True, print_values=True)
    runs = [(name, way) for name, result in results.items() for way in ("tcp", "socket") if way in result]
    chart.x_labels = [f"{name}, {way}" for name, way in runs]
    ours = [results[name][way]["changes_per_second"] for name, way in runs]
    yardstick = [round(results[name]["changes"] / results[name][way]["pg_recvlogical_seconds"]) for name, way in runs]
    chart.add("Tailrace", ours)
    chart.add("pg_recvlogical -f /dev/null", yardstick)
    chart.render_to_file(str(path))
