"""Replies, counts and copies on both brokers, and time-outs and delays on ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.message import PERSISTENT
from broker_client.transport.base import Channel, Link
from tests.contract.conftest import EVERY_VERSION, IN_THIS_PROCESS, Place
from tests.contract.observers import Consumer, Watch, a_message, numbered, reply_code_of
from tests.support.eventually import eventually

REPLY_TO = "amq.rabbitmq.reply-to"


# --------------------------------------------------------------------------- direct reply-to


async def asked(watch: Watch, server: Channel) -> str:
    """Send a request to ``q``; returns the address to answer to."""
    await watch.publish(a_message(reply_to=REPLY_TO))
    request = await server.get("q", no_ack=True)
    assert request is not None
    assert request.properties.reply_to is not None
    return request.properties.reply_to


async def test_direct_reply_goes_straight_to_who_asked(
    watch: Watch, other_link: Link, queue: str
) -> None:
    replies = await Consumer.start(watch.channel, REPLY_TO, no_ack=True)
    server = await Watch.open(other_link)
    address = await asked(watch, server.channel)
    assert address.startswith(f"{REPLY_TO}.")
    await server.publish(a_message(b"answer", to=address, correlation_id="c"))
    [answer] = await replies.receives(1)
    assert (answer.body, answer.properties.correlation_id) == (b"answer", "c")
    assert (answer.exchange, answer.redelivered) == ("", False)


async def test_asking_without_consuming_replies_closes_the_channel(
    watch: Watch, queue: str
) -> None:
    await watch.channel.publish([a_message(reply_to=REPLY_TO)])
    assert await watch.closed_with() == 406


async def test_consuming_replies_with_acks_is_refused(channel: Channel) -> None:
    assert await reply_code_of(Consumer.start(channel, REPLY_TO)) == 406


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_answer_to_who_is_gone_is_dropped(
    place: Place, watch: Watch, other_link: Link, queue: str
) -> None:
    await Consumer.start(watch.channel, REPLY_TO, no_ack=True)
    server = await Watch.open(other_link)
    address = await asked(watch, server.channel)
    await watch.channel.close()
    assert await server.publish(a_message(to=address)) == [True]
    assert await server.publish(a_message(to=address, mandatory=True)) == [True]
    assert [returned.reply_code for returned in server.returns] == returned_answers(place)


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_mandatory_answer_arrives(
    place: Place, watch: Watch, other_link: Link, queue: str
) -> None:
    replies = await Consumer.start(watch.channel, REPLY_TO, no_ack=True)
    server = await Watch.open(other_link)
    address = await asked(watch, server.channel)
    assert await server.publish(a_message(to=address, mandatory=True)) == [True]
    await replies.receives(1)
    assert [returned.reply_code for returned in server.returns] == returned_answers(place)


def returned_answers(place: Place) -> list[int]:
    """Reply codes of one mandatory answer: before 4.3, its address was no queue."""
    return [] if place.version >= (4, 3) else [312]


async def test_mandatory_answer_to_a_wrong_address_comes_back(watch: Watch, queue: str) -> None:
    assert await watch.publish(a_message(to=f"{REPLY_TO}.nobody", mandatory=True)) == [True]
    assert [returned.reply_code for returned in watch.returns] == [312]


# --------------------------------------------------------------------------- copies and counts


async def test_dead_letter_goes_where_bcc_sent_it_without_the_header(watch: Watch) -> None:
    channel = watch.channel
    await channel.declare_exchange("dlx", "direct")
    await channel.declare_queue("q", arguments={"x-dead-letter-exchange": "dlx"})
    for name in ("open", "secret"):
        await channel.declare_queue(name)
        await channel.bind_queue(name, "dlx", name)
    await watch.publish(a_message(headers={"CC": ["open"], "BCC": ["secret"]}))
    for name in ("open", "secret"):
        await watch.has(name, 1)
        await watch.drain(name)
    delivery = await channel.get("q")
    assert delivery is not None
    assert delivery.properties.headers == {"CC": ["open"]}
    channel.nack(delivery.delivery_tag)
    for name in ("open", "secret"):
        await watch.has(name, 1)
        [letter] = await watch.drain(name)
        headers = letter.properties.headers
        assert headers is not None
        assert "BCC" not in headers
        assert headers["x-death"][0]["routing-keys"] == ["q", "open"]


async def test_quorum_queue_counts_returns_in_a_header_that_first_deliveries_lack(
    watch: Watch,
) -> None:
    await watch.channel.declare_queue("q", arguments={"x-queue-type": "quorum"})
    await watch.publish(a_message(delivery_mode=PERSISTENT))
    consumer = await Consumer.start(watch.channel, prefetch=1)
    for count in range(1, 4):
        delivery = (await consumer.receives(count))[-1]
        headers: dict[str, Any] = dict(delivery.properties.headers or {})
        assert headers.get("x-delivery-count") == (count - 1 or None)
        if count < 3:
            watch.channel.nack(delivery.delivery_tag, requeue=True)


async def test_classic_queue_adds_no_count_and_takes_none_away(watch: Watch, queue: str) -> None:
    await watch.publish(a_message(headers={"x-delivery-count": 7}))
    for _ in range(2):
        delivery = await watch.channel.get("q")
        assert delivery is not None
        assert delivery.properties.headers == {"x-delivery-count": 7}
        watch.channel.nack(delivery.delivery_tag, requeue=True)
        await watch.has("q", 1)


async def test_message_returned_once_too_often_is_dead_lettered_at_once(watch: Watch) -> None:
    """without a consumer that could take it again."""
    channel = watch.channel
    await channel.declare_exchange("dlx", "fanout")
    await channel.declare_queue("dead")
    await channel.bind_queue("dead", "dlx", "")
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "dlx",
    }
    await channel.declare_queue("q", arguments=arguments)
    await watch.publish(a_message(delivery_mode=PERSISTENT))
    consumer = await Consumer.start(channel, prefetch=1)
    await consumer.receives(1)
    channel.nack(1, requeue=True)
    await consumer.receives(2)
    await channel.cancel(consumer.tag)
    channel.nack(2, requeue=True)
    await watch.has("dead", 1)
    [letter] = await watch.drain("dead")
    headers = letter.properties.headers
    assert headers is not None
    assert headers["x-death"][0]["reason"] == "delivery_limit"


async def test_consumer_of_higher_priority_is_served_first_while_it_can(
    watch: Watch, queue: str
) -> None:
    await watch.channel.qos(2)
    low = await Consumer.start(watch.channel)
    high = await Consumer.start(watch.channel, arguments={"x-priority": 5})
    await watch.publish(*numbered(1, 3))
    await high.receives(2)
    await low.receives(1)
    assert (high.bodies, low.bodies) == ([b"1", b"2"], [b"3"])


async def test_consumer_priority_that_is_no_number_is_refused(channel: Channel, queue: str) -> None:
    started = Consumer.start(channel, arguments={"x-priority": "high"})
    assert await reply_code_of(started) == 406


async def test_all_of_a_long_queue_comes_in_order_to_a_consumer_without_limit(
    watch: Watch, queue: str
) -> None:
    """also where it is handed over in steps."""
    await watch.publish(*numbered(1, 3_000))
    consumer = await Consumer.start(watch.channel)
    await eventually(lambda: len(consumer.deliveries) == 3_000)
    assert consumer.bodies == [b"%d" % number for number in range(1, 3_001)]
    watch.channel.ack(3_000, multiple=True)
    await watch.publish(a_message(b"after"))
    await eventually(lambda: consumer.bodies[-1] == b"after")


# --------------------------------------------------------------------------- ours alone


async def test_delayed_publish_comes_at_its_time_once_and_as_new(
    watch: Watch, queue: str, place: Place
) -> None:
    """A RabbitMQ without the plugin delivers it at once, with the header unchanged."""
    consumer = await Consumer.start(watch.channel)
    await watch.publish(a_message(b"late", headers={"x-delay": 150}), a_message(b"now"))
    await consumer.receives(2)
    if place.transport == "rabbitmq":
        assert consumer.bodies == [b"late", b"now"]
        assert consumer.deliveries[0].properties.headers == {"x-delay": 150}
        return
    assert consumer.bodies == [b"now", b"late"]
    assert consumer.deliveries[1].redelivered is False
    assert consumer.deliveries[1].properties.headers == {"x-delay": -150}


async def test_delay_out_of_range_closes_the_channel(
    watch: Watch, queue: str, place: Place
) -> None:
    if place.transport == "rabbitmq":  # without the plugin: a header as any other
        assert await watch.publish(a_message(headers={"x-delay": 2**32})) == [True]
        return
    await watch.channel.publish([a_message(headers={"x-delay": 2**32})])
    async with asyncio.timeout(30.0):
        assert await watch.closed_with() == 406


@pytest.mark.parametrize("place", IN_THIS_PROCESS, indirect=True)
async def test_consumers_own_message_timeout_gives_a_delivery_back(
    watch: Watch, queue: str
) -> None:
    consumer = await Consumer.start(watch.channel, arguments={"x-message-timeout": 30})
    await watch.publish(a_message(b"slow", message_id="m"), a_message(b"next", message_id="n"))
    await eventually(lambda: consumer.timeouts[:2] == [1, 2])
    await eventually(lambda: len(consumer.deliveries) >= 4)
    told = [(each.properties.message_id, each.redelivered) for each in consumer.deliveries[:4]]
    assert told == [("m", False), ("n", False), ("m", True), ("n", True)]
