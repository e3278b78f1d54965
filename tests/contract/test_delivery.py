"""Deliveries: their order, their number at a time, and their settlement."""

from __future__ import annotations

import pytest

from broker_client.errors import ChannelClosedError
from broker_client.transport.base import Channel, Link
from tests.contract.observers import Consumer, Watch, a_message, bodies, numbered, reply_code_of
from tests.support.eventually import eventually

pytestmark = pytest.mark.usefixtures("queue")


async def with_dead_letters(watch: Watch, queue: str = "work") -> None:
    """Declare `queue` with a dead-letter exchange that leads to the queue ``dead``."""
    channel = watch.channel
    await channel.declare_exchange("dlx", "fanout")
    await channel.declare_queue("dead")
    await channel.bind_queue("dead", "dlx", "")
    await channel.declare_queue(queue, arguments={"x-dead-letter-exchange": "dlx"})


# --------------------------------------------------------------------------- consumers


async def test_delivery_says_where_it_comes_from(watch: Watch) -> None:
    await watch.channel.bind_queue("q", "amq.topic", "a.#")
    consumer = await Consumer.start(watch.channel, consumer_tag="mine")
    await watch.publish(a_message(b"body", exchange="amq.topic", to="a.b"))
    [delivery] = await consumer.receives(1)
    assert delivery.consumer_tag == consumer.tag == "mine"
    assert delivery.delivery_tag == 1
    assert delivery.redelivered is False
    assert (delivery.exchange, delivery.routing_key) == ("amq.topic", "a.b")
    assert delivery.body == b"body"


async def test_consumers_without_a_tag_get_different_ones(channel: Channel) -> None:
    first, second = await Consumer.start(channel), await Consumer.start(channel)
    assert first.tag
    assert second.tag
    assert first.tag != second.tag


async def test_messages_come_in_the_order_they_were_published(watch: Watch) -> None:
    await watch.publish(*numbered(1, 50))
    consumer = await Consumer.start(watch.channel)
    await watch.publish(*numbered(51, 100))
    await consumer.receives(100)
    assert consumer.bodies == [b"%d" % number for number in range(1, 101)]
    assert [d.delivery_tag for d in consumer.deliveries] == list(range(1, 101))


async def test_consuming_a_missing_queue_is_refused(channel: Channel) -> None:
    assert await reply_code_of(Consumer.start(channel, "nowhere")) == 404


async def test_consumers_take_turns(link: Link, watch: Watch) -> None:
    first = await Consumer.start(await link.open_channel(), prefetch=5)
    second = await Consumer.start(await link.open_channel(), prefetch=5)
    await watch.publish(*numbered(1, 10))
    await first.receives(5)
    await second.receives(5)
    assert sorted(first.bodies + second.bodies) == sorted(b"%d" % n for n in range(1, 11))


async def test_exclusive_consumer_keeps_others_out(link: Link, channel: Channel) -> None:
    consumer = await Consumer.start(channel, exclusive=True)
    assert await reply_code_of(Consumer.start(await link.open_channel())) == 403
    await channel.cancel(consumer.tag)
    assert (await Consumer.start(await link.open_channel())).tag


async def test_exclusive_consumer_is_refused_where_others_consume(
    link: Link, channel: Channel
) -> None:
    await Consumer.start(channel)
    assert await reply_code_of(Consumer.start(await link.open_channel(), exclusive=True)) == 403


async def test_single_active_consumer_is_followed_by_the_next(link: Link, watch: Watch) -> None:
    await watch.channel.declare_queue("one", arguments={"x-single-active-consumer": True})
    first = await Consumer.start(await link.open_channel(), "one", no_ack=True)
    second = await Consumer.start(await link.open_channel(), "one", no_ack=True)
    await watch.publish(*numbered(1, 3, to="one"))
    await first.receives(3)
    assert second.deliveries == []
    await first.channel.cancel(first.tag)
    await watch.publish(*numbered(4, 5, to="one"))
    assert bodies(await second.receives(2)) == [b"4", b"5"]


async def test_deleting_the_queue_cancels_its_consumers(link: Link, channel: Channel) -> None:
    consumer = await Consumer.start(await link.open_channel())
    await channel.delete_queue("q")
    await eventually(lambda: consumer.cancels)
    assert consumer.cancels == [consumer.tag]
    assert consumer.channel.is_usable


async def test_cancelled_consumer_gets_nothing_more(watch: Watch) -> None:
    consumer = await Consumer.start(watch.channel)
    await watch.channel.cancel(consumer.tag)
    await watch.publish(a_message())
    assert await watch.depth("q") == 1
    assert consumer.deliveries == []
    assert consumer.cancels == []  # basic.cancel is only sent for cancels by the broker


async def test_delivery_held_over_a_cancel_can_still_be_settled(watch: Watch) -> None:
    await with_dead_letters(watch)
    await watch.publish(*numbered(1, 2, to="work"))
    consumer = await Consumer.start(watch.channel, "work")
    one, two = await consumer.receives(2)
    await watch.channel.cancel(consumer.tag)
    assert await watch.depth("work") == 0  # a cancel requeues nothing
    watch.channel.ack(one.delivery_tag)
    watch.channel.nack(two.delivery_tag)
    await watch.has("dead", 1)
    assert bodies(await watch.drain("dead")) == [b"2"]
    await watch.channel.close()


async def test_higher_priority_is_delivered_first(watch: Watch) -> None:
    await watch.channel.declare_queue("ranked", arguments={"x-max-priority": 5})
    await watch.publish(
        a_message(b"none", to="ranked"),
        a_message(b"low", to="ranked", priority=1),
        a_message(b"high", to="ranked", priority=5),
        a_message(b"beyond", to="ranked", priority=9),
        a_message(b"low too", to="ranked", priority=1),
    )
    taken = bodies(await watch.drain("ranked"))
    assert taken == [b"high", b"beyond", b"low", b"low too", b"none"]


# --------------------------------------------------------------------------- prefetch


async def test_prefetch_limits_unsettled_deliveries(watch: Watch) -> None:
    await watch.publish(*numbered(1, 5))
    consumer = await Consumer.start(watch.channel, prefetch=2)
    await consumer.receives(2)
    assert await watch.depth("q") == 3
    assert len(consumer.deliveries) == 2


async def test_ack_lets_the_next_delivery_through(watch: Watch) -> None:
    await watch.publish(*numbered(1, 3))
    consumer = await Consumer.start(watch.channel, prefetch=1)
    for count in (1, 2, 3):
        await consumer.receives(count)
        watch.channel.ack(consumer.deliveries[-1].delivery_tag)
    assert consumer.bodies == [b"1", b"2", b"3"]


async def test_nack_lets_the_next_delivery_through(watch: Watch) -> None:
    await watch.publish(*numbered(1, 2))
    consumer = await Consumer.start(watch.channel, prefetch=1)
    await consumer.receives(1)
    watch.channel.nack(1)
    await consumer.receives(2)
    assert consumer.bodies == [b"1", b"2"]


async def test_prefetch_of_zero_is_no_limit(watch: Watch) -> None:
    await watch.publish(*numbered(1, 50))
    consumer = await Consumer.start(watch.channel, prefetch=0)
    await consumer.receives(50)
    assert (len(consumer.bodies), await watch.depth("q")) == (50, 0)


async def test_prefetch_counts_for_each_consumer(watch: Watch) -> None:
    await watch.channel.declare_queue("r")
    await watch.publish(*numbered(1, 3), *numbered(1, 3, to="r"))
    first = await Consumer.start(watch.channel, "q", prefetch=1)
    second = await Consumer.start(watch.channel, "r", prefetch=2)
    await first.receives(1)
    await second.receives(2)
    assert (await watch.depth("q"), await watch.depth("r")) == (2, 1)


async def test_consumer_without_acks_knows_no_prefetch(watch: Watch) -> None:
    await watch.publish(*numbered(1, 10))
    consumer = await Consumer.start(watch.channel, prefetch=1, no_ack=True)
    await consumer.receives(10)
    assert await watch.depth("q") == 0


async def test_basic_get_does_not_count_against_prefetch(watch: Watch) -> None:
    await watch.publish(*numbered(1, 2))
    held = await watch.channel.get("q")
    assert held is not None
    consumer = await Consumer.start(watch.channel, prefetch=1)
    await consumer.receives(1)
    assert consumer.bodies == [b"2"]


# --------------------------------------------------------------------------- settling


async def test_acked_message_is_gone_permanently(link: Link, watch: Watch) -> None:
    await with_dead_letters(watch)
    await watch.publish(*numbered(1, 2, to="work"))
    reader = await Watch.open(link)
    consumer = await Consumer.start(reader.channel, "work", prefetch=2)
    await consumer.receives(2)
    reader.channel.ack(1)
    await reader.channel.close()  # requeues unacked messages
    await watch.has("work", 1)
    assert bodies(await watch.drain("work")) == [b"2"]
    assert await watch.depth("dead") == 0


async def test_acks_out_of_order_settle_their_own(link: Link, watch: Watch) -> None:
    await watch.publish(*numbered(1, 5))
    reader = await link.open_channel()
    consumer = await Consumer.start(reader)
    await consumer.receives(5)
    for tag in (4, 2, 5):
        reader.ack(tag)
    await reader.close()
    await watch.has("q", 2)
    assert bodies(await watch.drain("q")) == [b"1", b"3"]


async def test_ack_and_nack_in_one_turn_settle_their_own(watch: Watch, link: Link) -> None:
    await with_dead_letters(watch)
    await watch.publish(*numbered(1, 5, to="work"))
    reader = await link.open_channel()
    consumer = await Consumer.start(reader, "work")
    await consumer.receives(5)
    reader.ack(1)
    reader.nack(2)
    reader.ack(3)
    reader.nack(4)
    await reader.close()
    await watch.has("work", 1)
    assert bodies(await watch.drain("work")) == [b"5"]
    await watch.has("dead", 2)
    assert bodies(await watch.drain("dead")) == [b"2", b"4"]


async def test_ack_multiple_settles_all_up_to_the_tag(link: Link, watch: Watch) -> None:
    await watch.publish(*numbered(1, 4))
    reader = await link.open_channel()
    await (await Consumer.start(reader)).receives(4)
    reader.ack(3, multiple=True)
    await reader.close()
    await watch.has("q", 1)
    assert bodies(await watch.drain("q")) == [b"4"]


async def test_nack_multiple_settles_all_up_to_the_tag(watch: Watch) -> None:
    await with_dead_letters(watch)
    await watch.publish(*numbered(1, 4, to="work"))
    await (await Consumer.start(watch.channel, "work")).receives(4)
    watch.channel.ack(2)
    watch.channel.nack(3, multiple=True)
    await watch.has("dead", 2)
    assert bodies(await watch.drain("dead")) == [b"1", b"3"]


async def test_nack_without_requeue_and_without_dead_letters_drops_the_message(
    watch: Watch, link: Link
) -> None:
    await watch.publish(a_message())
    reader = await link.open_channel()
    await (await Consumer.start(reader)).receives(1)
    reader.nack(1)
    await reader.close()
    assert await watch.depth("q") == 0


async def test_nack_with_requeue_comes_back_marked_and_in_front(watch: Watch) -> None:
    await watch.publish(*numbered(1, 3))
    consumer = await Consumer.start(watch.channel, prefetch=1)
    await consumer.receives(1)
    watch.channel.nack(1, requeue=True)
    await consumer.receives(2)
    assert consumer.bodies == [b"1", b"1"]
    assert [d.redelivered for d in consumer.deliveries] == [False, True]
    watch.channel.ack(2)
    await consumer.receives(3)
    assert consumer.deliveries[2].body == b"2"
    assert consumer.deliveries[2].redelivered is False


@pytest.mark.parametrize("settle", ["ack", "nack"])
async def test_unknown_delivery_tag_closes_the_channel_with_406(settle: str, watch: Watch) -> None:
    getattr(watch.channel, settle)(99)
    assert await watch.closed_with() == 406


async def test_second_ack_closes_the_channel_with_406(watch: Watch) -> None:
    await watch.publish(a_message())
    await (await Consumer.start(watch.channel)).receives(1)
    watch.channel.ack(1)
    await watch.depth("q")
    watch.channel.ack(1)
    assert await watch.closed_with() == 406


async def test_delivery_tags_belong_to_the_channel(link: Link, watch: Watch) -> None:
    await watch.publish(*numbered(1, 2))
    await (await Consumer.start(watch.channel)).receives(2)
    other = await Watch.open(link)
    other.channel.ack(1)
    assert await other.closed_with() == 406
    watch.channel.ack(2, multiple=True)
    assert await watch.depth("q") == 0


@pytest.mark.parametrize("end", ["channel close", "channel abort", "link close", "link abort"])
async def test_unsettled_deliveries_go_back_in_order_when_their_channel_ends(
    end: str, watch: Watch, other_link: Link
) -> None:
    await watch.publish(*numbered(1, 4))
    reader = await other_link.open_channel()
    await (await Consumer.start(reader, prefetch=3)).receives(3)
    match end:
        case "channel close":
            await reader.close()
        case "channel abort":
            reader.abort()
        case "link close":
            await other_link.close()
        case "link abort":
            other_link.abort()
    await watch.has("q", 4)
    back = await watch.drain("q")
    assert bodies(back) == [b"1", b"2", b"3", b"4"]
    assert [delivery.redelivered for delivery in back] == [True, True, True, False]


async def test_delivery_without_acks_is_not_given_back(link: Link, watch: Watch) -> None:
    await watch.publish(*numbered(1, 2))
    reader = await link.open_channel()
    await (await Consumer.start(reader, no_ack=True)).receives(2)
    await reader.close()
    assert await watch.depth("q") == 0


async def test_settling_on_a_closed_channel_raises(watch: Watch) -> None:
    await watch.publish(a_message())
    await (await Consumer.start(watch.channel)).receives(1)
    await watch.channel.close()
    with pytest.raises(ChannelClosedError):
        watch.channel.ack(1)


# --------------------------------------------------------------------------- basic.get


async def test_get_takes_one_message_or_answers_none(watch: Watch) -> None:
    assert await watch.channel.get("q") is None
    await watch.publish(*numbered(1, 2))
    one, two = await watch.channel.get("q"), await watch.channel.get("q")
    assert one is not None
    assert two is not None
    assert (one.body, one.delivery_tag, one.redelivered) == (b"1", 1, False)
    assert (two.body, two.delivery_tag) == (b"2", 2)
    assert await watch.channel.get("q") is None
    watch.channel.nack(1, requeue=True)
    again = await watch.channel.get("q")
    assert again is not None
    assert (again.body, again.redelivered) == (b"1", True)


async def test_got_message_goes_back_when_the_channel_closes(link: Link, watch: Watch) -> None:
    await watch.publish(*numbered(1, 2))
    reader = await link.open_channel()
    await reader.get("q")
    await reader.get("q", no_ack=True)
    await reader.close()
    await watch.has("q", 1)
    assert bodies(await watch.drain("q")) == [b"1"]


async def test_get_from_a_missing_queue_is_refused(channel: Channel) -> None:
    assert await reply_code_of(channel.get("nowhere")) == 404
