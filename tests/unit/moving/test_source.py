"""When a queue that is read for a move counts as read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker_client.message import Outgoing, Properties
from broker_client.moving.source import QueueSource
from broker_client.node.node import Node
from broker_client.testing.virtual_time import LoopClock
from broker_client.transport.embedded.link import EmbeddedLink
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


class Place:
    """A node with a queue, and a link to it."""

    def __init__(self) -> None:
        self.node = Node(clock=LoopClock(asyncio.get_running_loop()))
        self.link = EmbeddedLink("embedded://", self.node, "/", lambda: None)

    async def fill(self, count: int) -> None:
        channel = await self.link.open_channel()
        await channel.declare_queue("q")
        await channel.publish([Outgoing("", "q", b"%d" % n, Properties()) for n in range(count)])
        await self.node.drain()

    async def source(self) -> QueueSource:
        source = QueueSource(await self.link.open_channel(), "q")
        await source.start()
        return source


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    yield place
    await place.node.close()


async def read(source: QueueSource) -> tuple[list[bytes], float]:
    """All that it gives, and how many seconds that took."""
    loop = asyncio.get_running_loop()
    began, bodies = loop.time(), []
    while source.left and (batch := await source.next_batch(2)):
        bodies += [delivery.body for delivery in batch]
    return bodies, loop.time() - began


def after(seconds: float, do: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


@pytest.mark.parametrize("seconds", [2.5, 7.0])
async def test_a_broker_that_is_slow_is_waited_for_while_messages_are_ready(
    place: Place, seconds: float
) -> None:
    await place.fill(5)
    place.node.pause_queue("q")  # it delivers nothing, as a broker that is busy
    source = await place.source()
    after(seconds, lambda: place.node.resume_queue("q"))
    bodies, took = await read(source)
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert took == pytest.approx(seconds, abs=0.1)
    await source.close()


async def test_it_ends_soon_where_the_rest_is_gone(place: Place) -> None:
    await place.fill(5)
    place.node.pause_queue("q")
    source = await place.source()
    place.node.purge("q")
    bodies, took = await read(source)
    assert bodies == []
    assert took == pytest.approx(2.0, abs=0.1)
    await source.close()


async def test_it_ends_after_a_while_where_a_queue_delivers_nothing_at_all(place: Place) -> None:
    await place.fill(5)
    place.node.pause_queue("q")
    source = await place.source()
    bodies, took = await read(source)
    assert bodies == []
    assert took == pytest.approx(10.0, abs=0.1)
    assert place.node.stats().queues[0].ready == 5
    await source.close()
