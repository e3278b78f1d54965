"""What a long run's samples say: what is a slope, and what is growth."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.endurance import ALLOWED, History, Sample

_FLAT = Sample(50.0, 60_000, 10, 2, 16, 8.0)


def test_slope_when_memory_rises_by_one_mib_a_minute_is_sixty_an_hour() -> None:
    history = History()
    for minute in range(60):
        history.add(60.0 * minute, replace(_FLAT, memory_mib=50.0 + minute))
    slopes = history.slopes()
    assert round(slopes.pop("memory_mib"), 6) == 60.0
    assert set(slopes.values()) == {0.0}
    assert history.grew() == ["memory_mib"]


def test_growth_when_only_the_warm_up_grew_is_empty() -> None:
    history = History()
    for minute in range(60):
        history.add(60.0 * minute, replace(_FLAT, memory_mib=50.0 + min(minute, 14) * 10))
    assert history.grew() == []


def test_growth_when_a_few_descriptors_stay_open_is_reported() -> None:
    history = History()
    for minute in range(60):
        extra = (ALLOWED.descriptors + 1) * minute / 59 / 0.75
        history.add(60.0 * minute, replace(_FLAT, descriptors=_FLAT.descriptors + extra))
    assert history.grew() == ["descriptors"]
