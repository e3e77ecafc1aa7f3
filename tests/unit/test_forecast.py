"""The forecast of when a slot is full, its alarm level, and the times at which an alarm is raised."""

from __future__ import annotations

import pytest

from tailrace.cdc.health.forecast import Alarm, Growth, Level, level_of, seconds_to_full
from tailrace.cdc.postgres.slot import Slot


def slot(safe_wal_size: int | None, wal_status: str = "reserved") -> Slot:
    return Slot("s", "pgoutput", "d", 1, 0, 0, wal_status, safe_wal_size, False)


def test_a_growth_rate_needs_a_minute_of_samples() -> None:
    growth = Growth()
    for at in range(0, 60, 5):
        growth.add(at, at * 100)
        assert growth.rate() is None
    growth.add(60, 6000)
    assert growth.rate() == 100


def test_a_growth_rate_forgets_old_samples() -> None:
    growth = Growth()
    for at in range(0, 3600, 5):
        growth.add(at, at * 1000 if at < 1800 else 1_800_000)
    assert growth.rate() == 0


def test_a_slot_that_moves_as_fast_as_the_wal_does_not_fill() -> None:
    growth = Growth()
    for at in range(0, 300, 5):
        # restart_lsn moves in steps, every 15 s
        growth.add(at, 1000 + at % 15 * 50)
    rate = growth.rate()
    assert rate is not None
    assert rate < 3
    assert seconds_to_full(1000, 0) is None
    assert seconds_to_full(1000, -5.0) is None
    assert seconds_to_full(None, 5.0) is None


def test_seconds_to_full_are_the_room_over_the_rate() -> None:
    assert seconds_to_full(7200, 2.0) == 3600
    assert seconds_to_full(-10, 2.0) == 0


@pytest.mark.parametrize(
    ("found", "retained", "left_s", "level"),
    [
        (slot(None), 10**12, None, Level.SAFE),
        (slot(None, "extended"), 10**12, None, Level.SAFE),
        (slot(60), 40, None, Level.SAFE),
        (slot(50), 50, None, Level.NOTICE),
        (slot(25), 75, None, Level.WARNING),
        (slot(10), 90, None, Level.DANGER),
        (slot(90), 10, 23 * 3600, Level.NOTICE),
        (slot(90), 10, 3 * 3600, Level.WARNING),
        (slot(90), 10, 1800, Level.DANGER),
        (slot(99), 1, 1800, Level.SAFE),
        (slot(99), 1, 25 * 3600, Level.SAFE),
        (slot(-5, "unreserved"), 105, None, Level.DANGER),
        (slot(None, "lost"), 105, None, Level.DANGER),
    ],
)
def test_the_level_depends_on_the_room_and_the_time_left(
    found: Slot, retained: int, left_s: float | None, level: Level
) -> None:
    assert level_of(found, retained, left_s) is level


def spoken(levels: list[Level], every_s: float = 5.0) -> list[tuple[float, Level]]:
    alarm = Alarm()
    return [(n * every_s, level) for n, level in enumerate(levels) if alarm.speaks(n * every_s, level)]


def test_an_alarm_rises_at_once_and_falls_late() -> None:
    safe, notice, warning, danger = Level
    assert spoken([safe] * 10) == []
    assert spoken([safe, notice, notice, warning, danger]) == [(5, notice), (15, warning), (20, danger)]
    assert spoken([warning] + [safe] * 30) == [(0, warning), (120, safe)]


def test_an_alarm_does_not_flutter() -> None:
    assert spoken([Level.NOTICE, Level.SAFE] * 100) == [(0, Level.NOTICE)]


def test_an_alarm_repeats_every_five_minutes() -> None:
    assert spoken([Level.DANGER] * 121) == [(0, Level.DANGER), (300, Level.DANGER), (600, Level.DANGER)]
