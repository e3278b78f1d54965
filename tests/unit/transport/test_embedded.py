"""The embedded transport: addresses, shared nodes, and failing links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.core.settings import EngineSettings
from broker_client.errors import (
    ChannelClosedError,
    ConnectFailedError,
    ConnectionLostError,
    StaleDeliveryError,
    UnsupportedError,
)
from broker_client.message import Delivery
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.embedded.channel import EmbeddedChannel
from broker_client.transport.embedded.link import EmbeddedLink
from broker_client.transport.embedded.nodes import EmbeddedNodes
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.eventually import eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def nodes(clock: ManualClock) -> AsyncIterator[EmbeddedNodes]:
    nodes = EmbeddedNodes(clock=clock)
    yield nodes
    await nodes.close()


async def linked(nodes: EmbeddedNodes, url: str = "embedded://", vhost: str = "/") -> EmbeddedLink:
    return await nodes.connector(url, vhost).connect(timeout=1.0)


class RecordedEvents:
    """Events of a consumer and its channel, in order."""

    def __init__(self, channel: EmbeddedChannel) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.deliveries: list[Delivery] = []
        channel.on_confirm = lambda first, last, acked: self.add("confirm", first, last, acked)
        channel.on_close = lambda error: self.add("closed", error)
        self.callbacks = ConsumerCallbacks(
            self.deliveries.append,
            lambda tag: self.add("cancelled", tag),
            lambda tag: self.add("timed out", tag),
        )

    def add(self, *event: Any) -> None:
        self.events.append(event)


# --------------------------------------------------------------------- addresses


@pytest.mark.parametrize("url", ["amqp://localhost", "embedded://?x=1", "embedded://me@name"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedError):
        EmbeddedNodes().connector(url, "/")


async def test_links_of_one_owner_share_the_private_node_as_two_connections(
    nodes: EmbeddedNodes,
) -> None:
    first, second = await linked(nodes), await linked(nodes)
    channel = await first.open_channel()
    await channel.declare_queue("q", exclusive=True)
    with pytest.raises(ChannelClosedError, match="RESOURCE_LOCKED"):
        await (await second.open_channel()).check_queue("q")
    assert nodes.node().stats().connections == 2


async def test_the_private_node_outlives_its_links(nodes: EmbeddedNodes) -> None:
    link = await linked(nodes)
    await (await link.open_channel()).declare_queue("q")
    await link.close()
    assert (await (await (await linked(nodes)).open_channel()).check_queue("q")).name == "q"


async def test_private_nodes_of_two_owners_are_two(nodes: EmbeddedNodes) -> None:
    others = EmbeddedNodes()
    await (await (await linked(nodes)).open_channel()).declare_queue("q")
    with pytest.raises(ChannelClosedError, match="404"):
        await (await (await linked(others)).open_channel()).check_queue("q")
    await others.close()


async def test_a_named_node_is_shared_and_ends_with_its_last_holder() -> None:
    one, two = EmbeddedNodes(), EmbeddedNodes()
    first = await linked(one, "embedded://Name")
    await (await first.open_channel()).declare_queue("q")
    link = await linked(two, "embedded://Name")
    await (await link.open_channel()).check_queue("q")
    await first.close()
    await one.close()
    await (await link.open_channel()).check_queue("q")
    await two.close()
    assert link.is_open  # an open link holds the node, too
    await link.close()
    three = EmbeddedNodes()
    with pytest.raises(ChannelClosedError, match="404"):
        await (await (await linked(three, "embedded://Name")).open_channel()).check_queue("q")
    await three.close()


async def test_vhosts_come_into_being_with_their_first_link(nodes: EmbeddedNodes) -> None:
    await (await (await linked(nodes, vhost="a")).open_channel()).declare_queue("q")
    with pytest.raises(ChannelClosedError, match="no queue 'q' in vhost 'b'"):
        await (await (await linked(nodes, vhost="b")).open_channel()).check_queue("q")


async def test_connecting_after_close_fails(nodes: EmbeddedNodes) -> None:
    await nodes.close()
    with pytest.raises(ConnectFailedError, match="closed"):
        await linked(nodes)


async def test_it_can_touch_and_defer(nodes: EmbeddedNodes) -> None:
    link = await linked(nodes)
    assert (link.capabilities.touch, link.capabilities.deferred_requeue) == (True, True)
    assert "embedded://" in repr(link)


# --------------------------------------------------------------------- endings


async def test_fail_ends_channels_then_link_and_requeues_at_once(nodes: EmbeddedNodes) -> None:
    link, other = await linked(nodes), await linked(nodes)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    link.on_close = lambda error: heard.add("link closed", error)
    await channel.consume("q", heard.callbacks)
    await channel.publish([a_message(), a_message()])
    await eventually(lambda: len(heard.deliveries) == 2)
    heard.events.clear()
    link.fail("the test cut it")
    assert (link.is_open, channel.is_usable, heard.events) == (False, False, [])
    back = await (await other.open_channel()).get("q")
    assert back is not None
    assert back.redelivered
    await eventually(lambda: len(heard.events) == 2)
    (first, channel_error), (second, link_error) = heard.events
    assert (first, second) == ("closed", "link closed")
    assert isinstance(channel_error, ConnectionLostError)
    assert str(link_error) == "connection to embedded:// lost: the test cut it"
    with pytest.raises(ChannelClosedError):
        channel.ack(1)
    with pytest.raises(ConnectionLostError):
        await link.open_channel()
    link.fail("again")
    await asyncio.sleep(0)
    assert len(heard.events) == 2


@pytest.mark.parametrize("end", ["abort", "close"])
async def test_owner_that_ends_its_link_is_not_told_but_its_channels_are(
    nodes: EmbeddedNodes, end: str
) -> None:
    link = await linked(nodes)
    channel = await link.open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    link.on_close = lambda error: heard.add("link closed", error)
    for _ in range(2):
        if (ending := getattr(link, end)()) is not None:
            await ending
    await nodes.node().drain()
    assert [event for event, _ in heard.events] == ["closed"]
    assert not channel.is_usable


async def test_aborting_a_channel_requeues_at_once(nodes: EmbeddedNodes) -> None:
    link = await linked(nodes)
    channel, other = await link.open_channel(), await link.open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message()])
    await channel.get("q")
    channel.abort()
    channel.abort()
    assert await other.get("q") is not None


async def test_closing_the_nodes_ends_open_links_as_lost(nodes: EmbeddedNodes) -> None:
    link = await linked(nodes)
    heard = RecordedEvents(await link.open_channel())
    link.on_close = lambda error: heard.add("link closed", error)
    await nodes.close()
    await eventually(lambda: len(heard.events) == 2)
    assert "CONNECTION_FORCED" in str(heard.events[1][1])


async def test_a_refused_publish_closes_the_channel_after_the_confirms_before_it(
    nodes: EmbeddedNodes,
) -> None:
    link = await linked(nodes)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    await channel.publish([a_message(), a_message(exchange="missing"), a_message()])
    await eventually(lambda: len(heard.events) == 2)
    assert heard.events[0] == ("confirm", 1, 1, True)
    error = heard.events[1][1]
    assert isinstance(error, ChannelClosedError)
    assert (error.reply_code, error.reply_text) == (
        404,
        "NOT_FOUND - no exchange 'missing' in vhost '/'",
    )
    assert link.is_open


async def test_a_consumer_tag_in_use_ends_the_link(nodes: EmbeddedNodes) -> None:
    link = await linked(nodes)
    channel = await link.open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    await channel.consume("q", heard.callbacks, consumer_tag="c")
    with pytest.raises(ChannelClosedError, match="530"):
        await channel.consume("q", heard.callbacks, consumer_tag="c")
    await eventually(lambda: heard.events)
    assert not link.is_open


# --------------------------------------------------------------------- time in flight


async def test_time_outs_reach_the_consumer_and_a_late_ack_has_no_effect(
    nodes: EmbeddedNodes, clock: ManualClock
) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    await channel.consume("q", heard.callbacks)
    await channel.publish([a_message()])
    await eventually(lambda: heard.deliveries)
    clock.advance(60.0)
    nodes.node().tick()
    await eventually(lambda: len(heard.deliveries) == 2)
    assert heard.events == [("timed out", 1)]
    channel.ack(1)
    assert channel.is_usable
    assert heard.deliveries[1].attempts == 2
    await eventually(lambda: nodes.node().stats().late_settles == 1)
    assert channel.is_usable


async def test_touch_gives_the_seconds_left(nodes: EmbeddedNodes, clock: ManualClock) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message()])
    await channel.get("q")
    clock.advance(50.0)
    assert channel.touch(1) == 60.0
    channel.ack(1)
    with pytest.raises(StaleDeliveryError):
        channel.touch(1)


async def test_requeue_later_comes_back_at_its_time(
    nodes: EmbeddedNodes, clock: ManualClock
) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message()])
    await channel.get("q")
    channel.requeue_later(1, 5.0)
    assert await channel.get("q") is None
    clock.advance(5.0)
    nodes.node().tick()
    back = await channel.get("q")
    assert back is not None
    assert (back.redelivered, back.attempts) == (True, 2)


async def test_a_loop_that_only_publishes_lets_its_consumer_run(nodes: EmbeddedNodes) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    await channel.consume("q", heard.callbacks, no_ack=True)
    for _ in range(1_000):
        await channel.publish([a_message()])
    assert len(heard.deliveries) >= 500


async def test_no_delivery_comes_after_cancel_has_returned(nodes: EmbeddedNodes) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    tag = await channel.consume("q", heard.callbacks)
    await channel.publish([a_message()])
    await channel.cancel(tag)
    assert len(heard.deliveries) == 1
    await channel.publish([a_message()])
    await nodes.node().drain()
    assert len(heard.deliveries) == 1


async def test_above_the_watermark_who_publishes_is_blocked_until_there_is_room() -> None:
    nodes = EmbeddedNodes(settings=EngineSettings(memory_high_watermark=100))
    publisher, consumer = await linked(nodes), await linked(nodes)
    told: list[str] = []
    for name, link in (("publisher", publisher), ("consumer", consumer)):
        link.on_blocked = lambda reason, name=name: told.append(f"{name} blocked: {reason}")
        link.on_unblocked = lambda name=name: told.append(f"{name} unblocked")
    channel, taker = await publisher.open_channel(), await consumer.open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message(body=b"x" * 50) for _ in range(2)])
    await channel.publish([])
    await asyncio.sleep(0)
    assert told == []
    await channel.publish([a_message(body=b"x")])
    await channel.publish([a_message(body=b"x")])
    await eventually(lambda: told)
    first = await taker.get("q")
    assert first is not None
    await taker.close()  # requeued: as much in memory as before
    await asyncio.sleep(0)
    assert told == ["publisher blocked: low on memory"]
    await (await consumer.open_channel()).get("q", no_ack=True)
    await eventually(lambda: len(told) == 2)
    assert told[1] == "publisher unblocked"
    await channel.publish([a_message(body=b"x" * 50)])
    await eventually(lambda: len(told) == 3)
    assert told[2] == "publisher blocked: low on memory"
    for link in (publisher, consumer):
        await link.close()
    await nodes.close()


async def test_a_publisher_that_is_closed_while_blocked_hears_no_more() -> None:
    nodes = EmbeddedNodes(settings=EngineSettings(memory_high_watermark=100))
    publisher, other = await linked(nodes), await linked(nodes)
    told: list[str] = []
    publisher.on_blocked = told.append
    publisher.on_unblocked = lambda: told.append("unblocked")
    channel = await publisher.open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message(body=b"x" * 101)])
    await eventually(lambda: told)
    await publisher.close()
    await (await other.open_channel()).purge_queue("q")
    await nodes.node().drain()
    await asyncio.sleep(0)
    assert told == ["low on memory"]
    await other.close()
    await nodes.close()


async def test_release_is_no_failed_attempt_and_its_message_a_redelivery(
    nodes: EmbeddedNodes,
) -> None:
    """RabbitMQ 4.3 does the same; before, it counts every return."""
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q", arguments={"x-delivery-limit": 1})
    await channel.publish([a_message()])
    for number in range(4):
        delivery = await channel.get("q")
        assert delivery is not None
        assert (delivery.redelivered, delivery.attempts) == (number > 0, 1)
        channel.release(delivery.delivery_tag)
    assert (await channel.check_queue("q")).message_count == 1


async def test_acks_of_one_turn_reach_the_node_before_the_next_command_of_the_channel(
    nodes: EmbeddedNodes,
) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message(), a_message(), a_message()])
    for _ in range(3):
        await channel.get("q")
    channel.ack(1)
    channel.ack(2)
    channel.nack(3, requeue=True)
    (queue,) = nodes.node().stats().queues
    assert (queue.ack_count, queue.in_flight, queue.ready) == (2, 0, 1)
    assert channel.is_usable


@pytest.mark.parametrize("end", ["close", "abort", "fail"])
async def test_ack_right_before_the_end_of_its_channel_counts(
    nodes: EmbeddedNodes, end: str
) -> None:
    link = await linked(nodes)
    channel = await link.open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message()])
    await channel.get("q")
    channel.ack(1)
    if end == "close":
        await channel.close()
    elif end == "abort":
        channel.abort()
    else:
        link.fail("the test cut it")
    other = await (await linked(nodes)).open_channel()
    assert (await other.check_queue("q")).message_count == 0


async def test_second_ack_in_the_same_turn_closes_the_channel_as_a_later_one_does(
    nodes: EmbeddedNodes,
) -> None:
    channel = await (await linked(nodes)).open_channel()
    await channel.declare_queue("q")
    await channel.publish([a_message(), a_message()])
    await channel.get("q")
    await channel.get("q")
    channel.ack(1)
    channel.ack(2)
    channel.ack(1)
    await eventually(lambda: not channel.is_usable)
    with pytest.raises(ChannelClosedError, match="unknown delivery tag 1"):
        await channel.check_queue("q")
    other = await (await linked(nodes)).open_channel()
    assert (await other.check_queue("q")).message_count == 0


async def test_acks_of_the_turn_in_which_the_node_closes_the_connection_do_not_hide_its_end(
    nodes: EmbeddedNodes,
) -> None:
    link = await linked(nodes, "embedded://shared")
    channel, other = await link.open_channel(), await link.open_channel()
    heard = RecordedEvents(channel)
    other.on_close = lambda error: heard.add("other closed", error)
    link.on_close = lambda error: heard.add("link closed", error)
    await channel.declare_queue("q")
    await channel.publish([a_message()])
    await channel.get("q")
    channel.ack(1)
    nodes.node("shared").administration.delete_vhost("/")
    await eventually(lambda: len(heard.events) == 3)
    assert [event[0] for event in heard.events] == ["closed", "other closed", "link closed"]
    assert not link.is_open


@pytest.mark.parametrize("command", ["ack", "nack", "publish", "check"])
async def test_command_for_a_channel_that_timed_out_unheard_is_as_nothing(
    nodes: EmbeddedNodes, clock: ManualClock, command: str
) -> None:
    """As on a network, where it is on its way when channel.close comes."""
    link = EmbeddedLink("embedded://", nodes.node(), "/", lambda: None, consumer_timeout=5.0)
    channel = await link.open_channel()
    await channel.declare_queue("q")
    heard = RecordedEvents(channel)
    await channel.consume("q", heard.callbacks)
    await channel.publish([a_message()])
    await eventually(lambda: heard.deliveries)
    clock.advance(6.0)
    nodes.node().engine.tick(clock.now())
    if command == "check":
        with pytest.raises(ChannelClosedError, match="is closed"):
            await channel.check_queue("q")
    elif command == "publish":
        await channel.publish([a_message()])
    else:
        getattr(channel, command)(1)
    nodes.node().wake()
    await eventually(lambda: heard.events)
    [(event, error)] = heard.events
    assert (event, error.reply_code) == ("closed", 406)
    assert not channel.is_usable
