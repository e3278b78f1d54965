"""Stores of handled message ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_client.config import DeduplicateConfig
from broker_client.consuming.deduplication import (
    HandledIds,
    MemoryHandledIds,
    SqliteHandledIds,
    handled_ids_from,
)
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def ids(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> HandledIds:
    if request.param == "memory":
        return MemoryHandledIds(60.0, 2, clock)
    return SqliteHandledIds(str(tmp_path / "ids.db"), 60.0, 2, clock)


async def test_id_is_known_from_add_to_the_end_of_the_window(
    ids: HandledIds, clock: ManualClock
) -> None:
    assert not await ids.contains("a")
    await ids.add("a")
    clock.advance(59.9)
    assert await ids.contains("a")
    clock.advance(0.1)
    assert not await ids.contains("a")
    await ids.close()


async def test_oldest_is_forgotten_beyond_the_size(ids: HandledIds, clock: ManualClock) -> None:
    for key in ("a", "b", "c"):
        await ids.add(key)
        clock.advance(1.0)
    assert [await ids.contains(key) for key in ("a", "b", "c")] == [False, True, True]
    await ids.close()


async def test_id_added_again_counts_from_then(ids: HandledIds, clock: ManualClock) -> None:
    await ids.add("a")
    clock.advance(40.0)
    await ids.add("a")
    clock.advance(40.0)
    assert await ids.contains("a")
    await ids.close()


async def test_sqlite_ids_are_known_after_a_restart(tmp_path: Path) -> None:
    config = DeduplicateConfig(store="sqlite", path=str(tmp_path / "ids.db"))
    first = handled_ids_from(config)
    await first.add("a")
    await first.close()
    second = handled_ids_from(config)
    assert await second.contains("a")
    assert not await second.contains("b")
    await second.close()
