"""Links and channels: opened, closed and cut, and calls after their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    ConnectionLostError,
    StaleDeliveryError,
    TransportError,
    UnsupportedError,
)
from broker_client.transport.base import Channel, Connector, ConsumerCallbacks, Link
from tests.contract.conftest import CONNECT_TIMEOUT, Place
from tests.contract.observers import Consumer, Watch, a_message, numbered
from tests.support.eventually import eventually

NO_CALLBACKS = ConsumerCallbacks(
    lambda delivery: None, lambda consumer_tag: None, lambda delivery_tag: None
)

WAITING_METHODS: dict[str, Callable[[Channel], Awaitable[object]]] = {
    "publish": lambda channel: channel.publish([a_message()]),
    "declare_exchange": lambda channel: channel.declare_exchange("x"),
    "check_exchange": lambda channel: channel.check_exchange("x"),
    "delete_exchange": lambda channel: channel.delete_exchange("x"),
    "declare_queue": lambda channel: channel.declare_queue("q"),
    "check_queue": lambda channel: channel.check_queue("q"),
    "delete_queue": lambda channel: channel.delete_queue("q"),
    "purge_queue": lambda channel: channel.purge_queue("q"),
    "bind_queue": lambda channel: channel.bind_queue("q", "x", ""),
    "unbind_queue": lambda channel: channel.unbind_queue("q", "x", ""),
    "bind_exchange": lambda channel: channel.bind_exchange("x", "y", ""),
    "unbind_exchange": lambda channel: channel.unbind_exchange("x", "y", ""),
    "qos": lambda channel: channel.qos(1),
    "consume": lambda channel: channel.consume("q", NO_CALLBACKS),
    "cancel": lambda channel: channel.cancel("c"),
    "get": lambda channel: channel.get("q"),
}


async def closed(channel: Channel, how: str) -> None:
    match how:
        case "close":
            await channel.close()
        case "abort":
            channel.abort()
        case "broker":
            with pytest.raises(ChannelClosedError):
                await channel.check_queue("nowhere")


# --------------------------------------------------------------------------- channels


@pytest.mark.parametrize("how", ["close", "abort", "broker"])
async def test_every_method_of_a_closed_channel_raises_channel_closed(
    how: str, channel: Channel
) -> None:
    assert channel.is_usable
    await closed(channel, how)
    assert not channel.is_usable
    for method in WAITING_METHODS.values():
        with pytest.raises(ChannelClosedError):
            await method(channel)
    for settle in (channel.ack, channel.nack):
        with pytest.raises(ChannelClosedError):
            settle(1)


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_closing_by_us_is_not_reported(how: str, watch: Watch, link: Link) -> None:
    await closed(watch.channel, how)
    await (await link.open_channel()).declare_queue("q")  # the broker has answered since
    assert watch.closes == []


@pytest.mark.parametrize("how", ["close", "abort", "broker"])
async def test_closing_again_has_no_effect(how: str, channel: Channel, link: Link) -> None:
    await closed(channel, how)
    await channel.close()
    channel.abort()
    await channel.close()
    assert link.is_open


async def test_channel_closed_by_the_broker_leaves_the_others_alone(link: Link) -> None:
    first, second = await Watch.open(link), await Watch.open(link)
    await closed(first.channel, "broker")
    assert second.channel.is_usable
    await second.channel.declare_queue("q")
    assert await second.publish(a_message()) == [True]


async def test_close_of_a_channel_follows_what_was_written(link: Link, watch: Watch) -> None:
    await watch.channel.declare_queue("q")
    plain = await link.open_channel()
    await plain.publish(numbered(1, 100))
    await plain.close()
    await watch.has("q", 100)  # RabbitMQ 4: the queue counts them a moment later


async def test_many_channels_open_and_close(link: Link) -> None:
    for _ in range(3):
        channels = [await link.open_channel(confirm=True) for _ in range(20)]
        for channel in channels:
            await channel.close()
    assert (await link.open_channel()).is_usable


# --------------------------------------------------------------------------- links


async def test_link_knows_whether_it_is_open(connector: Connector) -> None:
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    assert link.is_open
    await link.close()
    assert not link.is_open


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_ending_a_link_ends_its_channels_and_reports_nothing(how: str, link: Link) -> None:
    reports: list[TransportError] = []
    link.on_close = reports.append
    watch = await Watch.open(link)
    if how == "close":
        await link.close()
    else:
        link.abort()
    assert not link.is_open
    assert not watch.channel.is_usable
    with pytest.raises(TransportError):
        await watch.channel.declare_queue("q")
    with pytest.raises(TransportError):
        await link.open_channel()
    await link.close()
    assert reports == []


async def test_ending_a_link_again_has_no_effect(link: Link) -> None:
    await link.close()
    await link.close()
    link.abort()
    link.abort()
    await link.close()
    assert not link.is_open


async def test_published_messages_outlive_the_link(connector: Connector, link: Link) -> None:
    watch = await Watch.open(link)
    await watch.channel.declare_queue("q")
    await watch.publish(*numbered(1, 3))
    await link.close()
    again = await connector.connect(timeout=CONNECT_TIMEOUT)
    try:
        assert (await (await again.open_channel()).check_queue("q")).message_count == 3
    finally:
        await again.close()


async def test_links_share_the_vhost(link: Link, other_link: Link) -> None:
    here, there = await Watch.open(link), await Watch.open(other_link)
    await here.channel.declare_queue("q")
    consumer = await Consumer.start(there.channel)
    await here.publish(a_message(b"across"))
    [delivery] = await consumer.receives(1)
    assert delivery.body == b"across"


async def test_link_cut_by_the_broker_is_reported_once_after_its_channels(
    place: Place, link: Link
) -> None:
    order: list[str] = []
    errors: list[TransportError] = []
    channels = [await link.open_channel(confirm=True) for _ in range(2)]
    for channel in channels:
        channel.on_close = lambda error: order.append("channel")

    def link_closed(error: TransportError) -> None:
        order.append("link")
        errors.append(error)

    link.on_close = link_closed
    await place.cut()
    await eventually(lambda: errors)
    assert order == ["channel", "channel", "link"]
    assert isinstance(errors[0], ConnectionLostError)
    assert not link.is_open
    assert not any(channel.is_usable for channel in channels)
    with pytest.raises(TransportError):
        await link.open_channel()


async def test_waiting_call_ends_when_the_link_is_aborted(link: Link) -> None:
    channel = await link.open_channel()
    asking = asyncio.create_task(channel.declare_queue("q"))
    await asyncio.sleep(0)
    link.abort()
    await asyncio.wait([asking], timeout=30)
    assert asking.done()
    # The built-in broker may have answered within that turn of the loop; a remote one has not.
    assert asking.exception() is None or isinstance(asking.exception(), TransportError)


async def test_url_is_fit_to_print(link: Link, connector: Connector) -> None:
    assert link.url == connector.url
    assert "guest:guest" not in link.url
    assert "guest:guest" not in repr(link) + repr(connector)


# --------------------------------------------------------------------------- capabilities


async def held(watch: Watch) -> int:
    await watch.channel.declare_queue("q")
    await watch.publish(*numbered(1, 2))
    delivery = await watch.channel.get("q")
    assert delivery is not None
    return delivery.delivery_tag


async def test_touch_extends_a_delivery_or_is_unsupported(link: Link, watch: Watch) -> None:
    tag = await held(watch)
    if not link.capabilities.touch:
        with pytest.raises(UnsupportedError):
            watch.channel.touch(tag)
        return
    assert watch.channel.touch(tag) > 0
    watch.channel.ack(tag)
    with pytest.raises(StaleDeliveryError):
        watch.channel.touch(tag)


async def test_requeue_later_holds_back_or_is_unsupported(link: Link, watch: Watch) -> None:
    await watch.channel.declare_queue("q")
    await watch.publish(*numbered(1, 2))
    consumer = await Consumer.start(watch.channel, prefetch=1)
    await consumer.receives(1)
    if link.capabilities.delayed_retry:
        watch.channel.requeue_later(1, 0.05)  # this queue has no x-delayed-retry-type
        await consumer.receives(2)
        assert consumer.deliveries[1].redelivered
        return
    if not link.capabilities.deferred_requeue:
        with pytest.raises(UnsupportedError):
            watch.channel.requeue_later(1, 0.05)
        return
    watch.channel.requeue_later(1, 0.05)
    await consumer.receives(2)  # the deferred one holds no prefetch
    assert consumer.bodies == [b"1", b"2"]
    watch.channel.ack(2)
    await consumer.receives(3)
    assert (consumer.deliveries[2].body, consumer.deliveries[2].redelivered) == (b"1", True)


async def test_only_the_built_in_broker_touches_and_defers(place: Place, link: Link) -> None:
    built_in = place.transport == "embedded"
    assert link.capabilities.touch is built_in
    assert link.capabilities.deferred_requeue is built_in


async def test_attempts_are_counted_where_the_broker_counts(place: Place, watch: Watch) -> None:
    await watch.channel.declare_queue("q")
    await watch.publish(a_message())
    consumer = await Consumer.start(watch.channel, prefetch=1)
    for count in (1, 2):
        await consumer.receives(count)
        watch.channel.nack(count, requeue=True)
    await consumer.receives(3)
    expected = [1, 2, 3] if place.transport == "embedded" else [None, None, None]
    assert [delivery.attempts for delivery in consumer.deliveries] == expected


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_link_that_its_owner_ends_tells_its_channels_once(
    connector: Connector, end: str
) -> None:
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    reports: list[TransportError] = []
    link.on_close = reports.append
    watch = await Watch.open(link)
    if (ending := getattr(link, end)()) is not None:
        await ending
    await eventually(lambda: watch.closes)
    assert (len(watch.closes), watch.channel.is_usable, reports) == (1, False, [])


async def test_consumer_started_while_its_link_is_closed_is_reported(
    connector: Connector, watch: Watch, queue: str
) -> None:
    """It must not wait for deliveries that will not come."""
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    other = await Watch.open(link)
    closing = asyncio.create_task(link.close())
    await asyncio.sleep(0)
    with contextlib.suppress(BrokerClientError):
        await Consumer.start(other.channel, queue)
    await closing
    await eventually(lambda: other.closes)
