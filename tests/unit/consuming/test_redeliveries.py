"""Redelivery counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_client.config import CounterConfig
from broker_client.consuming.redeliveries import (
    MemoryCounter,
    RedeliveryCounter,
    SqliteCounter,
    StubCounter,
    counter_from,
)
from broker_client.errors import UnsupportedError


@pytest.fixture(params=["memory", "sqlite"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> RedeliveryCounter:
    if request.param == "memory":
        return MemoryCounter(size=2)
    return SqliteCounter(str(tmp_path / "counts.db"), size=2)


async def test_counts_each_key_for_itself(counter: RedeliveryCounter) -> None:
    assert [await counter.increment(key) for key in ("a", "b", "a", "a", "b")] == [1, 1, 2, 3, 2]
    await counter.close()


async def test_key_used_longest_ago_is_forgotten_beyond_the_size(
    counter: RedeliveryCounter,
) -> None:
    for key in ("a", "b", "a", "c"):  # c pushes b out, which was used before a
        await counter.increment(key)
    assert await counter.increment("a") == 3
    assert await counter.increment("b") == 1
    await counter.close()


async def test_sqlite_counts_go_on_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "counts.db")
    for expected in (1, 2):
        counter = SqliteCounter(path, size=10)
        assert await counter.increment("a") == expected
        await counter.close()


async def test_stub_always_says_none() -> None:
    counter = StubCounter()
    assert [await counter.increment("a") for _ in range(3)] == [0, 0, 0]


def test_custom_counter_without_a_factory_says_where_it_goes() -> None:
    config = CounterConfig(name="mine", type="custom")
    with pytest.raises(UnsupportedError, match=r"counter 'mine' .*Broker.create"):
        counter_from(config)


def test_custom_counter_is_made_from_its_settings() -> None:
    seen: list[CounterConfig] = []

    def factory(config: CounterConfig) -> RedeliveryCounter:
        seen.append(config)
        return StubCounter()

    config = CounterConfig(name="mine", type="custom", options={"ttl": 3})
    assert isinstance(counter_from(config, factory), StubCounter)
    assert seen == [config]
