"""The methods that subscriptions use in addition to plain consuming: release, a shared prefetch."""

from __future__ import annotations

import asyncio

import pytest

from broker_client.errors import ChannelClosedError, UnsupportedError
from broker_client.transport.base import Channel
from tests.contract.conftest import Place
from tests.contract.observers import Consumer, Watch, numbered
from tests.support.eventually import eventually

pytestmark = pytest.mark.usefixtures("queue")


async def test_released_delivery_comes_again(watch: Watch) -> None:
    await watch.publish(*numbered(1, 1))
    consumer = await Consumer.start(watch.channel)
    [first] = await consumer.receives(1)
    watch.channel.release(first.delivery_tag)
    await consumer.receives(2)
    assert [each.redelivered for each in consumer.deliveries] == [False, True]


async def test_release_of_all_up_to_one_gives_back_what_is_unsettled(watch: Watch) -> None:
    await watch.publish(*numbered(1, 4))
    consumer = await Consumer.start(watch.channel)
    first, second, third, fourth = await consumer.receives(4)
    watch.channel.ack(second.delivery_tag)
    watch.channel.release(third.delivery_tag, multiple=True)
    *_, fifth, sixth = await consumer.receives(6)
    assert (fifth.body, sixth.body) == (first.body, third.body)
    assert [each.redelivered for each in (fifth, sixth)] == [True, True]
    watch.channel.ack(sixth.delivery_tag, multiple=True)
    assert (await watch.channel.check_queue("q")).message_count == 0
    assert fourth.delivery_tag < fifth.delivery_tag


async def test_release_and_nack_of_one_delivery_settle_that_one_only(watch: Watch) -> None:
    await watch.publish(*numbered(1, 3))
    consumer = await Consumer.start(watch.channel)
    first, second, third = await consumer.receives(3)
    watch.channel.nack(second.delivery_tag)
    watch.channel.release(third.delivery_tag)
    await consumer.receives(4)
    assert consumer.deliveries[3].body == b"3"
    watch.channel.ack(first.delivery_tag)
    watch.channel.ack(consumer.deliveries[3].delivery_tag)
    assert (await watch.channel.check_queue("q")).message_count == 0


async def test_release_on_a_closed_channel_is_refused(channel: Channel) -> None:
    await channel.close()
    with pytest.raises(ChannelClosedError):
        channel.release(1)


async def test_shared_prefetch_holds_for_all_consumers_together_and_at_once(
    place: Place, watch: Watch
) -> None:
    channel = watch.channel
    if place.transport == "rabbitmq" and place.version >= (4, 3):
        # The server would silently use it as the prefetch of each consumer.
        with pytest.raises(UnsupportedError, match="write prefetch instead"):
            await channel.qos(2, shared=True)
        assert channel.is_usable
        return
    first = await Consumer.start(channel, prefetch=10)
    second = await Consumer.start(channel)
    # RabbitMQ: a prefetch for each consumer takes a shared one back, so this comes behind it.
    await channel.qos(2, shared=True)
    await watch.publish(*numbered(1, 8))

    def count() -> int:
        return len(first.deliveries) + len(second.deliveries)

    await eventually(lambda: count() == 2)
    await asyncio.sleep(0.05)
    assert count() == 2
    await channel.qos(5, shared=True)
    await eventually(lambda: count() == 5)
    await asyncio.sleep(0.05)
    assert count() == 5
