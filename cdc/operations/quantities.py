"""Sizes, durations and lags as text, the same on the terminal and on the status page."""

from __future__ import annotations


def lag_text(lag_bytes: int | None, lag_seconds: float | None) -> str:
    """Format a lag: 0 s if no change is missing, "unknown" if the time is None."""
    if lag_seconds is None:
        return "unknown"
    if lag_seconds == 0:
        return "0 s"
    shown = f"{lag_seconds:.1f} s" if lag_seconds < 120 else duration_text(lag_seconds)
    return f"{shown}, {bytes_text(lag_bytes)}" if lag_bytes else shown


def bytes_text(number: float) -> str:
    """Format a size in bytes with a decimal unit, for example 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration_text(seconds: float) -> str:
    """Format a duration in seconds with the largest suitable unit, for example 2.5 hours."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def verified_text(keys: int, seconds: float) -> str:
    """Format the result of the newest comparison of a view, which was so many seconds ago."""
    verified = f"verified {duration_text(seconds)} ago"
    return f"{keys} {'key DIFFERS' if keys == 1 else 'keys DIFFER'} ({verified})" if keys else verified
