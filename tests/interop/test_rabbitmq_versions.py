"""Differences between versions of RabbitMQ: each row of the table in docs/amqp-support.md.

The others are tested in tests/contract and tests/client, which run on both brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from broker_client.errors import ChannelClosedError
from broker_client.message import counted_attempts
from broker_client.transport.base import Link
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.contract.observers import Consumer, Watch, a_message
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ, RabbitMQError

pytestmark = pytest.mark.rabbitmq

QUORUM = {"x-queue-type": "quorum"}


@dataclass(frozen=True, slots=True)
class Place:
    """An empty vhost of a RabbitMQ, and a channel there with confirms."""

    server: RabbitMQ
    vhost: str
    link: Link
    watch: Watch

    @property
    def version(self) -> tuple[int, ...]:
        return self.server.version

    async def queue(self, name: str = "q", **arguments: Any) -> None:
        """Declare a quorum queue; `arguments` without their `x-`, with underscores."""
        more = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        await self.watch.channel.declare_queue(name, arguments={**QUORUM, **more})

    async def refusal(self, name: str, **declared: Any) -> str:
        """The reply text where a declaration is refused, or nothing where it is not."""
        channel = await self.link.open_channel()
        try:
            await channel.declare_queue(name, **declared)
        except ChannelClosedError as error:
            return error.reply_text
        await channel.close()
        return ""


@pytest.fixture
async def place(rabbitmq: RabbitMQ) -> AsyncIterator[Place]:
    vhost = rabbitmq.make_vhost()
    link = await NetworkConnector(rabbitmq.url(), vhost=vhost).connect(timeout=30.0)
    yield Place(rabbitmq, vhost, link, await Watch.open(link))
    await link.close()
    rabbitmq.delete_vhost(vhost)


def config_of(place: Place, **parts: Any) -> dict[str, Any]:
    connection = {"url": place.server.url(place.vhost), "retry": {"min": "20ms", "max": "100ms"}}
    return {"vhosts": {"/": {"connection": connection, **parts}}}


# --------------------------------------------------------------------------- at connect


async def test_what_the_server_can_do_is_known_at_connect(place: Place) -> None:
    usual = int(
        place.server.ctl("eval", "element(2, application:get_env(rabbit, max_message_size)).")
    )
    assert place.watch.channel.size_limit.size_bytes == usual
    assert usual == (16 if place.version >= (4, 0) else 128) * 2**20
    can = place.link.capabilities
    assert can.shared_prefetch is (place.version < (4, 3))
    assert can.delayed_retry is (place.version >= (4, 3))


# --------------------------------------------------------------------------- counts and limits


@pytest.mark.parametrize("how", ["reject", "nack", "close the channel"])
async def test_counts_of_a_quorum_queue(place: Place, how: str) -> None:
    await place.queue()
    await place.watch.publish(a_message())
    seen = []
    for _ in range(3):
        await place.watch.has("q", 1)
        channel = await place.link.open_channel()
        delivery = await channel.get("q")
        assert delivery is not None
        headers = delivery.properties.headers or {}
        seen.append((headers.get("x-delivery-count"), headers.get("x-acquired-count")))
        assert counted_attempts(delivery) in (len(seen), None if len(seen) == 1 else 0)
        if how == "reject":
            channel.nack(delivery.delivery_tag, requeue=True)
        elif how == "nack":
            channel.release(delivery.delivery_tag)
        await channel.close()
    if place.version < (4, 0):
        assert seen == [(0, None), (1, None), (2, None)]
    elif place.version < (4, 3):
        assert seen == [(None, None), (1, None), (2, None)]
    elif how == "nack":
        assert seen == [(None, None), (None, 1), (None, 2)]
    else:
        assert seen == [(None, None), (1, 1), (2, 2)]


async def test_quorum_queue_gives_a_message_up_after_twenty_returns(place: Place) -> None:
    await place.watch.channel.declare_queue("dead")
    await place.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    await place.watch.publish(a_message())
    channel = await place.link.open_channel()
    consumer = await Consumer.start(channel, prefetch=1)
    for count in range(1, 26):
        if count == 22 and place.version >= (4, 0):
            break
        await consumer.receives(count)
        channel.nack(consumer.deliveries[-1].delivery_tag, requeue=True)
    if place.version < (4, 0):
        assert len(consumer.deliveries) == 25
        return
    await place.watch.has("dead", 1)
    assert len(consumer.deliveries) == 21
    [letter] = await place.watch.drain("dead")
    assert (letter.properties.headers or {})["x-first-death-reason"] == "delivery_limit"


async def test_nack_of_many_with_requeue_counts_as_failed(place: Place) -> None:
    await place.queue()
    await place.watch.publish(a_message(b"1"), a_message(b"2"))
    await place.watch.has("q", 2)
    channel = await place.link.open_channel()
    for _ in range(2):
        delivery = await channel.get("q")
        assert delivery is not None
    channel.nack(0, requeue=True, multiple=True)
    await place.watch.has("q", 2)
    back = await place.watch.drain("q")
    assert [(each.properties.headers or {})["x-delivery-count"] for each in back] == [1, 1]


# --------------------------------------------------------------------------- delayed retry


async def test_defer_is_left_to_a_queue_with_delayed_retry_and_frees_the_prefetch(
    place: Place,
) -> None:
    retry = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 700}
    retry["x-delayed-retry-max"] = 700
    recovery = [{"strategy": "nack", "requeue": True, "defer": "700ms"}]
    config = config_of(
        place,
        queues={"work": {"options": {"arguments": {**QUORUM, **retry}}}},
        subscriptions={"work": {"queue": "work", "prefetch": 1, "recovery": recovery}},
    )
    seen: list[tuple[Any, float]] = []
    loop = asyncio.get_running_loop()

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append((content, loop.time()))
        if [each for each, _ in seen].count("slow") == 1 and content == "slow":
            raise ValueError("not yet")
        await ack_or_nack()

    async with Broker.create(config) as broker:
        await (await broker.publish("/work", "slow"))
        await (await broker.publish("/work", "next"))
        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", handle)
        await eventually(lambda: len(seen) == 3)
        await eventually(lambda: subscription.stats().acked == 2)
    first = seen[0][1]
    after = {content: at - first for content, at in seen}
    order = [content for content, _ in seen]
    assert order.count("slow") == 2
    assert after["slow"] >= 0.6
    if place.version >= (4, 3):
        assert order == ["slow", "next", "slow"], "the place in the prefetch was free"
    else:
        assert after["next"] >= 0.6, "the client held it in the only place"


# --------------------------------------------------------------------------- consumer time-outs


@pytest.fixture
def short_consumer_timeout(rabbitmq: RabbitMQ) -> Iterator[None]:
    """1 s on channels opened from now on, where the server has it for all queues."""
    if rabbitmq.version >= (4, 3):
        yield
        return
    change = "application:set_env(rabbit, {}, {})."
    rabbitmq.ctl("eval", change.format("consumer_timeout", 1_000))
    rabbitmq.ctl("eval", change.format("channel_tick_interval", 500))
    yield
    rabbitmq.ctl("eval", change.format("consumer_timeout", 1_800_000))
    rabbitmq.ctl("eval", change.format("channel_tick_interval", 60_000))


@pytest.mark.usefixtures("short_consumer_timeout")
async def test_late_ack_loses_nothing_and_the_consumer_goes_on(place: Place) -> None:
    arguments = {**QUORUM, "x-consumer-timeout": 1_000}
    config = config_of(
        place,
        queues={"work": {"options": {"arguments": arguments}}},
        subscriptions={"work": {"queue": "work", "prefetch": 2, "retry": {"min": "20ms"}}},
    )
    seen: list[tuple[Any, bool]] = []
    held: list[AckOrNack] = []
    events: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append((content, message.redelivered))
        if len(seen) <= 2:
            held.append(ack_or_nack)
        else:
            await ack_or_nack()

    async with Broker.create(config) as broker:
        for content in (1, 2, 3):
            await (await broker.publish("/work", content))
        subscription = await broker.subscribe("work")
        for event in ("ack_timeout", "ack_lost", "cancelled", "error"):
            subscription.on(event, lambda *args, event=event: events.append(event))
        subscription.on("ack_due", lambda *args: None).on("message", handle)
        await eventually(lambda: subscription.stats().acked == 3)
        for late in held:
            await late()
    assert sorted(seen) == [(1, False), (1, True), (2, False), (2, True), (3, False)]
    assert events == ["ack_timeout", "ack_lost", "ack_lost"]
    assert await place.watch.drain("work") == []


async def test_classic_queue_takes_no_consumer_timeout_from_4_3_on(place: Place) -> None:
    text = await place.refusal("q", arguments={"x-consumer-timeout": 60_000})
    assert bool(text) is (place.version >= (4, 3))
    assert ("invalid arg 'x-consumer-timeout'" in text) is bool(text)


# --------------------------------------------------------------------------- queues


async def test_priorities_of_a_quorum_queue(place: Place) -> None:
    await place.queue()
    await place.watch.publish(*(a_message(b"%d" % n, priority=n) for n in (0, 1, 4, 5, 9, 31)))
    await place.watch.has("q", 6)
    order = [int(each.body) for each in await place.watch.drain("q")]
    if place.version < (4, 0):
        assert order == [0, 1, 4, 5, 9, 31], "none"
    elif place.version < (4, 3):
        assert order == [5, 9, 0, 31, 1, 4], "two classes: two above 4, then one of the others"
    else:
        assert order == [31, 9, 5, 4, 1, 0], "each"


async def test_max_priority_is_for_classic_queues(place: Place) -> None:
    assert "invalid arg 'x-max-priority'" in await place.refusal(
        "q", arguments={**QUORUM, "x-max-priority": 5}
    )
    assert await place.refusal("q", arguments={"x-max-priority": 5}) == ""


async def test_transient_queue_without_an_owner_is_accepted_by_default(place: Place) -> None:
    """Deprecated since 4.0; a server may be told to refuse it, and a later one will."""
    assert await place.refusal("q", durable=False) == ""


async def test_default_queue_type_of_a_vhost(place: Place) -> None:
    name = place.server.make_vhost(default_queue_type="quorum")
    link = await NetworkConnector(place.server.url(), vhost=name).connect(timeout=30.0)
    channel = await link.open_channel()
    for queue, declared in (("plain", {}), ("own", {"exclusive": True})):
        await channel.declare_queue(queue, **declared)  # type: ignore[arg-type] # bools alone
    types = {}
    for queue in ("plain", "own"):
        await eventually(lambda queue=queue: place.server.queue(name, queue))
        found = place.server.queue(name, queue)
        assert found is not None
        types[queue] = found["type"]
    same = await link.open_channel()
    quorum = place.version >= (4, 0)
    assert types == {"plain": "quorum" if quorum else "classic", "own": "classic"}
    if quorum:
        await same.declare_queue("plain", arguments=QUORUM)
    else:
        with pytest.raises(ChannelClosedError, match="inequivalent arg 'x-queue-type'"):
            await same.declare_queue("plain", arguments=QUORUM)
    await link.close()
    place.server.delete_vhost(name)


async def test_mirrored_queues_are_gone(place: Place) -> None:
    def mirror() -> None:
        place.server.ctl("set_policy", "-p", place.vhost, "mirrored", ".*", '{"ha-mode":"all"}')

    if place.version < (4, 0):
        mirror()
        return
    with pytest.raises(RabbitMQError, match="ha-mode"):
        mirror()


async def test_invalid_delivery_mode(place: Place) -> None:
    watch = await Watch.open(place.link)
    await watch.channel.publish([a_message(to="nowhere", delivery_mode=3)])
    if place.version < (4, 0):
        assert await watch.closed_with() == 406
    else:
        await eventually(lambda: watch.outcomes == {1: True})


# --------------------------------------------------------------------------- streams


async def test_stream_from_an_offset_and_through_a_filter(place: Place) -> None:
    channel = place.watch.channel
    await channel.declare_queue("s", arguments={"x-queue-type": "stream"})
    colours = ["red"] * 3 + ["blue"] * 3
    for n, colour in enumerate(colours):
        headers = {"x-stream-filter-value": colour}
        await place.watch.publish(a_message(b"%d" % n, to="s", headers=headers))
    reader = await place.link.open_channel()
    consumer = await Consumer.start(reader, "s", prefetch=10, arguments={"x-stream-offset": 4})
    await consumer.receives(2)
    offsets = [(each.properties.headers or {})["x-stream-offset"] for each in consumer.deliveries]
    assert offsets == [4, 5]
    await reader.close()

    reader = await place.link.open_channel()
    arguments = {"x-stream-offset": "first", "x-stream-filter": "blue"}
    consumer = await Consumer.start(reader, "s", prefetch=10, arguments=arguments)
    await eventually(lambda: b"5" in consumer.bodies)
    seen = [int(body) for body in consumer.bodies]
    # The filter is for chunks of messages, so that others of the same chunk may come too; each of
    # these was published by itself. Before 3.13 there is none.
    assert seen == ([0, 1, 2, 3, 4, 5] if place.version < (3, 13) else [3, 4, 5])
    await reader.close()


# --------------------------------------------------------------------------- alarms


@pytest.mark.parametrize("resource", ["memory", "disk"])
async def test_alarm_pauses_publishing_and_says_which(place: Place, resource: str) -> None:
    raise_alarm: Callable[[], None] = {
        "memory": place.server.block,
        "disk": lambda: place.server.ctl("set_disk_free_limit", "900000GB"),
    }[resource]  # type: ignore[assignment] # what ctl prints is of no interest
    lower: Callable[[], Any] = {
        "memory": place.server.unblock,
        "disk": lambda: place.server.ctl("set_disk_free_limit", "1MB"),
    }[resource]
    reasons: list[str] = []
    async with Broker.create(config_of(place, queues=["q"])) as broker:
        broker.on("blocked", lambda reason, vhost: reasons.append(reason))
        await asyncio.to_thread(raise_alarm)
        try:
            publication = await broker.publish("/q", 1, timeout=60.0)
            await eventually(lambda: reasons)
            assert not publication.is_ended
        finally:
            await asyncio.to_thread(lower)
        await publication
    assert reasons == [f"low on {resource}"]
