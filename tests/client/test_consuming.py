"""Consuming through the whole client: options, settling, recovery, time-outs, ending."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from broker_client.errors import InvalidContentError
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually
from tests.support.received import SubscriptionEvents

QUICK = {"min": "20ms", "max": "100ms"}


def a_config(**subscription: Any) -> dict[str, Any]:
    """`work` is bound to `orders`; what it rejects goes to `dead`, and so to `cemetery`."""
    return {
        "exchanges": ["orders", "dead"],
        "queues": {"work": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": {}},
        "bindings": ["orders[#] -> work", "dead[#] -> cemetery"],
        "publications": {"orders": {"exchange": "orders", "routing_key": "placed"}},
        "subscriptions": {
            "work": {"queue": "work", "retry": QUICK, **subscription},
            "cemetery": {"queue": "cemetery", "content_type": "text/plain", "retry": QUICK},
        },
    }


async def publish(broker: Broker, *contents: Any, **overrides: Any) -> None:
    for content in contents:
        await (await broker.publish("orders", content, **overrides))


async def collect(broker: Broker, name: str) -> list[Message]:
    """Collects and acks the messages that arrive at a subscription from now on."""
    taken: list[Message] = []

    async def take(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        taken.append(message)
        await ack_or_nack()

    await broker.subscribe(name, take)
    return taken


def consuming(broker: Broker) -> set[str]:
    every = broker.stats().subscriptions
    return {name for name, each in every.items() if each.state == "subscribed"}


# --------------------------------------------------------------------------- options


async def test_consume_options_reach_the_broker(start: StartBroker) -> None:
    options = {"consumer_tag": "mine", "exclusive": True, "priority": 3}
    broker = await start(a_config(options=options))
    taken = await collect(broker, "work")
    await eventually(lambda: consuming(broker) == {"work"})
    other = await broker.subscribe("/work")
    heard = SubscriptionEvents(other, "error")
    other.on("message", lambda *args: None)
    await eventually(lambda: heard.events)
    assert "403" in str(heard.events[0][1][0]), "the queue is the first one's alone"
    await publish(broker, 1)
    await eventually(lambda: taken)
    assert taken[0].delivery.consumer_tag == "mine"


async def test_consumer_of_higher_priority_takes_everything_it_can(
    start: StartBroker,
) -> None:
    config = a_config(prefetch=100)
    config["subscriptions"]["first"] = {
        "queue": "work",
        "prefetch": 100,
        "options": {"arguments": {"x-priority": 10}},
    }
    broker = await start(config)
    low = await collect(broker, "work")
    high = await collect(broker, "first")
    await eventually(lambda: consuming(broker) == {"work", "first"})
    await publish(broker, *range(20))
    await eventually(lambda: len(high) + len(low) == 20)
    assert (len(high), len(low)) == (20, 0)


# --------------------------------------------------------------------------- settling


@pytest.mark.parametrize("second", ["ack", "nack"])
@pytest.mark.parametrize("first", ["ack", "nack"])
async def test_second_settle_never_reaches_the_broker(
    start: StartBroker, first: str, second: str
) -> None:
    broker = await start(a_config())
    held: list[AckOrNack] = []
    subscription = await broker.subscribe("work")
    heard = SubscriptionEvents(subscription, "already_settled", "error", "ack_lost")
    subscription.on("message", lambda message, content, settle: held.append(settle))
    await publish(broker, 1, 2)
    await eventually(lambda: len(held) == 2)
    calls: dict[str, tuple[Any, ...]] = {"ack": (), "nack": ("bad", {"strategy": "nack"})}
    await held[1](*calls[first])  # ahead of the one that arrived first
    await held[1](*calls[second])
    assert heard.names == ["already_settled"]
    assert subscription.stats().unsettled == 1, "its neighbour is as it was"
    await held[0]()
    await publish(broker, 3)
    await eventually(lambda: len(held) == 3)
    await held[2]()
    assert heard.names == ["already_settled"]
    cemetery = await collect(broker, "cemetery")
    await publish(broker, 4)
    await eventually(lambda: len(held) == 4)
    await held[3]()
    await eventually(lambda: len(cemetery) == (first == "nack"))


# --------------------------------------------------------------------------- recovery


async def test_deferred_messages_let_others_pass_or_say_that_they_do_not(
    start: StartBroker,
) -> None:
    recovery = {"strategy": "nack", "requeue": True, "defer": "2s"}
    broker = await start(a_config(prefetch=2, recovery=[recovery]))
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        if content == "bad":
            await ack_or_nack("bad")
        else:
            handled.append(content)
            await ack_or_nack()

    subscription = await broker.subscribe("work")
    heard = SubscriptionEvents(subscription, "prefetch_saturated")
    subscription.on("message", handle)
    await publish(broker, "bad", "bad", "good")
    async with asyncio.timeout(30.0):
        await eventually(lambda: handled or heard.events)
    if broker.connections()[0][1].startswith("embedded"):
        assert (handled, heard.events) == (["good"], []), "they wait in the broker"
    else:
        assert heard.events == [("prefetch_saturated", (2,))]


@pytest.mark.parametrize(("most", "deliveries"), [(None, 6), (3, 4)])
async def test_message_that_goes_round_two_queues_ends_after_its_hops(
    start: StartBroker, most: int | None, deliveries: int
) -> None:
    """Each queue allows more than both together may have."""
    config = a_config()
    config["queues"]["other"] = {"options": {"dead_letter_exchange": "dead"}}
    config["subscriptions"] = {
        name: {
            "queue": name,
            "max_hops": most,
            "recovery": [
                {"strategy": "forward", "publication": f"/{target}", "attempts": attempts},
                {"strategy": "nack"},
            ],
        }
        for name, target, attempts in (("work", "other", 3), ("other", "work", 2))
    }
    broker = await start(config)
    seen: Counter[str] = Counter()

    def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen[message.queue] += 1
        raise ValueError("poison")

    for name in ("work", "other"):
        subscription = await broker.subscribe(name)
        subscription.on("error", lambda error: None).on("message", fail)
    await publish(broker, 1, message_id="m1")
    cemetery = await collect(broker, "/cemetery")
    await eventually(lambda: cemetery)
    assert sum(seen.values()) == deliveries
    assert [message.message_id for message in cemetery] == ["m1"]


async def test_unreadable_body_is_dead_lettered_once_and_its_neighbour_handled(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    subscription = await broker.subscribe("work")
    heard = SubscriptionEvents(subscription, "error")
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    subscription.on("message", handle)
    cemetery = await collect(broker, "cemetery")
    await publish(broker, b"{", content_type="application/json", message_id="bad")
    await publish(broker, {"good": True})
    await eventually(lambda: handled and cemetery)
    assert handled == [{"good": True}]
    assert [message.body for message in cemetery] == [b"{"]
    assert [type(args[0]) for _, args in heard.events] == [InvalidContentError]


# --------------------------------------------------------------------------- time-outs


async def test_message_kept_for_most_of_its_time_is_told_of(start: StartBroker) -> None:
    config = a_config()
    # RabbitMQ 4.3: quorum queues alone have it.
    arguments = {"x-consumer-timeout": 4_000, "x-queue-type": "quorum"}
    config["queues"]["work"]["options"]["arguments"] = arguments
    broker = await start(config)
    held: list[AckOrNack] = []
    subscription = await broker.subscribe("work")
    heard = SubscriptionEvents(subscription, "ack_due", "ack_timeout", "ack_lost", "error")
    subscription.on("message", lambda message, content, settle: held.append(settle))
    await publish(broker, 1, message_id="slow")
    await eventually(lambda: heard.events)
    [(event, (message, seconds))] = heard.events
    assert (event, message.message_id) == ("ack_due", "slow")
    assert 0 < seconds <= 0.81
    await held[0]()
    assert subscription.stats().acked == 1
    assert heard.names == ["ack_due"], "in time"


# --------------------------------------------------------------------------- ending


async def test_subscription_cancelled_amid_handlers_leaves_its_neighbour_alone(
    start: StartBroker,
) -> None:
    config = a_config(prefetch=10, close_timeout="100ms")
    config["subscriptions"]["other"] = {"queue": "cemetery"}
    broker = await start(config)
    begun: list[Any] = []
    ends: list[str] = []

    async def hang(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        begun.append(content)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            await ack_or_nack("too late", {"strategy": "nack"})  # after the end of the channel
            raise

    subscription = await broker.subscribe("work", hang)
    other = await broker.subscribe("other")
    heard = SubscriptionEvents(other, "error", "cancelled", "subscribed")
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    other.on("message", handle)
    subscription.on("ack_lost", lambda *args: ends.append("lost"))
    broker_errors: list[Any] = []
    broker.on("error", lambda *args: broker_errors.append(args))
    await publish(broker, *range(10))
    await eventually(lambda: len(begun) == 10)
    await subscription.cancel()
    assert Counter(ends) == {"cancelled": 10, "lost": 10}
    await (await broker.publish("/cemetery", "still there"))
    await eventually(lambda: handled == ["still there"])
    assert (heard.names, broker_errors) == (["subscribed"], [])
    taken = await collect(broker, "/work")
    await eventually(lambda: len(taken) == 10)
