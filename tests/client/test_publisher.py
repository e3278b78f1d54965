"""Publishing other than single: many, delayed, encrypted, requests, answers, shovels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client import (
    AckOrNack,
    Broker,
    Message,
    Publication,
    PublishCall,
    PublishItem,
    PublishNext,
)
from broker_client.errors import (
    BrokerClosedError,
    InvalidMessageError,
    MessageReturnedError,
    RequestTimeoutError,
    WrongLoopError,
)
from broker_client.message import Delivery
from broker_client.transport.base import ConsumerCallbacks
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.received import ReceivedMessages

ORDERS: dict[str, Any] = {
    "exchanges": ["orders", {"name": "nowhere", "type": "direct"}],
    "queues": ["kitchen", "moved", "failed"],
    "bindings": ["orders[order.#] -> kitchen"],
    "publications": {
        "orders": {"exchange": "orders"},
        "kitchen": {"queue": "kitchen"},
        "moved": {"queue": "moved"},
        "nowhere": {"exchange": "nowhere"},
    },
    "subscriptions": {"kitchen": {"queue": "kitchen"}, "moved": {"queue": "moved"}},
}


async def an_inbox(broker: Broker, subscription: str) -> ReceivedMessages:
    inbox = ReceivedMessages()
    await broker.subscribe(subscription, inbox)
    return inbox


# ---------------------------------------------------------------------------- many


async def test_publish_many_keeps_order_and_its_window(start: StartBroker) -> None:
    broker = await start(ORDERS)
    inbox = await an_inbox(broker, "kitchen")
    report = await broker.publish_many("orders", range(500), "order.new", window=50)
    assert (report.published, report.succeeded, report.failed) == (500, 500, 0)
    assert 1 < report.max_in_flight <= 50
    await eventually(lambda: len(inbox.contents) == 500)
    assert inbox.contents == list(range(500))


async def test_publish_many_takes_an_async_iterable_and_a_key_for_each(start: StartBroker) -> None:
    broker = await start(ORDERS)
    inbox = await an_inbox(broker, "kitchen")

    async def sizes() -> AsyncIterator[str]:
        for size in ("small", "large"):
            yield size

    await broker.publish_many("orders", sizes(), lambda size: f"order.{size}")
    await eventually(lambda: len(inbox.messages) == 2)
    assert [each.routing_key for each in inbox.messages] == ["order.small", "order.large"]


async def test_publish_many_reports_each_failure(start: StartBroker) -> None:
    broker = await start(ORDERS)
    report = await broker.publish_many(
        "orders", ["order.a", "lost.b", "order.c", "lost.d"], lambda key: str(key)
    )
    assert (report.published, report.succeeded, report.failed) == (4, 2, 2)
    assert [type(error) for error in report.errors] == [MessageReturnedError] * 2


async def test_publish_many_takes_items_with_keys_and_options_of_their_own(
    start: StartBroker,
) -> None:
    broker = await start(ORDERS)
    inbox = await an_inbox(broker, "kitchen")
    items = [
        PublishItem("own", "order.own", {"message_id": "m1", "headers": {"h": 1}, "timeout": 20}),
        PublishItem("common"),
        "plain",
        PublishItem("late", options={"delay": 0.05, "message_id": None}),
    ]
    times: dict[bytes, float] = {}
    report = await broker.publish_many(
        "orders",
        items,
        "order.all",
        on_end=lambda each: times.update({each.outgoing.body: each.deadline - each.started}),
        type="t",
        message_id="all",
        timeout=25,
    )
    assert (report.published, report.succeeded) == (4, 4)
    assert times == pytest.approx({b"own": 20, b"common": 25, b"plain": 25, b"late": 25})
    await eventually(lambda: len(inbox.messages) == 4)
    assert [
        (m.body, m.routing_key, m.message_id, m.properties.type) for m in inbox.messages[:3]
    ] == [
        (b"own", "order.own", "m1", "t"),
        (b"common", "order.all", "all", "t"),
        (b"plain", "order.all", "all", "t"),
    ]
    assert inbox.messages[0].headers["h"] == 1
    assert (inbox.messages[3].body, inbox.messages[3].message_id) == (b"late", "all")


async def test_publish_many_refuses_an_item_with_an_unknown_option(start: StartBroker) -> None:
    broker = await start(ORDERS)
    misspelt: Any = {"mesage_id": "m"}
    with pytest.raises(InvalidMessageError, match="did you mean 'message_id'"):
        await broker.publish_many("orders", [PublishItem("x", "order.x", misspelt)])


@pytest.mark.parametrize("surrounded", [False, True])
async def test_publish_many_tells_the_end_of_each_publication(
    start: StartBroker, surrounded: bool
) -> None:
    broker = await start(ORDERS)
    if surrounded:

        @broker.middleware("publish")
        async def wait_for_the_end(call: PublishCall, call_next: PublishNext) -> Publication:
            publication = await call_next(call)
            await eventually(lambda: publication.is_ended)
            return publication

    ended: list[tuple[str, type[object]]] = []
    items = [PublishItem(n, key, {"message_id": n}) for n, key in (("a", "order.a"), ("b", "lost"))]
    await broker.publish_many(
        "orders", items, on_end=lambda each: ended.append((each.message_id, type(each.error)))
    )
    assert sorted(ended, key=lambda each: each[0]) == [
        ("a", type(None)),
        ("b", MessageReturnedError),
    ]


# ---------------------------------------------------------------------------- threads


async def test_publish_sync_from_a_thread_gives_the_outcome(start: StartBroker) -> None:
    broker = await start(ORDERS)
    outcome = await asyncio.to_thread(
        broker.publish_sync, "orders", "hi", "order.new", message_id="m1"
    )
    assert outcome.message_id == "m1"
    with pytest.raises(MessageReturnedError):
        await asyncio.to_thread(broker.publish_sync, "orders", "hi", "lost")


async def test_publish_sync_in_the_loops_own_thread_is_refused(start: StartBroker) -> None:
    broker = await start(ORDERS)
    with pytest.raises(WrongLoopError, match="would stop the event loop"):
        broker.publish_sync("orders", "hi", "order.new")


async def test_publish_sync_after_shutdown_is_refused(start: StartBroker) -> None:
    broker = await start(ORDERS)
    await broker.shutdown()
    with pytest.raises(BrokerClosedError):
        await asyncio.to_thread(broker.publish_sync, "orders", "hi", "order.new")


# ---------------------------------------------------------------------------- later


async def test_delayed_publish_arrives_after_its_delay_with_its_own_key(
    start: StartBroker,
) -> None:
    """A short delay behind a long one is not held up by it."""
    broker = await start(ORDERS)
    inbox = await an_inbox(broker, "kitchen")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await (await broker.publish("orders", "long", "order.long", delay=60.0))
    await (await broker.publish("orders", "short", "order.short", delay=0.2))
    await eventually(lambda: bool(inbox.contents))
    assert inbox.contents == ["short"]
    assert inbox.messages[0].routing_key == "order.short"
    assert loop.time() - began >= 0.2


async def test_delay_to_a_queue_reaches_that_queue(start: StartBroker) -> None:
    broker = await start(ORDERS)
    inbox = await an_inbox(broker, "moved")
    await (await broker.publish("moved", {"a": 1}, delay=0.05))
    await eventually(lambda: inbox.contents == [{"a": 1}])


async def test_delay_of_the_publication_holds_unless_the_call_says_otherwise(
    start: StartBroker,
) -> None:
    publications = {"later": {"queue": "kitchen", "delay": "30s"}}
    broker = await start({**ORDERS, "publications": publications})
    inbox = await an_inbox(broker, "kitchen")
    await (await broker.publish("later", "held"))
    await (await broker.publish("later", "at once", delay=0))
    await eventually(lambda: bool(inbox.contents))
    assert inbox.contents == ["at once"]


@pytest.mark.parametrize("delay", [-1.0, 2.0**32, float("nan")])
async def test_delay_out_of_range_is_refused(start: StartBroker, delay: float) -> None:
    broker = await start(ORDERS)
    with pytest.raises(InvalidMessageError, match="delay"):
        await broker.publish("orders", "x", "order.new", delay=delay)


# ---------------------------------------------------------------------------- requests


async def test_request_gets_the_answer_that_carries_its_correlation_id(start: StartBroker) -> None:
    broker = await start(ORDERS)

    async def answer(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        properties = message.properties
        await ack_or_nack()
        await broker.publish(
            "/",
            {"got": content},
            properties.reply_to,
            correlation_id=properties.correlation_id or "",
        )

    await broker.subscribe("kitchen", answer)
    replies = await asyncio.gather(*(broker.request("kitchen", n, timeout=30.0) for n in range(20)))
    assert [reply.content for reply in replies] == [{"got": n} for n in range(20)]


async def test_request_without_an_answer_ends_in_time(start: StartBroker) -> None:
    broker = await start(ORDERS)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(RequestTimeoutError, match=r"'kitchen': no answer within 0.3 s"):
        await broker.request("kitchen", "anyone?", timeout=0.3)
    assert 0.3 <= loop.time() - began < 15.0


async def test_request_that_no_queue_takes_fails_at_once(start: StartBroker) -> None:
    broker = await start(ORDERS)
    with pytest.raises(MessageReturnedError):
        await broker.request("nowhere", "anyone?", timeout=30.0)


# ---------------------------------------------------------------------------- encryption

KEYS = {
    "old": {"key": "01" * 32, "algorithm": "aes-256-cbc"},
    "new": {"key": "02" * 32, "algorithm": "aes-256-gcm"},
}


async def test_body_is_encrypted_on_its_way(start: StartBroker) -> None:
    publications = {"secret": {"queue": "kitchen", "encryption": "new"}}
    broker = await start({**ORDERS, "encryption": KEYS, "publications": publications})
    await (await broker.publish("secret", {"card": "4111"}))
    link = await broker.connect()
    channel = await link.open_channel()
    delivery = await channel.get("kitchen", no_ack=True)
    await link.close()
    assert delivery is not None
    assert b"4111" not in delivery.body
    assert delivery.properties.content_type == "application/octet-stream"
    assert delivery.properties.headers is not None
    assert delivery.properties.headers["rascal"]["encryption"]["name"] == "new"


# ---------------------------------------------------------------------------- shovels


async def test_shovel_moves_what_arrives_and_acks_it(start: StartBroker) -> None:
    broker = await start({**ORDERS, "shovels": ["kitchen -> moved"]})
    inbox = await an_inbox(broker, "moved")
    await broker.publish_many("kitchen", range(10), None, message_id="same")
    await eventually(lambda: len(inbox.contents) == 10)
    assert inbox.contents == list(range(10))
    assert inbox.messages[0].message_id == "same"
    assert await broker.purge() == 0


async def test_shovel_dead_letters_what_no_queue_takes_and_says_so(start: StartBroker) -> None:
    """rascal acks it, so it is lost."""
    queues = {
        "kitchen": {"options": {"dead_letter_exchange": "", "dead_letter_routing_key": "failed"}},
        "failed": None,
    }
    subscriptions = {"kitchen": {"queue": "kitchen"}, "failed": {"queue": "failed"}}
    broker = await start(
        {
            **ORDERS,
            "queues": queues,
            "bindings": [],
            "publications": {"kitchen": {"queue": "kitchen"}, "nowhere": {"exchange": "nowhere"}},
            "subscriptions": subscriptions,
            "shovels": ["kitchen -> nowhere"],
        }
    )
    errors: list[BaseException] = []
    broker.on("error", lambda error, vhost: errors.append(error))
    failed = await an_inbox(broker, "failed")
    await (await broker.publish("kitchen", "nobody wants me"))
    await eventually(lambda: failed.contents == ["nobody wants me"])
    assert [type(error) for error in errors] == [MessageReturnedError]


# ---------------------------------------------------------------------------- names


async def test_namespace_keeps_two_applications_apart(start: StartBroker) -> None:
    """the same names, other queues."""
    one = await start({**ORDERS, "namespace": "one"})
    two = await start({**ORDERS, "namespace": "two"})
    first, second = await an_inbox(one, "kitchen"), await an_inbox(two, "kitchen")
    await (await one.publish("orders", 1, "order.new"))
    await (await two.publish("kitchen", 2))
    await eventually(lambda: (first.contents, second.contents) == ([1], [2]))


async def test_none_is_as_good_as_not_given(start: StartBroker) -> None:
    broker = await start({"queues": ["q"], "publications": {"q": {"queue": "q"}}})
    none: Any = None
    publication = await broker.publish(
        "q",
        "x",
        message_id=None,
        headers=None,
        persistent=none,
        mandatory=none,
        timeout=none,
        delay=none,
    )
    assert len((await publication).message_id) == 32
    link = await broker.connect()
    channel = await link.open_channel()
    delivery = await channel.get("q", no_ack=True)
    assert delivery is not None
    assert delivery.properties.delivery_mode == 2
    await link.close()


@pytest.mark.parametrize(("delay", "expiration"), [(1.0, 0.3), (0.4, 0.8)])
async def test_expiration_of_a_delayed_message_counts_from_its_arrival(
    start: StartBroker, delay: float, expiration: float
) -> None:
    broker = await start(
        {
            "exchanges": ["dead"],
            "queues": {"q": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": None},
            "bindings": ["dead -> cemetery"],
            "publications": {"q": {"queue": "q"}},
        }
    )
    link = await broker.connect()
    channel = await link.open_channel()
    now = asyncio.get_running_loop().time

    async def seen_in(*queues: str) -> float:
        async def is_there() -> bool:
            return any([(await channel.check_queue(each)).message_count for each in queues])

        await eventually(is_there)
        return now()

    began = now()
    await (await broker.publish("q", "x", delay=delay, expiration=expiration, headers={"a": 1}))
    arrived = await seen_in("q", "cemetery") - began  # it soon leaves q
    expired = await seen_in("cemetery") - began
    # How much later depends on the machine; x-death shows that it expired in q.
    assert delay <= arrived < delay + 15.0
    assert delay + expiration - 0.05 <= expired < delay + expiration + 15.0
    delivery = await channel.get("cemetery", no_ack=True)
    assert delivery is not None
    headers = delivery.properties.headers or {}
    [death] = [each for each in headers["x-death"] if each["queue"] == "q"]
    assert death["reason"] == "expired"
    assert death["original-expiration"] == str(round(expiration * 1000))
    assert headers["a"] == 1
    assert "broker_client.delayed" not in headers
    await link.close()


@pytest.mark.rabbitmq
async def test_delayed_message_that_cannot_be_sent_on_is_dropped_and_told_and_others_arrive(
    rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    vhost = rabbitmq.make_vhost()
    url = rabbitmq.url(vhost)
    declared = {
        "connection": url,
        "exchanges": {"gone": {"assert": False}},
        "queues": ["q"],
        "publications": {"q": {"queue": "q"}, "gone": {"exchange": "gone"}},
        "subscriptions": {"q": {"queue": "q"}},
    }
    async with Broker.create({"vhosts": {vhost: declared}}) as broker:
        inbox = await an_inbox(broker, "q")
        link = await broker.connect(vhost)
        channel = await link.open_channel()
        await channel.declare_exchange("gone", "topic", durable=True)
        await (await broker.publish("gone", 1, delay=1.0, expiration=60.0))
        await channel.delete_exchange("gone")
        await (await broker.publish("q", 2, delay=0.3, expiration=60.0, user_id="guest"))
        await eventually(lambda: inbox.contents == [2])
        assert inbox.messages[0].headers["x-original-user-id"] == "guest"
        await eventually(lambda: "dropped a message" in caplog.text)
        assert "no exchange 'gone'" in caplog.text
        assert (await channel.check_queue("broker_client.delay.relay")).message_count == 0
        await link.close()
    rabbitmq.delete_vhost(vhost)


@pytest.mark.rabbitmq
async def test_delayed_message_with_an_expiration_is_sent_on_by_a_later_process(
    rabbitmq: RabbitMQ,
) -> None:
    vhost = rabbitmq.make_vhost()
    url = rabbitmq.url(vhost)
    declared = {
        "connection": url,
        "queues": ["q"],
        "publications": {"q": {"queue": "q", "delay": "500ms"}},
    }
    async with Broker.create({"vhosts": {vhost: declared}}) as broker:
        await (await broker.publish("q", "x", expiration=60.0))
    async with Broker.create({"vhosts": {vhost: declared}}) as broker:
        link = await broker.connect(vhost)
        channel = await link.open_channel()
        arrived: list[Delivery] = []
        callbacks = ConsumerCallbacks(arrived.append, lambda tag: None, lambda tag: None)
        await channel.consume("q", callbacks, no_ack=True)
        await eventually(lambda: arrived)
        assert (arrived[0].body, arrived[0].properties.expiration) == (b"x", "60000")
        await link.close()
    rabbitmq.delete_vhost(vhost)
