"""What to do when the stream cannot be gone on with: one place, for every error that a person must decide on."""

from __future__ import annotations


def copy_anew(prefix: str, slot: str | None) -> str:
    """Return the hint that gets all tables onto topics again; `slot` is the one that must go first."""
    lines = [f"SELECT pg_drop_replication_slot('{slot}');"] if slot else []
    lines.append(
        f'prefix = "{prefix}_2"  # under [kafka]; all tables are copied anew, see README, "When a slot is lost"'
    )
    return "\n       ".join(lines)
