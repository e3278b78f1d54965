import asyncio
from collections.abc import Callable

import pytest

from broker_client.config import PoolConfig
from broker_client.errors import ChannelClosedError, PoolClosedError, PoolTimeoutError
from broker_client.pool import ChannelPool
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class ChannelOpener:
    """Opens and records channels; waits while `gate` is an unset event."""

    def __init__(self) -> None:
        self.opened: list[FakeChannel] = []
        self.failures: list[Exception] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> FakeChannel:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.opened.append(FakeChannel())
        return self.opened[-1]


@pytest.fixture
def opener() -> ChannelOpener:
    return ChannelOpener()


@pytest.fixture
def a_pool(opener: ChannelOpener) -> Callable[..., ChannelPool]:
    def make(**settings: float) -> ChannelPool:
        return ChannelPool("orders", opener, PoolConfig.model_validate({"max": 1, **settings}))

    return make


Make = Callable[..., ChannelPool]


class User:
    """Leases a channel in a task, and returns it on request."""

    def __init__(self, pool: ChannelPool) -> None:
        self.done = asyncio.Event()
        self.channel: FakeChannel | None = None
        self.task = asyncio.create_task(self._use(pool))

    async def _use(self, pool: ChannelPool) -> None:
        async with pool.lease() as channel:
            assert isinstance(channel, FakeChannel)
            self.channel = channel
            await self.done.wait()

    async def give_back(self) -> None:
        self.done.set()
        await self.task


async def until_idle(pool: ChannelPool) -> None:
    """Return in the very turn in which a channel has come back."""
    while pool.stats().idle == 0:  # noqa: ASYNC110 - the pool tells nobody
        await asyncio.sleep(0)


# --------------------------------------------------------------------------- lending


async def test_channel_given_back_is_lent_again(a_pool: Make) -> None:
    pool = a_pool()
    async with pool.lease() as first:
        pass
    async with pool.lease() as second:
        assert second is first


async def test_stats_tell_idle_channels_from_lent_ones(a_pool: Make) -> None:
    pool = a_pool(max=3)
    first, second = User(pool), User(pool)
    await settle()
    await first.give_back()
    stats = pool.stats()
    assert (stats.name, stats.size, stats.idle, stats.leased) == ("orders", 2, 1, 1)
    await second.give_back()


async def test_channel_of_a_block_that_raised_is_aborted_and_not_lent_again(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    with pytest.raises(LookupError):
        async with pool.lease():
            raise LookupError
    async with pool.lease():
        pass
    assert [channel.how_ended for channel in opener.opened] == ["aborted", ""]


async def test_channel_that_died_idle_is_never_lent(a_pool: Make, opener: ChannelOpener) -> None:
    # rascal PR 81: the pool lent a channel that was closed already, and the message was lost.
    pool = a_pool(max=3)
    users = [User(pool) for _ in range(3)]
    await settle()
    for user in users:
        await user.give_back()
    opener.opened[0].fail()
    opener.opened[2].fail()
    lent = []
    for _ in range(2):
        user = User(pool)
        await settle()
        lent.append(user.channel)
        assert user.channel is not None
        assert user.channel.is_usable
        user.channel.fail()
        await user.give_back()
    assert lent == [opener.opened[1], opener.opened[3]]


async def test_channel_that_died_while_lent_is_not_taken_back(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    async with pool.lease():
        opener.opened[0].fail()
    assert pool.stats().size == 0
    async with pool.lease() as second:
        assert second is opener.opened[1]


async def test_channel_that_dies_between_give_back_and_the_waiters_turn_is_not_lent(
    a_pool: Make, opener: ChannelOpener
) -> None:
    # The race of rascal PR 81: returned while open, closed when the next lease gets it.
    pool = a_pool()
    first = User(pool)
    await settle()
    second = User(pool)
    await settle()
    first.done.set()
    await until_idle(pool)
    opener.opened[0].fail()  # the waiting task has been woken, and has not run yet
    await settle()
    assert second.channel is opener.opened[1]
    assert second.channel.is_usable
    await second.give_back()


async def test_no_more_than_max_channels_are_opened(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool(max=2)
    users = [User(pool) for _ in range(5)]
    await settle()
    assert (len(opener.opened), pool.stats().waiting) == (2, 3)
    for user in users:
        await user.give_back()
    assert len(opener.opened) == 2


async def test_those_who_wait_are_served_in_the_order_they_came(a_pool: Make) -> None:
    pool, served = a_pool(), list[int]()

    async def use(number: int) -> None:
        async with pool.lease():
            served.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(use(number)) for number in range(6)]
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4, 5]


async def test_one_who_gives_back_and_asks_again_at_once_goes_behind_those_who_wait(
    a_pool: Make,
) -> None:
    pool, served = a_pool(), list[str]()

    async def greedy() -> None:
        for _ in range(5):
            async with pool.lease():
                served.append("greedy")
                await asyncio.sleep(0)

    async def patient() -> None:
        async with pool.lease():
            served.append("patient")

    await asyncio.gather(greedy(), patient())
    assert served.index("patient") == 1


async def test_newcomer_takes_what_is_left_over_by_those_who_wait(a_pool: Make) -> None:
    pool = a_pool(max=2)
    first, second = User(pool), User(pool)
    await settle()
    third = User(pool)
    await settle()
    first.done.set()
    second.done.set()
    await settle(2)
    fourth = User(pool)
    await settle()
    assert third.channel is not None
    assert fourth.channel is not None
    for user in (first, second, third, fourth):
        await user.give_back()


async def test_is_wanted_while_somebody_waits_only(a_pool: Make) -> None:
    pool = a_pool()
    assert not pool.is_wanted
    first = User(pool)
    await settle()
    assert not pool.is_wanted
    second = User(pool)
    await settle()
    assert pool.is_wanted
    pool.pause()
    assert not pool.is_wanted
    pool.resume()
    await first.give_back()
    await settle()
    assert not pool.is_wanted
    await second.give_back()


# --------------------------------------------------------------------------- failing to


async def test_failed_open_frees_its_place_and_the_next_one_in_line_tries(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    opener.failures = [ChannelClosedError(0, "no"), ChannelClosedError(0, "no")]
    opener.gate = asyncio.Event()
    users = [User(pool) for _ in range(3)]
    await settle()
    opener.gate.set()
    for user in users[:2]:
        with pytest.raises(ChannelClosedError):
            await user.task
    await settle()
    assert users[2].channel is opener.opened[0]
    await users[2].give_back()


async def test_timeout_says_which_pool_how_long_and_how_full(a_pool: Make) -> None:
    pool = a_pool(acquire_timeout=2.5)
    async with pool.lease():
        with pytest.raises(
            PoolTimeoutError,
            match=r"pool 'orders': no channel free after 2\.50 s \(1 leased, 0 idle, 0 waiting",
        ):
            async with pool.lease():
                pass


async def test_timeout_of_the_opening_itself_is_handed_on(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    opener.failures = [TimeoutError("the broker was silent")]
    with pytest.raises(TimeoutError, match="silent") as caught:
        async with pool.lease():
            pass
    assert not isinstance(caught.value, PoolTimeoutError)


async def test_cancelled_while_opening_frees_its_place(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool()
    opener.gate = asyncio.Event()
    opening = User(pool)
    waiting = User(pool)
    await settle()
    opening.task.cancel()
    opener.gate.set()
    await settle()
    assert opening.task.cancelled()
    assert waiting.channel is not None
    assert pool.stats().size == 1
    await waiting.give_back()


async def test_cancelled_while_waiting_leaves_nothing_behind(a_pool: Make) -> None:
    pool = a_pool()
    first, second = User(pool), User(pool)
    await settle()
    second.task.cancel()
    await settle()
    assert pool.stats().waiting == 0
    await first.give_back()
    async with pool.lease():
        pass


async def test_cancelled_as_its_turn_comes_passes_the_turn_on(a_pool: Make) -> None:
    pool = a_pool()
    first = User(pool)
    await settle()
    cancelled, waiting = User(pool), User(pool)
    await settle()
    first.done.set()
    await until_idle(pool)
    cancelled.task.cancel()  # it has been woken, and has not run yet
    await settle()
    assert cancelled.task.cancelled()
    assert waiting.channel is not None
    await waiting.give_back()


async def test_turn_of_a_cancelled_one_is_not_kept_from_a_newcomer(a_pool: Make) -> None:
    pool = a_pool()
    first = User(pool)
    await settle()
    for _ in range(2):
        waiting = User(pool)
        await settle()
        first.done.set()
        await asyncio.sleep(0)  # it is next, and has not run yet
        waiting.task.cancel()
        await settle()
        first = User(pool)
        await settle()
        assert first.channel is not None
    first.done.set()
    await settle()


async def newcomer_overtakes(pool: ChannelPool) -> bool:
    """Does one who comes as another's turn has come get the channel before that one?"""
    user = User(pool)
    await settle()
    waiting = User(pool)
    await settle()
    waiting.done.set()  # it will give it back at once
    user.done.set()
    await until_idle(pool)
    async with pool.lease():  # in the same turn
        return waiting.channel is None


async def test_newcomer_never_overtakes_one_whose_turn_has_come(a_pool: Make) -> None:
    pool = a_pool()
    assert [await newcomer_overtakes(pool) for _ in range(3)] == [False] * 3
    first = User(pool)
    await settle()
    cancelled, waiting = User(pool), User(pool)
    await settle()
    cancelled.task.cancel()  # before its turn
    await settle()
    assert waiting.channel is None
    await first.give_back()
    await waiting.give_back()
    assert not await newcomer_overtakes(pool)
    first, cancelled = User(pool), User(pool)
    await settle()
    first.done.set()
    await until_idle(pool)
    cancelled.task.cancel()  # as its turn has come
    await settle()
    assert not await newcomer_overtakes(pool)


async def test_newcomer_overtakes_none_of_several_whose_turns_have_come_at_once(
    a_pool: Make,
) -> None:
    pool = a_pool(max=2)
    users = [User(pool) for _ in range(4)]
    await settle()
    for user in users:
        user.done.set()  # the last two will give theirs back at once
    for _ in range(20):
        if pool.stats().idle == 2:
            break
        await asyncio.sleep(0)
    async with pool.lease():  # in the same turn
        assert all(user.channel is not None for user in users)
    await settle()


async def test_channel_given_back_as_a_waiter_is_cancelled_goes_to_the_next(a_pool: Make) -> None:
    pool = a_pool()
    first = User(pool)
    await settle()
    cancelled, waiting = User(pool), User(pool)
    await settle()
    cancelled.task.cancel()
    first.done.set()
    await settle()
    assert cancelled.task.cancelled()
    assert waiting.channel is not None
    await waiting.give_back()


async def test_cancelled_block_gives_its_channel_up(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool()
    user = User(pool)
    await settle()
    user.task.cancel()
    await settle()
    assert opener.opened[0].how_ended == "aborted"
    assert pool.stats().size == 0


# --------------------------------------------------------------------------- pausing


async def test_pause_drops_what_is_idle(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool()
    async with pool.lease():
        pass
    pool.pause()
    assert not opener.opened[0].is_usable
    assert pool.stats().size == 0


async def test_channel_given_back_while_paused_is_dropped(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    user = User(pool)
    await settle()
    pool.pause()
    await user.give_back()
    pool.resume()
    async with pool.lease() as channel:
        assert channel is opener.opened[1]


async def test_lease_waits_out_a_pause_however_long(a_pool: Make) -> None:
    pool = a_pool(acquire_timeout=1.0)
    pool.pause()
    user = User(pool)
    await asyncio.sleep(60.0)
    assert not user.task.done()
    pool.resume()
    await settle()
    assert user.channel is not None
    await user.give_back()


async def test_pause_stops_the_clock_of_those_who_wait_already(a_pool: Make) -> None:
    pool = a_pool(acquire_timeout=1.0)
    first, second = User(pool), User(pool)
    await asyncio.sleep(0.5)
    pool.pause()
    await asyncio.sleep(60.0)
    assert not second.task.done()
    pool.resume()
    await first.give_back()
    await settle()
    assert second.channel is not None
    await second.give_back()


async def test_order_of_those_who_wait_outlives_a_pause(a_pool: Make) -> None:
    pool, served = a_pool(), list[int]()

    async def use(number: int) -> None:
        async with pool.lease():
            served.append(number)
            await asyncio.sleep(0)

    pool.pause()
    tasks = [asyncio.create_task(use(number)) for number in range(6)]
    await settle()
    pool.resume()
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4, 5]


async def test_waiting_begins_anew_after_a_pause(a_pool: Make) -> None:
    pool = a_pool(acquire_timeout=1.0)
    first, second = User(pool), User(pool)
    await settle()
    pool.pause()
    await asyncio.sleep(10.0)
    pool.resume()
    await asyncio.sleep(0.9)
    assert not second.task.done()
    with pytest.raises(PoolTimeoutError):
        await second.task
    await first.give_back()


# --------------------------------------------------------------------------- eviction


async def test_channel_idle_too_long_is_closed(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool(idle_timeout=30.0)
    async with pool.lease():
        pass
    await asyncio.sleep(29.0)
    assert opener.opened[0].is_usable
    await asyncio.sleep(2.0)
    assert not opener.opened[0].is_usable
    assert pool.stats().size == 0


async def test_eviction_leaves_min_channels(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool(max=3, min=1, idle_timeout=30.0)
    users = [User(pool) for _ in range(3)]
    await settle()
    for user in users:
        await user.give_back()
    await asyncio.sleep(100.0)
    assert [channel.is_usable for channel in opener.opened] == [False, False, True]
    pool.close()


async def test_use_puts_eviction_off(a_pool: Make, opener: ChannelOpener) -> None:
    pool = a_pool(idle_timeout=30.0)
    for _ in range(4):
        async with pool.lease():
            pass
        await asyncio.sleep(20.0)
    assert len(opener.opened) == 1
    assert opener.opened[0].is_usable
    pool.close()


# --------------------------------------------------------------------------- closing


async def test_close_fails_those_who_wait_and_those_who_come(a_pool: Make) -> None:
    pool = a_pool()
    first, second = User(pool), User(pool)
    await settle()
    pool.close()
    with pytest.raises(PoolClosedError, match="pool 'orders' is closed"):
        await second.task
    with pytest.raises(PoolClosedError):
        async with pool.lease():
            pass
    await first.give_back()
    assert pool.stats().size == 0


async def test_close_ends_what_is_idle_and_what_comes_back(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool(max=2)
    first, second = User(pool), User(pool)
    await settle()
    await first.give_back()
    pool.close()
    await second.give_back()
    assert not any(channel.is_usable for channel in opener.opened)
    pool.close()


async def test_close_while_opening_lends_nothing_and_ends_the_channel(
    a_pool: Make, opener: ChannelOpener
) -> None:
    pool = a_pool()
    opener.gate = asyncio.Event()
    user = User(pool)
    await settle()
    pool.close()
    opener.gate.set()
    with pytest.raises(PoolClosedError):
        await user.task
    assert not opener.opened[0].is_usable


async def test_close_while_paused_fails_those_who_wait(a_pool: Make) -> None:
    pool = a_pool()
    pool.pause()
    user = User(pool)
    await settle()
    pool.close()
    with pytest.raises(PoolClosedError):
        await user.task


async def test_repr_tells_the_state(a_pool: Make) -> None:
    pool = a_pool()
    async with pool.lease():
        pool.pause()
        assert repr(pool) == ("<ChannelPool orders: 1 leased, 0 idle, 0 waiting of 1, paused>")
