"""RabbitMQ's extensions that are queue arguments."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from broker_client.errors import ChannelClosedError
from broker_client.message import Delivery
from broker_client.transport.base import Link
from tests.contract.conftest import EVERY_VERSION, Place
from tests.contract.observers import Consumer, Watch, a_message, bodies, numbered, until
from tests.support.eventually import eventually


async def dead_letter_queue(watch: Watch) -> None:
    """The queue ``dead`` behind the exchange ``dlx``."""
    await watch.channel.declare_exchange("dlx", "fanout")
    await watch.channel.declare_queue("dead")
    await watch.channel.bind_queue("dead", "dlx", "")


async def a_queue(watch: Watch, **arguments: Any) -> None:
    """The queue ``q``; ``max_length=3`` is ``x-max-length: 3``."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    await watch.channel.declare_queue("q", arguments=named)


async def the_dead_letter(watch: Watch) -> Delivery:
    await watch.has("dead", 1)
    [delivery] = await watch.drain("dead")
    return delivery


def deaths(delivery: Delivery) -> list[dict[str, Any]]:
    assert delivery.properties.headers is not None
    found: list[dict[str, Any]] = delivery.properties.headers["x-death"]
    return found


async def reject_one(watch: Watch, queue: str = "q") -> None:
    await watch.has(queue, 1)
    delivery = await watch.channel.get(queue)
    assert delivery is not None
    watch.channel.nack(delivery.delivery_tag)


# --------------------------------------------------------------------------- dead letters


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_rejected_message_carries_its_death(place: Place, watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, dead_letter_exchange="dlx")
    await watch.channel.bind_queue("q", "amq.topic", "a.*")
    await watch.publish(
        a_message(b"body", exchange="amq.topic", to="a.b", message_id="m", headers={"mine": 1})
    )
    await reject_one(watch)
    letter = await the_dead_letter(watch)
    assert (letter.body, letter.properties.message_id) == (b"body", "m")
    assert (letter.exchange, letter.routing_key) == ("dlx", "a.b")
    # RabbitMQ 4.3 sets redelivered on a dead letter that was delivered before.
    assert letter.redelivered is (place.transport == "rabbitmq" and place.version >= (4, 3))
    [death] = deaths(letter)
    assert isinstance(death.pop("time"), datetime)
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "q",
        "exchange": "amq.topic",
        "routing-keys": ["a.b"],
    }
    headers = dict(letter.properties.headers or {})
    del headers["x-death"]
    told = {"reason": "rejected", "queue": "q", "exchange": "amq.topic"}
    kinds = ("first", "last") if place.version >= (4, 0) else ("first",)
    assert headers == {
        "mine": 1,
        **{f"x-{kind}-death-{what}": value for kind in kinds for what, value in told.items()},
    }


async def test_dead_letter_takes_the_routing_key_of_the_queue(watch: Watch) -> None:
    await watch.channel.declare_queue("other")
    await a_queue(watch, dead_letter_exchange="", dead_letter_routing_key="other")
    await watch.publish(a_message(b"body"))
    await reject_one(watch)
    await watch.has("other", 1)
    [letter] = await watch.drain("other")
    assert (letter.exchange, letter.routing_key) == ("", "other")


async def test_second_death_in_the_same_queue_counts_up(watch: Watch) -> None:
    await a_queue(watch, dead_letter_exchange="", dead_letter_routing_key="r")
    await watch.channel.declare_queue(
        "r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    )
    await watch.publish(a_message())
    for name in ("q", "r", "q"):
        await reject_one(watch, name)
    await watch.has("r", 1)
    [letter] = await watch.drain("r")
    assert [(death["queue"], death["count"]) for death in deaths(letter)] == [("q", 2), ("r", 1)]


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_deaths_that_a_client_publishes_count_up_to_version_3_only(
    place: Place, watch: Watch
) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, dead_letter_exchange="dlx")
    await watch.publish(a_message())
    await reject_one(watch)
    first = await the_dead_letter(watch)
    other = {"queue": "other", "reason": "rejected", "count": 3, "exchange": "", "routing-keys": []}
    headers = {**(first.properties.headers or {}), "x-first-death-queue": "other"}
    headers["x-death"] = [*headers["x-death"], other]
    await watch.publish(a_message(headers=headers))
    await watch.has("q", 1)
    unread = await watch.channel.get("q")
    assert unread is not None
    assert (unread.properties.headers or {})["x-death"] == headers["x-death"], "the client's own"
    watch.channel.nack(unread.delivery_tag)
    second = await the_dead_letter(watch)
    counted = place.version < (4, 0)
    assert [(death["queue"], death["count"]) for death in deaths(second)] == (
        [("q", 2), ("other", 3)] if counted else [("q", 1)]
    )
    whence = (second.properties.headers or {})["x-first-death-queue"]
    assert whence == ("other" if counted else "q")


async def test_latest_death_stands_first(watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, dead_letter_exchange="", dead_letter_routing_key="r")
    await watch.channel.declare_queue("r", arguments={"x-dead-letter-exchange": "dlx"})
    await watch.publish(a_message())
    await reject_one(watch, "q")
    await reject_one(watch, "r")
    letter = await the_dead_letter(watch)
    assert [death["queue"] for death in deaths(letter)] == ["r", "q"]
    assert (letter.properties.headers or {})["x-first-death-queue"] == "q"


async def test_dead_letter_exchange_that_is_missing_drops_the_message(watch: Watch) -> None:
    await a_queue(watch, dead_letter_exchange="nowhere")
    await watch.publish(a_message())
    await reject_one(watch)
    assert await watch.depth("q") == 0
    assert watch.channel.is_usable


async def test_delay_queue_brings_the_message_back_after_its_time(watch: Watch) -> None:
    await watch.channel.declare_queue("work")
    await a_queue(watch, message_ttl=30, dead_letter_exchange="", dead_letter_routing_key="work")
    consumer = await Consumer.start(watch.channel, "work", no_ack=True)
    await watch.publish(*numbered(1, 3))
    await consumer.receives(3)
    assert consumer.bodies == [b"1", b"2", b"3"]


async def test_messages_that_expire_in_a_ring_of_queues_are_dropped(watch: Watch) -> None:
    # RabbitMQ: a cycle without a rejection in it ends the message.
    await a_queue(watch, message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    await watch.publish(a_message())
    await watch.has("q", 0)


# --------------------------------------------------------------------------- time to live


async def test_message_older_than_the_time_of_the_queue_is_dead_lettered(watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, message_ttl=30, dead_letter_exchange="dlx")
    await watch.publish(a_message(b"old"))
    letter = await the_dead_letter(watch)
    assert letter.body == b"old"
    [death] = deaths(letter)
    assert (death["reason"], death["count"], death["queue"]) == ("expired", 1, "q")
    assert await watch.depth("q") == 0


async def test_expiration_of_the_message_moves_into_its_death(watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, dead_letter_exchange="dlx")
    await watch.publish(a_message(expiration="30"))
    letter = await the_dead_letter(watch)
    [death] = deaths(letter)
    assert (death["reason"], death["original-expiration"]) == ("expired", "30")
    assert letter.properties.expiration is None  # or it would expire again


async def test_message_in_flight_does_not_expire(watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, message_ttl=50, dead_letter_exchange="dlx")
    consumer = await Consumer.start(watch.channel, prefetch=1)  # first, so `held` cannot expire
    await watch.publish(a_message(b"held"))
    [held] = await consumer.receives(1)
    await watch.publish(a_message(b"ready"))
    assert (await the_dead_letter(watch)).body == b"ready"
    watch.channel.ack(held.delivery_tag)
    assert await watch.depth("dead") == 0


async def test_message_with_no_time_to_live_that_nobody_waits_for_dies_at_once(
    watch: Watch,
) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, dead_letter_exchange="dlx")
    await watch.publish(a_message(expiration="0"))
    [death] = deaths(await the_dead_letter(watch))
    assert (death["reason"], death["queue"]) == ("expired", "q")


@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5"])
async def test_expiration_that_is_no_number_closes_the_channel(
    expiration: str, watch: Watch
) -> None:
    await a_queue(watch)
    await watch.channel.publish([a_message(expiration=expiration)])
    assert await watch.closed_with() == 406


# --------------------------------------------------------------------------- lengths


async def test_full_queue_drops_its_oldest(watch: Watch) -> None:
    await dead_letter_queue(watch)
    await a_queue(watch, max_length=2, dead_letter_exchange="dlx")
    assert await watch.publish(*numbered(1, 4)) == [True] * 4
    assert bodies(await watch.drain("q")) == [b"3", b"4"]
    await watch.has("dead", 2)
    dead = await watch.drain("dead")
    assert bodies(dead) == [b"1", b"2"]
    assert [deaths(letter)[0]["reason"] for letter in dead] == ["maxlen", "maxlen"]


async def test_length_in_bytes_drops_the_oldest(watch: Watch) -> None:
    await a_queue(watch, max_length_bytes=10)
    await watch.publish(a_message(b"a" * 6), a_message(b"b" * 6), a_message(b"c" * 4))
    assert bodies(await watch.drain("q")) == [b"b" * 6, b"c" * 4]


async def test_length_counts_ready_messages_only(watch: Watch) -> None:
    await a_queue(watch, max_length=1)
    await watch.publish(a_message(b"held"))
    held = await watch.channel.get("q")
    assert held is not None
    await watch.publish(a_message(b"ready"))
    assert await watch.depth("q") == 1
    watch.channel.ack(held.delivery_tag)


async def test_full_queue_that_rejects_publishes_nacks_them(watch: Watch) -> None:
    await a_queue(watch, max_length=2, overflow="reject-publish")
    assert await watch.publish(*numbered(1, 2)) == [True, True]
    assert await watch.publish(a_message(b"3")) == [False]
    assert bodies(await watch.drain("q")) == [b"1", b"2"]
    assert await watch.publish(a_message(b"4")) == [True]


async def test_publish_that_one_of_two_queues_rejects_is_nacked(watch: Watch) -> None:
    await a_queue(watch, max_length=1, overflow="reject-publish")
    await watch.channel.declare_queue("roomy")
    for queue in ("q", "roomy"):
        await watch.channel.bind_queue(queue, "amq.fanout", "")
    assert await watch.publish(a_message(exchange="amq.fanout")) == [True]
    assert await watch.publish(a_message(exchange="amq.fanout")) == [False]
    assert await watch.depth("q") == 1


async def test_unknown_overflow_is_refused(watch: Watch) -> None:
    with pytest.raises(Exception, match="406"):
        await a_queue(watch, max_length=1, overflow="explode")


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_priorities_of_a_quorum_queue_are_those_of_its_version(
    place: Place, watch: Watch
) -> None:
    await a_queue(watch, queue_type="quorum")
    given = (0, 1, None, 4, 5, 9, 31, 200)
    await watch.publish(*(a_message(str(n).encode(), priority=n) for n in given))
    await watch.has("q", len(given))
    if place.version >= (4, 3):
        # 31 is the highest; a message without a priority has 4.
        order = [b"31", b"200", b"9", b"5", b"None", b"4", b"1", b"0"]
    elif place.version >= (4, 0):
        order = [b"5", b"9", b"0", b"31", b"200", b"1", b"None", b"4"]
    else:
        order = [str(n).encode() for n in given]
    assert bodies(await watch.drain("q")) == order


async def test_returned_message_keeps_its_place_on_a_quorum_queue(
    place: Place, watch: Watch
) -> None:
    await a_queue(watch, queue_type="quorum")
    await watch.publish(*(a_message(body, priority=5) for body in (b"1", b"2")))
    await watch.has("q", 2)
    first = await watch.channel.get("q")
    assert first is not None
    watch.channel.nack(first.delivery_tag, requeue=True)
    await watch.publish(a_message(b"low", priority=0))
    await watch.has("q", 3)
    behind = place.transport == "rabbitmq" and place.version < (4, 0)
    assert bodies(await watch.drain("q")) == [*([b"2", b"1"] if behind else [b"1", b"2"]), b"low"]


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_full_quorum_queue_drops_what_it_would_deliver_next(watch: Watch) -> None:
    await a_queue(watch, queue_type="quorum", max_length=2)
    await watch.publish(*(a_message(b"%d" % n, priority=n) for n in (9, 1, 1, 1)))

    async def dropped() -> bool:
        return await watch.depth("q") == 2

    await until(dropped)
    assert bodies(await watch.drain("q")) == [b"1", b"1"]


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_arguments_of_another_queue_type_are_refused(place: Place, link: Link) -> None:
    refused = {"x-max-priority": {"x-queue-type": "quorum", "x-max-priority": 5}}
    if place.version >= (4, 3):
        refused["x-consumer-timeout"] = {"x-consumer-timeout": 60_000}
    for name, arguments in refused.items():
        channel = await link.open_channel()
        with pytest.raises(ChannelClosedError, match=f"406.*invalid arg '{name}'"):
            await channel.declare_queue("q", arguments=arguments)


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_delivery_beyond_the_consumer_timeout_comes_back_and_its_consumer_ends(
    place: Place, link: Link, watch: Watch
) -> None:
    """RabbitMQ 4.3 cancels the consumer of a quorum queue, and 3.10 closes its channel."""
    if place.transport == "rabbitmq" and place.version < (4, 3):
        pytest.skip("has it for all queues at once: tests/interop/test_rabbitmq_versions.py")
    await a_queue(watch, queue_type="quorum", consumer_timeout=1_000)
    slow = await Watch.open(link)
    consumer = await Consumer.start(slow.channel, prefetch=2)
    await watch.publish(a_message(b"1"), a_message(b"2"), a_message(b"3"))
    await consumer.receives(2)
    if place.version < (4, 3):
        assert await slow.closed_with() == 406
        await watch.has("q", 3)
        assert consumer.cancels == []
        return
    await eventually(lambda: consumer.cancels)
    await watch.has("q", 3)
    assert consumer.timeouts == []
    back = await watch.drain("q")
    assert [(each.body, each.redelivered) for each in back] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]
    assert all("x-delivery-count" not in (each.properties.headers or {}) for each in back)
    for late in consumer.deliveries:
        slow.channel.ack(late.delivery_tag)
    assert await slow.channel.check_queue("q"), "a late ack is no error"


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_quorum_queue_has_a_delivery_limit_of_twenty_from_version_4_on(
    place: Place, watch: Watch
) -> None:
    await watch.channel.declare_queue("dead")
    await a_queue(
        watch, queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    await watch.publish(a_message())
    for _ in range(21):
        await watch.has("q", 1)
        delivery = await watch.channel.get("q")
        assert delivery is not None
        watch.channel.nack(delivery.delivery_tag, requeue=True)
    if place.version >= (4, 0):
        await watch.has("dead", 1)
    else:
        await watch.has("q", 1)
