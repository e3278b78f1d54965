"""A pool that reports when it is busy, opens channels ahead of need, and closes idle ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.config import PoolConfig
from broker_client.errors import ChannelClosedError
from broker_client.events.stats import PoolStats
from broker_client.pool import ChannelPool
from broker_client.runtime.tasks import TaskGroup
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle
from tests.unit.connection.test_pool import ChannelOpener, User

loop_factory = WarpLoop


class PoolHarness:
    def __init__(self, **settings: Any) -> None:
        self.opener = ChannelOpener()
        self.told: list[tuple[str, PoolStats]] = []
        self.tasks = TaskGroup("test")
        self.pool = ChannelPool(
            "orders",
            self.opener,
            PoolConfig.model_validate({"max": 1, **settings}),
            vhost="v",
            mode="confirm",
            notify=lambda event, stats: self.told.append((event, stats)),
            tasks=self.tasks,
        )

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.told]


async def test_busy_is_reported_once_when_as_many_wait_as_there_may_be_channels() -> None:
    harness = PoolHarness(max=2)
    users = []
    for expected in ([], [], [], [], ["busy"], ["busy"]):
        users.append(User(harness.pool))
        await settle()
        assert harness.events == expected
    assert harness.pool.stats().busy
    for user in users:
        await user.give_back()
    await settle()


async def test_ready_is_reported_once_nobody_waits_any_more() -> None:
    harness = PoolHarness()
    users = [User(harness.pool) for _ in range(3)]
    await settle()
    assert harness.events == ["busy"]
    await users[0].give_back()
    await settle()
    assert harness.events == ["busy"]
    await users[1].give_back()
    await settle()
    assert harness.events == ["busy", "ready"]
    await users[2].give_back()
    await settle()
    assert harness.events == ["busy", "ready"]
    assert not harness.pool.stats().busy


async def test_payload_tells_vhost_mode_and_counts() -> None:
    harness = PoolHarness()
    users = [User(harness.pool) for _ in range(3)]
    await settle()
    [(_, stats)] = harness.told
    assert (stats.vhost, stats.mode, stats.min_size, stats.max_size) == ("v", "confirm", 0, 1)
    assert (stats.size, stats.idle, stats.leased, stats.waiting) == (1, 0, 1, 1)
    for user in users:
        await user.give_back()


async def test_waiting_for_a_link_is_not_being_busy() -> None:
    harness = PoolHarness()
    harness.pool.pause()
    users = [User(harness.pool) for _ in range(4)]
    await settle()
    assert harness.events == []
    harness.pool.resume()
    for user in users:
        await user.give_back()
        await settle()


async def test_autostart_opens_min_channels_with_each_connection() -> None:
    harness = PoolHarness(max=5, min=2, autostart=True)
    harness.pool.pause()
    harness.pool.resume()
    await settle()
    assert len(harness.opener.opened) == 2
    for channel in harness.opener.opened:
        channel.fail()
    harness.pool.pause()
    harness.pool.resume()
    await settle()
    assert len(harness.opener.opened) == 4
    assert harness.pool.stats().idle == 2


async def test_without_autostart_nothing_is_opened_before_it_is_needed() -> None:
    harness = PoolHarness(max=5, min=2)
    harness.pool.pause()
    harness.pool.resume()
    await settle()
    assert harness.opener.opened == []


async def test_autostart_that_fails_is_left_to_the_first_who_needs_a_channel() -> None:
    harness = PoolHarness(max=2, min=2, autostart=True)
    harness.opener.failures = [ChannelClosedError(0, "lost")]
    harness.pool.resume()
    await settle()
    assert harness.pool.stats().size == 0
    user = User(harness.pool)
    await settle()
    assert user.channel is harness.opener.opened[0]
    await user.give_back()


async def use_once(pool: ChannelPool) -> None:
    async with pool.lease():
        pass


class SlowChannel(FakeChannel):
    """A channel whose broker does not answer channel.close."""

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_channel_that_is_not_closed_in_time_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.connection.test_pool.FakeChannel", SlowChannel)
    harness = PoolHarness(idle_timeout=30.0, close_timeout=3.0)
    await use_once(harness.pool)
    await asyncio.sleep(31.0)
    channel = harness.opener.opened[0]
    assert channel.is_usable
    await asyncio.sleep(3.0)
    assert channel.how_ended == "aborted"
    assert "not closed within 3 s" in caplog.text


async def test_idle_channel_is_closed_in_order() -> None:
    harness = PoolHarness(idle_timeout=30.0)
    await use_once(harness.pool)
    await asyncio.sleep(31.0)
    assert harness.opener.opened[0].how_ended == "closed"


async def declare_what_is_missing(pool: ChannelPool) -> None:
    async with pool.lease() as channel:
        assert isinstance(channel, FakeChannel)
        channel.fail(ChannelClosedError(404, "NOT_FOUND"))
        raise ChannelClosedError(404, "NOT_FOUND")


async def test_four_closed_channels_leave_a_pool_that_works() -> None:
    harness = PoolHarness(max=2)
    for _ in range(4):
        with pytest.raises(ChannelClosedError):
            await declare_what_is_missing(harness.pool)
    for _ in range(10):
        async with harness.pool.lease() as channel:
            assert channel.is_usable
    assert harness.pool.stats().size <= 2


async def test_cancelled_lease_at_any_moment_gives_its_slot_back() -> None:
    harness = PoolHarness()
    for turns in range(20):
        users = [User(harness.pool) for _ in range(3)]
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        for user in users:
            user.task.cancel()
        await settle()
    assert harness.pool.stats().leased == 0
    async with harness.pool.lease() as channel:
        assert channel.is_usable
