"""Counters and handled ids on a real Redis."""

from __future__ import annotations

import asyncio

from broker_client.config import CounterConfig, DeduplicateConfig
from broker_client.consuming.deduplication import handled_ids_from
from broker_client.consuming.redeliveries import counter_from
from tests.support.eventually import eventually


async def test_counter_is_shared_by_all_who_count(redis_url: str) -> None:
    config = CounterConfig.model_validate({"name": "shared", "type": "redis", "url": redis_url})
    one, two = counter_from(config), counter_from(config)
    counts = [await each.increment("sub/m1") for each in (one, two, one)]
    assert counts == [1, 2, 3]
    assert await two.increment("sub/m2") == 1
    await asyncio.gather(one.close(), two.close())


async def test_handled_id_is_known_to_all_until_its_window_ends(redis_url: str) -> None:
    config = DeduplicateConfig.model_validate({"store": "redis", "url": redis_url, "window": 0.2})
    one, two = handled_ids_from(config), handled_ids_from(config)
    assert not await two.contains("m1")
    await one.add("m1")
    assert await two.contains("m1")

    async def forgotten() -> bool:
        return not await two.contains("m1")

    await eventually(forgotten)
    await asyncio.gather(one.close(), two.close())
