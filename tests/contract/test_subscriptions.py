"""Subscriptions and recovery through the whole client, on the built-in broker and on RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.config import CounterConfig
from broker_client.errors import RedeliveriesExceededError, UnsupportedError
from broker_client.message import Delivery, Message, Outgoing
from broker_client.subscription import Subscription
from broker_client.transport.base import Link
from tests.contract.conftest import TRANSPORTS
from tests.contract.observers import until
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.received import SubscriptionEvents

QUICK = {"min": "20ms", "max": "100ms", "factor": 1.5}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """An address for a Broker."""

    url: str
    vhost: str
    version: tuple[int, ...] = ()
    """Of the RabbitMQ that answers there."""

    @property
    def is_embedded(self) -> bool:
        return self.url.startswith("embedded:")

    def config(self, subscription: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        """`work` is bound to `orders`; what it rejects goes to `dead`, and so to `cemetery`."""
        parts = {
            "exchanges": ["orders", "dead"],
            "queues": {"work": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": {}},
            "bindings": ["orders[#] -> work", "dead[#] -> cemetery"],
            "publications": {"orders": {"exchange": "orders"}},
            "subscriptions": {"work": {"queue": "work", "retry": QUICK, **(subscription or {})}},
            **changes,
        }
        connection = {"url": self.url} | ({} if self.is_embedded else {"vhost": self.vhost})
        return {"vhosts": {"/": {"connection": connection, **parts}}}


@pytest.fixture(params=TRANSPORTS)
async def where(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerAddress]:
    if request.param != "rabbitmq":
        path = "" if request.param == "embedded" else str(tmp_path / "broker.db")
        yield BrokerAddress(f"embedded://{path}", "/")
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    yield BrokerAddress(f"amqp://guest:guest@127.0.0.1:{server.port}", vhost, server.version)
    server.delete_vhost(vhost)


async def publish(broker: Broker, *contents: Any, key: str = "placed", **overrides: Any) -> None:
    for content in contents:
        await (await broker.publish("orders", content, key, **overrides))


async def ready(link: Link, queue: str) -> int:
    channel = await link.open_channel()
    try:
        return (await channel.check_queue(queue)).message_count
    finally:
        await channel.close()


async def take(link: Link, queue: str) -> Delivery:
    """Wait for the next message of `queue` and remove it."""
    channel = await link.open_channel()
    got: list[Delivery] = []

    async def arrived() -> bool:
        delivery = await channel.get(queue, no_ack=True)
        if delivery is not None:
            got.append(delivery)
        return bool(got)

    await until(arrived)
    await channel.close()
    return got[0]


def failing(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
    raise ValueError("bad")


# --------------------------------------------------------------------------- how much at a time


async def test_shutdown_acks_what_runs_and_gives_back_what_has_not_started(
    where: BrokerAddress,
) -> None:
    """2 acked and never redelivered, 3 ready again; the handler ran twice."""
    ran: list[Any] = []
    go = asyncio.Event()
    config = where.config({"prefetch": 5, "concurrency": 2})
    async with Broker.create(config) as watching:
        link = await watching.connect()
        broker = watching
        if not where.is_embedded:  # the built-in broker ends with its Broker
            broker = await Broker.create(config)
        await publish(watching, *range(5))

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            ran.append(content)
            await go.wait()
            await ack_or_nack()

        subscription = await broker.subscribe("work", handle)
        await eventually(lambda: subscription.stats().delivered == 5 and len(ran) == 2)
        end = subscription.cancel() if broker is watching else broker.shutdown()
        ending = asyncio.create_task(end)
        await asyncio.sleep(0)  # it has begun
        go.set()
        await ending
        assert ran == [0, 1]
        assert subscription.stats().acked == 2
        taken = [await take(link, "work") for _ in range(3)]
        assert [delivery.body for delivery in taken] == [b"2", b"3", b"4"]
        assert await ready(link, "work") == 0
        await link.close()


async def test_pause_leaves_messages_to_others_and_resume_takes_them_again(
    where: BrokerAddress,
) -> None:
    async with Broker.create(where.config()) as broker:
        link = await broker.connect()
        handled: list[Any] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            handled.append(content)
            await ack_or_nack()

        subscription = await broker.subscribe("work", handle)
        await publish(broker, 1)
        await eventually(lambda: handled == [1])
        await subscription.pause()
        await publish(broker, 2)
        assert (await take(link, "work")).body == b"2"
        await publish(broker, 3)
        await subscription.resume()
        await eventually(lambda: handled == [1, 3])
        await link.close()


async def test_async_for_reads_until_cancelled(where: BrokerAddress) -> None:
    async with Broker.create(where.config({"prefetch": 2})) as broker:
        subscription = await broker.subscribe("work")
        await publish(broker, *range(5))
        seen = []
        async for _, content, ack_or_nack in subscription:
            assert subscription.stats().unsettled <= 2
            await ack_or_nack()
            seen.append(content)
            if len(seen) == 5:
                await subscription.cancel()
        assert seen == [0, 1, 2, 3, 4]


async def test_channel_prefetch_limits_and_can_be_changed(where: BrokerAddress) -> None:
    config = where.config({"prefetch": 10, "channel_prefetch": 2})
    if where.version >= (4, 3):  # there it would silently be a prefetch of each consumer
        with pytest.raises(UnsupportedError) as caught:
            await Broker.create(config)
        assert str(caught.value) == (
            "channel_prefetch of subscription 'work' is not supported here: RabbitMQ treats it as "
            "the prefetch of each consumer from 4.3 on; write prefetch instead"
        )
        async with Broker.create(where.config()) as broker:
            subscription = await broker.subscribe("work", lambda m, c, settle: None)
            heard = SubscriptionEvents(subscription, "subscribed", "error")
            await eventually(lambda: heard.events)
            with pytest.raises(UnsupportedError, match="write prefetch instead"):
                await subscription.set_channel_prefetch(5)
            assert heard.names == ["subscribed"]
        return
    async with Broker.create(config) as broker:
        held: list[AckOrNack] = []
        subscription = await broker.subscribe("work", lambda m, c, settle: held.append(settle))
        await publish(broker, *range(8))
        await eventually(lambda: len(held) == 2)
        await subscription.set_channel_prefetch(5)
        await eventually(lambda: len(held) == 5)
        await asyncio.sleep(0.1)
        assert len(held) == 5
        for number in range(8):
            await eventually(lambda number=number: len(held) > number)
            await held[number]()


# --------------------------------------------------------------------------- recovery


async def test_failing_message_does_not_spin(where: BrokerAddress) -> None:
    async with Broker.create(
        where.config({"requeue_defer": {"min": "200ms", "max": "200ms"}})
    ) as broker:
        attempts: list[int | None] = []

        def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            attempts.append(message.attempts)
            raise ValueError("bad")

        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", fail)
        await publish(broker, 1)
        await eventually(lambda: len(attempts) >= 3)
        before = len(attempts)
        await asyncio.sleep(1.0)
        assert len(attempts) - before <= 6
        await subscription.cancel()
        if where.is_embedded:
            assert attempts[:3] == [1, 2, 3]


async def test_republished_message_that_is_nacked_keeps_its_first_key(where: BrokerAddress) -> None:
    """A topic dead-letter exchange that is bound for that key only."""
    recovery = [{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]
    config = where.config(
        {"recovery": recovery}, bindings=["orders[#] -> work", "dead[scheduling] -> cemetery"]
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", failing)
        await publish(broker, 1, key="scheduling", message_id="m1")
        dead = await take(link, "cemetery")
        assert (dead.exchange, dead.routing_key) == ("dead", "scheduling")
        headers = dict(dead.properties.headers or {})
        assert dead.properties.message_id == "m1"
        assert headers["rascal"]["recovery"]["work"]["republished"] == 2
        assert headers["rascal"]["error"]["message"] == "bad"
        [death] = headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("work", "rejected", 1)
        assert (death["exchange"], death["routing-keys"]) == ("orders", ["scheduling"])
        await subscription.cancel()
        assert (await ready(link, "work"), await ready(link, "cemetery")) == (0, 0)
        await link.close()


@pytest.mark.parametrize("bound", ["#", "placed"])
async def test_immediate_nack_dead_letters_with_the_error_and_delivers_a_replay(
    where: BrokerAddress, bound: str
) -> None:
    """fail, dead letter with the error in its headers, replay, delivered."""
    config = where.config(
        {"recovery": [{"strategy": "republish", "immediate_nack": True}]},
        bindings=["orders[#] -> work", f"dead[{bound}] -> cemetery"],
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        seen: list[Message] = []

        async def fail_twice(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append(message)
            if len(seen) < 3:
                raise ValueError(f"bad {len(seen)}")
            await ack_or_nack()

        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", fail_twice)
        await publish(broker, {"id": 1}, message_id="m1")
        for count in (1, 2):
            dead = await take(link, "cemetery")
            assert len(seen) == count
            headers = dead.properties.headers or {}
            assert headers["rascal"]["error"]["message"] == f"bad {count}"
            assert dead.routing_key == "placed"
            channel = await link.open_channel(confirm=True)
            replayed = Outgoing("", "work", dead.body, dead.properties)
            await channel.publish([replayed])
            await eventually(lambda count=count: len(seen) == count + 1)
            await channel.close()
        await eventually(lambda: subscription.stats().acked == 1)
        assert seen[2].headers["rascal"]["recovery"]["work"] == {}
        assert [message.message_id for message in seen] == ["m1"] * 3
        await subscription.cancel()
        assert (await ready(link, "work"), await ready(link, "cemetery")) == (0, 0)
        await link.close()


async def test_recovery_that_fails_passes_on_and_never_acks(where: BrokerAddress) -> None:
    """Forward to an exchange without bindings."""
    config = where.config(
        {"recovery": [{"strategy": "forward", "publication": "nowhere"}, {"strategy": "nack"}]},
        exchanges=["orders", "dead", "void"],
        publications={"orders": {"exchange": "orders"}, "nowhere": {"exchange": "void"}},
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        subscription = await broker.subscribe("work")
        heard = SubscriptionEvents(subscription, "recovery_failed", "error")
        subscription.on("message", failing)
        await publish(broker, 1, message_id="m1")
        dead = await take(link, "cemetery")
        assert dead.properties.message_id == "m1"
        assert heard.names == ["error", "recovery_failed"]
        assert "forward" in str(heard.events[1][1][0])
        stats = subscription.stats()
        assert (stats.acked, stats.forwarded, stats.nacked) == (0, 0, 1)
        await link.close()


async def test_message_whose_copy_finds_no_room_comes_back_although_nothing_takes_dead_letters(
    where: BrokerAddress,
) -> None:
    """the queue is full, so that it refuses the copy, and has no dead-letter exchange."""
    full = {"max_length": 1, "arguments": {"x-overflow": "reject-publish"}}
    config = where.config(
        {"prefetch": 1, "recovery": {"strategy": "republish"}, "requeue_defer": QUICK},
        queues={"work": {"options": full}},
        bindings=["orders[#] -> work"],
    )
    async with Broker.create(config) as broker:
        handled: list[str] = []
        is_full = asyncio.Event()

        async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
            await is_full.wait()
            handled.append(message.message_id or "")
            if len(handled) == 1:
                await ack_or_nack("once")
            else:
                await ack_or_nack()

        subscription = await broker.subscribe("work", handle)
        heard = SubscriptionEvents(subscription, "recovery_failed")
        await publish(broker, 1, message_id="m1")
        await eventually(lambda: subscription.stats().unsettled == 1)
        await publish(broker, 1, message_id="m2")
        is_full.set()
        await eventually(lambda: len(handled) == 3)
        assert sorted(handled) == ["m1", "m1", "m2"]
        assert heard.names == ["recovery_failed"]
        await eventually(lambda: subscription.stats().acked == 2)


async def test_forward_round_a_retry_queue_comes_back_until_its_attempts_are_used_up(
    where: BrokerAddress,
) -> None:
    """rascal's retry exchange, with `x_death_fix` and a time to wait as option."""
    recovery = [
        {
            "strategy": "forward",
            "publication": "later",
            "attempts": 2,
            "x_death_fix": True,
            "options": {"expiration": "50ms", "headers": {"retried": True}},
        },
        {"strategy": "nack"},
    ]
    config = where.config(
        {"recovery": recovery},
        exchanges=["orders", "dead", "retry"],
        queues={
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "cemetery": {},
            "waiting": {"options": {"dead_letter_exchange": "orders"}},
        },
        bindings=["orders[#] -> work", "dead[#] -> cemetery", "retry[#] -> waiting"],
        publications={"orders": {"exchange": "orders"}, "later": {"exchange": "retry"}},
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        seen: list[Message] = []

        def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append(message)
            raise ValueError("bad")

        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", fail)
        await publish(broker, 1)
        dead = await take(link, "cemetery")
        assert [message.forwarded for message in seen] == [0, 1, 2]
        assert [message.routing_key for message in seen] == ["placed"] * 3
        assert [message.headers.get("retried") for message in seen] == [None, True, True]
        deaths = (dead.properties.headers or {})["x-death"]
        assert [(death["queue"], death["count"]) for death in deaths] == [
            ("work", 1),
            ("waiting", 1),
        ], "the first round was left out"
        await subscription.cancel()
        await link.close()


async def declare_in_namespace(link: Link) -> None:
    """Declared directly, since the test is about the use of these names."""
    channel = await link.open_channel()
    for exchange in ("ns:orders", "ns:dead"):
        await channel.declare_exchange(exchange)
    await channel.declare_queue("ns:work", arguments={"x-dead-letter-exchange": "ns:dead"})
    await channel.declare_queue("ns:cemetery")
    await channel.bind_queue("ns:work", "ns:orders", "#")
    await channel.bind_queue("ns:cemetery", "ns:dead", "placed")
    await channel.close()


async def test_names_of_a_namespace_are_those_of_the_headers(where: BrokerAddress) -> None:
    """consumed, republished and dead-lettered by the names on the broker."""
    config = where.config(
        {"recovery": [{"strategy": "republish", "attempts": 1}, {"strategy": "nack"}]},
        namespace="ns",
        exchanges={name: {"assert": False} for name in ("orders", "dead")},
        queues={
            "work": {"assert": False, "options": {"dead_letter_exchange": "dead"}},
            "cemetery": {"assert": False},
        },
        bindings=[],
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        await declare_in_namespace(link)
        seen: list[Message] = []

        def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append(message)
            raise ValueError("bad")

        subscription = await broker.subscribe("work")
        subscription.on("error", lambda error: None).on("message", fail)
        await publish(broker, 1)
        dead = await take(link, "ns:cemetery")
        assert (dead.exchange, dead.routing_key) == ("ns:dead", "placed")
        assert [message.queue for message in seen] == ["ns:work", "ns:work"]
        assert [message.republished for message in seen] == [0, 1]
        history = (dead.properties.headers or {})["rascal"]
        assert history["recovery"] == {"ns:work": {"republished": 1}}
        assert history["originalQueue"] == "ns:work"
        await subscription.cancel()
        await link.close()


# --------------------------------------------------------------------------- counters, once


async def test_message_redelivered_too_often_is_dead_lettered(where: BrokerAddress) -> None:
    config = where.config(
        {
            "recovery": [{"strategy": "nack", "requeue": True}],
            "redeliveries": {"limit": 3, "counter": "memory"},
        }
    )
    async with Broker.create(config) as broker:
        link = await broker.connect()
        counts: list[int] = []

        def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            counts.append(message.headers["rascal"]["redeliveries"])
            raise ValueError("bad")

        subscription = await broker.subscribe("work")
        heard = SubscriptionEvents(subscription, "error")
        subscription.on("message", fail)
        await publish(broker, 1, message_id="m1")
        assert (await take(link, "cemetery")).properties.message_id == "m1"
        assert counts == [0, 1, 2, 3]
        error = heard.events[-1][1][0]
        assert isinstance(error, RedeliveriesExceededError)
        assert error.redeliveries == 4
        await link.close()


async def test_quorum_queue_counts_and_is_believed(where: BrokerAddress) -> None:
    """`x-delivery-count`; the counter is never asked."""
    config = where.config(
        {"redeliveries": {"limit": 10, "counter": "mine"}},
        queues={
            "work": {"options": {"arguments": {"x-queue-type": "quorum"}}},
            "cemetery": {},
        },
    )
    config["redeliveries"] = {"counters": {"mine": {"type": "custom", "options": {"start": 7}}}}
    async with Broker.create(config, counters={"mine": GenerousCounter}) as broker:
        shown: list[tuple[int, int | None]] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            shown.append((message.headers["rascal"]["redeliveries"], message.attempts))
            if len(shown) < 3:
                await ack_or_nack("again", {"strategy": "nack", "requeue": True})
            else:
                await ack_or_nack()

        await broker.subscribe("work", handle)
        await publish(broker, 1, message_id="m1")
        await eventually(lambda: len(shown) == 3)
        assert shown == [(0, 1), (1, 2), (2, 3)]


class GenerousCounter:
    """A counter of the application's own."""

    def __init__(self, config: CounterConfig) -> None:
        self.start = config.options["start"]
        self.closed = 0

    async def increment(self, key: str) -> int:
        return int(self.start)

    async def close(self) -> None:
        self.closed += 1


def a_custom_counter(where: BrokerAddress) -> dict[str, Any]:
    config = where.config({"redeliveries": {"limit": 10, "counter": "mine"}})
    config["redeliveries"] = {
        "counters": {"mine": {"type": "custom", "options": {"start": 7}}},
    }
    return config


async def test_custom_counter_is_made_with_its_settings_and_closed_with_the_broker(
    where: BrokerAddress,
) -> None:
    made: list[GenerousCounter] = []

    def make(config: CounterConfig) -> GenerousCounter:
        made.append(GenerousCounter(config))
        return made[-1]

    async with Broker.create(a_custom_counter(where), counters={"mine": make}) as broker:
        shown: list[int] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            shown.append(message.headers["rascal"]["redeliveries"])
            if len(shown) == 1:
                await ack_or_nack("again", {"strategy": "nack", "requeue": True})
            else:
                await ack_or_nack()

        await broker.subscribe("work", handle)
        await publish(broker, 1, message_id="m1")
        await eventually(lambda: len(shown) == 2)
        assert shown == [0, 1 if where.is_embedded else 7], "ours counts attempts itself"
        assert made[0].closed == 0
    assert [each.closed for each in made] == [1]


async def test_custom_counter_without_a_factory_is_refused_at_once(where: BrokerAddress) -> None:
    with pytest.raises(UnsupportedError, match="mine"):
        await Broker.create(a_custom_counter(where))


async def test_message_published_twice_is_handled_once_also_after_a_restart(
    where: BrokerAddress, tmp_path: Path
) -> None:
    """Deduplication, with a persistent store."""
    path = str(tmp_path / "handled.db")
    config = where.config({"deduplicate": {"store": "sqlite", "path": path}})
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    for round in (1, 2):
        async with Broker.create(config) as broker:
            subscription = await broker.subscribe("work", handle)
            await publish(broker, "once", message_id="same")
            await publish(broker, round, message_id=f"other{round}")
            await eventually(
                lambda round=round, stats=subscription.stats: (
                    (handled[-1:], stats().duplicates) == ([round], round - 1)
                )
            )
    assert handled == ["once", 1, 2]


# --------------------------------------------------------------------------- handlers, answers


async def test_handle_answers_every_request(where: BrokerAddress) -> None:
    config = where.config(
        queues={
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "cemetery": {},
            "replies": {},
        }
    )
    async with Broker.create(config) as broker:

        @broker.handle("work")
        def add(numbers: list[int]) -> int:
            return sum(numbers)

        answers: list[tuple[str | None, Any]] = []

        async def answered(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            failure = message.headers.get("x-failure-kind")
            answers.append((message.properties.correlation_id, failure or content))
            await ack_or_nack()

        await broker.subscribe("/replies", answered)
        await publish(broker, [1, 2], reply_to="replies", correlation_id="c1")
        await publish(broker, ["no numbers"], reply_to="replies", correlation_id="c2")
        await publish(broker, [3, 4], reply_to="replies", correlation_id="c3")
        await eventually(lambda: len(answers) == 3)
        expected = [("c1", 3), ("c2", "InvalidContentError"), ("c3", 7)]
        assert sorted(answers) == expected
        link = await broker.connect()
        assert (await take(link, "cemetery")).properties.correlation_id == "c2"
        await link.close()


async def test_answer_for_a_requester_that_has_gone_is_dropped(where: BrokerAddress) -> None:
    async with Broker.create(where.config()) as broker:
        subscription = await broker.subscribe("work")
        subscription.handle(lambda content: content)
        await publish(broker, 1, reply_to="gone")
        await eventually(lambda: subscription.stats().acked == 1)


async def test_subscribe_all_takes_declared_ones_and_others_when_asked(
    where: BrokerAddress,
) -> None:
    async with Broker.create(where.config()) as broker:

        def names(subscriptions: list[Subscription]) -> list[str]:
            return [each.name for each in subscriptions]

        assert names(await broker.subscribe_all()) == ["work"]
        assert names(await broker.subscribe_all(implied=True)) == ["work", "/work", "/cemetery"]
        only = await broker.subscribe_all(lambda config: config.queue == "cemetery", implied=True)
        assert names(only) == ["/cemetery"]


# --------------------------------------------------------------------------- ack time-outs


@pytest.mark.parametrize("compatibility", ["3.10", "4.3"])
async def test_subscription_goes_on_after_a_late_ack(compatibility: str) -> None:
    """The built-in broker closes the channel as RabbitMQ 3.10, or cancels the consumer as 4.3."""
    arguments = {"x-consumer-timeout": 200, "x-queue-type": "quorum"}
    config = BrokerAddress("embedded://", "/").config(
        {"prefetch": 1}, queues={"work": {"options": {"arguments": arguments}}, "cemetery": {}}
    )
    config = {**config, "node": {"compatibility": compatibility}}
    async with Broker.create(config) as broker:
        subscription = await broker.subscribe("work")
        heard = SubscriptionEvents(subscription, "ack_timeout", "ack_lost", "error")
        seen: list[tuple[Any, bool]] = []
        late: list[Awaitable[None]] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append((content, message.redelivered))
            if len(seen) > 1:
                await ack_or_nack()
            else:
                late.append(ack_or_nack())

        subscription.on("message", handle)
        await publish(broker, 1, 2)
        await eventually(lambda: len(seen) == 3)
        await late[0]
        assert seen == [(1, False), (1, True), (2, False)]
        assert heard.names == ["ack_timeout", "ack_lost"]
