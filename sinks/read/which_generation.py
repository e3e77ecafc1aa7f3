"""Select the generation that a command applies to, or raise an error; without Spark and without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.target.kind import There, not_made
from tailrace.sinks.target.protocol import Applied


def refuse(command: str, name: str, there: There, generation: int | None = None, confirmed: str | None = None) -> None:
    """Raise StateError or ConfigError if `command` (compare, swap, rollback, drop) is not possible."""
    live = live_in(name, there.live)
    if command == "rollback":
        before_in(name, there.generations, live)
    elif command == "drop":
        check_drop(name, there.generations, live, generation, confirmed)
    else:
        staged_in(name, there.generations, live)


def live_in(name: str, live: Applied | None) -> Applied:
    """Return the live state. StateError (TR-512) if there is none."""
    if live is None:
        raise not_made(name)
    return live


def staged_in(name: str, found: Mapping[int, Applied], live: Applied) -> Applied:
    """Return the staged generation, which waits for its swap. StateError (TR-571) if there is none."""
    staged = max((number for number in found if number > live.generation), default=None)
    if staged is None:
        raise StateError(
            "TR-571",
            f'view "{name}" has no generation that waits to be swapped',
            detail=listed(found, live),
            hint=f"tailrace views rebuild {name} --no-swap",
        )
    return found[staged]


def before_in(name: str, found: Mapping[int, Applied], live: Applied) -> int:
    """Return the number of the generation before the live one. StateError (TR-572) if there is none."""
    before = max((number for number in found if number < live.generation), default=None)
    if before is None:
        raise StateError(
            "TR-572",
            f'view "{name}" has no generation to go back to',
            detail=listed(found, live),
            hint=f"How many stay after a swap: keep_generations in [views.{name}]",
        )
    return before


def check_drop(
    name: str, found: Mapping[int, Applied], live: Applied, generation: int | None, confirmed: str | None
) -> None:
    """Raise StateError (TR-571) for a missing generation, ConfigError (TR-575) for a live one unconfirmed."""
    if generation is not None and generation not in found:
        raise StateError(
            "TR-571",
            f'view "{name}" has no generation {generation}',
            detail=listed(found, live),
            hint=f"tailrace views drop {name} --generation {max(found)}",
        )
    if generation not in (None, live.generation) or confirmed == name:
        return
    raise ConfigError(
        "TR-575",
        f'dropping what readers of view "{name}" see asks for its name',
        detail=listed(found, live)
        + " `tailrace views follow` builds the view again as long as it is in its configuration.",
        hint=f"tailrace views drop {name} --confirm {name}",
    )


def listed(found: Mapping[int, Applied], live: Applied) -> str:
    """Return a sentence that lists the generations with their LSNs."""
    each = (
        f"{number}{' (live)' if number == live.generation else ''} at {format_lsn(applied.cut.flushed_lsn)}"
        for number, applied in sorted(found.items())
    )
    return f"Generations: {', '.join(each)}."
