"""The features of rascal's publications, and publishes that fail in other clients, on both brokers.

A publication tells the outcome of each message: confirmed, returned, refused or late.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Forward, Message, Nack
from broker_client.errors import (
    ConnectFailedError,
    MessageReturnedError,
    MessageTooLargeError,
    PublishNackedError,
    PublishRefusedError,
    RequestLostError,
    RequestTimeoutError,
)
from broker_client.message import Delivery
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

FULL = {"options": {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}}

TO_PARKED = {"publication": "parked"}


def a_config(**changes: Any) -> dict[str, Any]:
    return {
        "exchanges": ["orders", "delay", {"name": "nowhere", "type": "direct"}],
        "queues": {"kitchen": None, "bar": None, "late": None, "full": FULL},
        "bindings": ["orders[order.#] -> kitchen", "delay[late.#] -> late"],
        "publications": {
            "orders": {"exchange": "orders"},
            "late": {"exchange": "delay", "routing_key": "late.order"},
            "bar": {"queue": "bar"},
            "full": {"queue": "full"},
        },
        **changes,
    }


async def taken(broker: Broker, queue: str, count: int = 1) -> list[Delivery]:
    """The first `count` messages of `queue`, as the broker hands them out; then it is empty."""
    link = await broker.connect()
    channel = await link.open_channel()
    found: list[Delivery] = []

    async def take() -> bool:
        delivery = await channel.get(queue, no_ack=True)
        if delivery is not None:
            found.append(delivery)
        return delivery is not None

    async with asyncio.timeout(30.0):
        while len(found) < count:
            if not await take():
                await asyncio.sleep(0.01)
    assert not await take(), f"{queue} holds more than {count}"
    await link.close()
    return found


async def received(broker: Broker, subscription: str) -> Message:
    """The next message of `subscription`, acked."""
    came: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        if not came.done():
            came.set_result(message)

    taking = await broker.subscribe(subscription, keep)
    async with asyncio.timeout(30.0):
        message = await came
    await taking.cancel()
    return message


# ---------------------------------------------------------------------------- properties


async def test_cc_and_bcc_of_a_publication_reach_further_queues(start: StartBroker) -> None:
    copies = {"headers": {"CC": ["bar"], "BCC": ["late"]}}
    broker = await start(a_config(publications={"p": {"queue": "kitchen", "options": copies}}))
    await (await broker.publish("p", "x"))
    for queue in ("kitchen", "bar", "late"):
        [delivery] = await taken(broker, queue)
        assert delivery.properties.headers == {"CC": ["bar"]}


async def test_content_type_that_is_given_does_not_change_the_body(start: StartBroker) -> None:
    broker = await start(a_config())
    await (await broker.publish("bar", {"a": 1}, content_type="application/vnd.order"))
    [delivery] = await taken(broker, "bar")
    assert (delivery.body, delivery.properties.content_type) == (
        b'{"a":1}',
        "application/vnd.order",
    )


async def test_reply_queue_travels_by_its_name_on_the_broker(start: StartBroker) -> None:
    broker = await start(
        a_config(
            queues={"bar": None, "answers": {"reply_to": "me"}},
            bindings=[],
            publications={"ask": {"queue": "bar", "reply_to": "answers"}},
        )
    )
    await (await broker.publish("ask", "x"))
    await (await broker.publish("ask", "y", reply_to="theirs"))
    told = [each.properties.reply_to for each in await taken(broker, "bar", 2)]
    assert told == ["answers:me", "theirs"]


# ---------------------------------------------------------------------------- forward


async def forwarded(broker: Broker, **overrides: Any) -> Delivery:
    """A message of ``kitchen`` that was forwarded to ``late``, as it arrives there."""
    await (await broker.publish("orders", "x", "order.new", headers={"mine": 1, "CC": ["order.b"]}))
    message = await received(broker, "/kitchen")
    await (await broker.forward("late", message, **overrides))
    [delivery] = await taken(broker, "late")
    return delivery


def history(delivery: Delivery) -> Mapping[str, Any]:
    table: Mapping[str, Any] = (delivery.properties.headers or {})["rascal"]
    return table


async def test_forwarded_message_says_where_it_came_from(start: StartBroker) -> None:
    broker = await start(a_config())
    delivery = await forwarded(broker)
    said = dict(history(delivery))
    assert said.pop("originalVhost")
    assert said == {
        "originalQueue": "kitchen",
        "originalExchange": "orders",
        "originalRoutingKey": "order.new",
        "restoreRoutingHeaders": False,
    }
    assert (delivery.properties.headers or {})["mine"] == 1


@pytest.mark.parametrize("restore", [False, True])
async def test_forwarded_message_shows_its_first_routing_when_asked(
    start: StartBroker, restore: bool
) -> None:
    broker = await start(a_config())
    await (await broker.publish("orders", "x", "order.new"))
    message = await received(broker, "/kitchen")
    await (await broker.forward("late", message, restore_routing_headers=restore))
    copy = await received(broker, "/late")
    shown = ("orders", "order.new") if restore else ("delay", "late.order")
    assert (copy.exchange, copy.routing_key) == shown


async def test_forwarded_message_has_the_cc_of_its_way_back_only(start: StartBroker) -> None:
    broker = await start(a_config())
    delivery = await forwarded(broker)
    assert (delivery.properties.headers or {})["CC"] == ["kitchen.late.order"]


async def test_cc_of_the_call_goes_along_with_the_way_back(start: StartBroker) -> None:
    broker = await start(a_config())
    delivery = await forwarded(broker, headers={"CC": ["x", "", "kitchen.late.order"]})
    assert (delivery.properties.headers or {})["CC"] == ["x", "kitchen.late.order"]


async def test_exchange_leads_a_forwarded_message_back_to_its_queue(
    start: StartBroker,
) -> None:
    bindings = ["orders[order.#] -> kitchen", "delay[kitchen.#] -> kitchen", "delay[bar.#] -> bar"]
    broker = await start(a_config(bindings=bindings))
    await (await broker.publish("orders", "x", "order.new"))
    message = await received(broker, "/kitchen")
    await (await broker.forward("late", message))
    [delivery] = await taken(broker, "kitchen")
    assert (delivery.exchange, delivery.routing_key) == ("delay", "late.order")
    assert await broker.purge() == 0


async def test_forward_keeps_the_expiration_unless_its_publication_has_one(
    start: StartBroker,
) -> None:
    publications = {
        "orders": {"exchange": "orders"},
        "late": {"exchange": "delay", "routing_key": "late.order"},
        "short": {"queue": "bar", "options": {"expiration": "30s"}},
    }
    broker = await start(a_config(publications=publications))
    await (await broker.publish("orders", "x", "order.new", expiration=60.5))
    message = await received(broker, "/kitchen")
    for name, queue, expiration in (("late", "late", "60500"), ("short", "bar", "30000")):
        await (await broker.forward(name, message))
        [delivery] = await taken(broker, queue)
        assert delivery.properties.expiration == expiration


@pytest.mark.parametrize("publication", ["plain", "secret"])
async def test_encrypted_message_is_forwarded_as_it_is(
    start: StartBroker, publication: str
) -> None:
    broker = await start(
        a_config(
            encryption={"k": {"key": "01" * 32, "algorithm": "aes-256-cbc"}},
            publications={
                "in": {"queue": "kitchen", "encryption": "k"},
                "plain": {"queue": "bar"},
                "secret": {"queue": "bar", "encryption": "k"},
            },
        )
    )
    await (await broker.publish("in", {"card": "4111"}))
    message = await received(broker, "/kitchen")
    await (await broker.forward(publication, message))
    opened: list[Any] = []

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        opened.append((message.body, content))
        await ack_or_nack()

    await broker.subscribe("/bar", keep)
    await eventually(lambda: opened == [(message.body, {"card": "4111"})])


async def test_recovery_that_forwards_encrypts_and_delays_as_its_publication_says(
    start: StartBroker,
) -> None:
    publications = {
        "in": {"queue": "kitchen"},
        "parked": {"queue": "bar", "encryption": "k", "delay": "300ms"},
    }
    broker = await start(
        a_config(
            encryption={"k": {"key": "01" * 32, "algorithm": "aes-256-cbc"}},
            publications=publications,
            bindings=[],
            subscriptions={
                "in": {"queue": "kitchen", "recovery": {"strategy": "forward", **TO_PARKED}},
                "parked": {"queue": "bar"},
            },
        )
    )
    loop = asyncio.get_running_loop()
    failed_at: list[float] = []

    def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        failed_at.append(loop.time())
        raise ValueError("no")

    subscription = await broker.subscribe("in", fail)
    subscription.on("error", lambda error: None)
    await (await broker.publish("in", "for few eyes"))
    [delivery] = await taken(broker, "bar")
    waited = loop.time() - failed_at[0]
    assert b"eyes" not in delivery.body
    assert history(delivery)["encryption"]["name"] == "k"
    assert waited >= 0.3

    await subscription.cancel()
    read: list[Any] = []
    reading = await broker.subscribe("parked")
    reading.handle(lambda content: read.append(content))
    again = await broker.subscribe("in", fail)
    again.on("error", lambda error: None)
    await (await broker.publish("in", "for few eyes"))
    await eventually(lambda: read == ["for few eyes"])


async def test_plain_message_is_encrypted_by_the_publication_that_forwards_it(
    start: StartBroker,
) -> None:
    broker = await start(
        a_config(
            encryption={"k": {"key": "01" * 32, "algorithm": "aes-256-cbc"}},
            publications={
                "in": {"queue": "kitchen"},
                "secret": {"queue": "bar", "encryption": "k"},
            },
        )
    )
    await (await broker.publish("in", "4111"))
    await (await broker.forward("secret", await received(broker, "/kitchen")))
    [delivery] = await taken(broker, "bar")
    assert b"4111" not in delivery.body
    assert history(delivery)["originalQueue"] == "kitchen"
    assert history(delivery)["encryption"]["name"] == "k"


async def test_recovery_forwards_with_a_confirm_whatever_the_publication_says(
    start: StartBroker,
) -> None:
    """Without one, an unroutable copy would be lost, and its original acked."""
    options = {"dead_letter_exchange": "", "dead_letter_routing_key": "bar"}
    broker = await start(
        a_config(
            queues={"kitchen": {"options": options}, "bar": None},
            bindings=[],
            publications={
                "in": {"queue": "kitchen"},
                "nowhere": {"exchange": "nowhere", "confirm": False},
            },
        )
    )

    async def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack(ValueError("no"), [Forward(publication="nowhere"), Nack()])

    broken = await broker.subscribe("/kitchen", fail)
    failed: list[Any] = []
    broken.on("recovery_failed", failed.append)
    await (await broker.publish("in", "kept"))
    [delivery] = await taken(broker, "bar")
    assert delivery.body == b"kept"
    assert len(failed) == 1


# ---------------------------------------------------------------------------- shovels


async def test_shovel_gives_back_what_its_target_has_no_room_for(start: StartBroker) -> None:
    broker = await start(a_config(shovels=["/bar -> full"], bindings=[]))
    errors: list[BaseException] = []
    broker.on("error", lambda error, vhost: errors.append(error))
    for number in (1, 2):
        await (await broker.publish("bar", number))
    await eventually(lambda: bool(errors))
    assert isinstance(errors[0], PublishNackedError)
    link = await broker.connect()
    channel = await link.open_channel()
    bodies: list[bytes] = []

    async def has_both() -> bool:
        delivery = await channel.get("full", no_ack=True)
        bodies.extend([delivery.body] if delivery is not None else [])
        return len(bodies) == 2

    await eventually(has_both)
    assert sorted(bodies) == [b"1", b"2"]
    await link.close()


# ---------------------------------------------------------------------------- corrections


async def test_nack_of_all_leaves_later_ones_to_be_waited_for(start: StartBroker) -> None:
    """Rascal counts everything as settled then, so a cancel ends early."""
    broker = await start(a_config())
    kept: list[AckOrNack] = []
    subscription = await broker.subscribe("/bar", lambda *args: kept.append(args[2]))
    for number in range(4):
        await (await broker.publish("bar", number))
    await eventually(lambda: len(kept) == 4)
    await kept[1](ValueError("no"), Nack(), all=True)
    assert subscription.stats().unsettled == 2
    ending = asyncio.create_task(subscription.cancel())
    await asyncio.wait([ending], timeout=0.2)
    assert not ending.done()
    for settle in kept[2:]:
        await settle()
    await ending
    assert await broker.purge() == 0


# ---------------------------------------------------------------------------- A, C: outcomes


async def test_returned_and_routed_ones_are_told_apart(
    start: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await start(a_config())
    ends: list[tuple[str, str]] = []

    async def publish(number: int) -> None:
        routed = number % 2 == 0
        key = "order.x" if routed else "lost.x"
        publication = await broker.publish("orders", number, key, message_id=f"{key}{number}")
        publication.on("success", lambda message_id: ends.append(("success", message_id)))
        publication.on("return", lambda back: ends.append(("return", back.properties.message_id)))
        publication.on("error", lambda error, message_id: ends.append(("error", message_id)))
        if routed:
            await publication
            return
        with pytest.raises(MessageReturnedError) as caught:
            await publication
        assert (caught.value.reply_code, caught.value.message_id) == (312, f"{key}{number}")

    await asyncio.gather(*(publish(number) for number in range(200)))
    assert sorted(ends) == sorted(
        ("success", f"order.x{n}") if n % 2 == 0 else ("return", f"lost.x{n}") for n in range(200)
    )
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


@pytest.mark.parametrize("name", ["full", "bound", "bound-twice", "by-key"])
async def test_message_that_a_full_queue_nacks_is_an_error_at_once_and_its_channel_goes_on(
    start: StartBroker, name: str
) -> None:
    config = a_config()
    config["exchanges"] += ["first", "second"]
    second = {"source": "second", "destination": "first", "destination_type": "exchange"}
    config["bindings"] += ["first[#] -> full", second]
    config["publications"] |= {
        "bound": {"exchange": "first"},
        "bound-twice": {"exchange": "second"},
        "by-key": {"exchange": "", "routing_key": "full"},
    }
    broker = await start(config)
    await (await broker.publish("full", "fits"))
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(PublishNackedError) as caught:
            await (await broker.publish(name, "too many", timeout=90.0))
        assert time.monotonic() - began < 45.0
        assert caught.value.publication == name
    pools = {each.name: each for each in broker.stats().vhosts["/"].pools}
    assert [each.size for name, each in pools.items() if "confirm" in name] == [1]
    await (await broker.publish("bar", "x"))


async def test_publishes_cancelled_at_any_moment_keep_no_channel(start: StartBroker) -> None:
    chance = random.Random(2)
    broker = await start(
        a_config(publication_channel_pools={"confirm": {"max": 1}}, publish_queue={"max_queued": 2})
    )

    async def publish(number: int) -> None:
        await (await broker.publish("bar", number))

    tasks = [asyncio.create_task(publish(number)) for number in range(20)]
    for task in chance.sample(tasks, len(tasks)):
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    assert any(task.cancelled() for task in tasks)
    async with asyncio.timeout(30.0):
        await (await broker.publish("bar", "last"))
    vhost = broker.stats().vhosts["/"]
    assert (vhost.publish_queue.waiting, vhost.publish_queue.unconfirmed) == (0, 0)
    await eventually(lambda: all(not each.leased for each in broker.stats().vhosts["/"].pools))


async def test_answer_that_comes_too_late_goes_to_no_other_request(start: StartBroker) -> None:
    broker = await start(a_config())
    asked: list[Message] = []

    async def hold(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        asked.append(message)

    await broker.subscribe("/bar", hold)
    with pytest.raises(RequestTimeoutError):
        await broker.request("bar", "first", timeout=0.3)
    second = asyncio.create_task(broker.request("bar", "second", timeout=30.0))
    await eventually(lambda: len(asked) == 2)
    for message in asked:
        properties = message.properties
        answer = await broker.publish(
            "/",
            message.body,
            properties.reply_to,
            correlation_id=properties.correlation_id or "",
        )
        await answer
    assert (await second).content == b"second"
    [publisher] = broker._publishers.values()
    assert publisher.requests.late_replies == 1


# ---------------------------------------------------------------------------- RabbitMQ alone


async def test_headers_larger_than_the_frames_of_their_consumer_reach_it(
    start: StartBroker, url: str
) -> None:
    broker = await start({"queues": ["q"]})
    connection = {"url": url, **({} if url == "embedded://" else {"frame_max": 8_192})}
    lost: list[Any] = []
    seen: list[Any] = []

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append((content, message.headers))
        await ack_or_nack()

    for number in range(3):
        large = {"h": "v" * 50_000} if number == 1 else {}
        await (await broker.publish("/q", number, headers=large))
    small = Broker.create({"vhosts": {"/": {"connection": connection, "queues": ["q"]}}})
    async with small if url != "embedded://" else contextlib.nullcontext(broker) as consumer:
        consumer.on("consumers_disconnected", lambda *args: lost.append(args))
        await consumer.subscribe("/q", keep)
        await eventually(lambda: len(seen) == 3)
    assert [content for content, _ in seen] == [0, 1, 2]
    assert seen[1][1]["h"] == "v" * 50_000
    assert lost == []


@pytest.mark.rabbitmq
async def test_bodies_of_every_size_pass_small_frames(rabbitmq: RabbitMQ) -> None:
    frame = 8_192  # the smallest that RabbitMQ takes from 4.1 on
    sizes = [0, 1, frame - 9, frame - 8, frame - 7, frame, 4 * 2**20]
    bodies = {f"m{number}": bytes([number]) * sizes[number % 7] for number in range(50)}
    vhost = rabbitmq.make_vhost()
    connection = {"url": rabbitmq.url(vhost), "frame_max": frame}
    found: dict[str, str] = {}

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        found[message.message_id or ""] = hashlib.sha256(message.body).hexdigest()
        await ack_or_nack()

    lost: list[Any] = []
    async with Broker.create({"vhosts": {"/": {"connection": connection, "queues": ["q"]}}}) as one:
        one.on("disconnect", lambda *args: lost.append(args))
        await one.subscribe("/q", keep)
        publications = [
            await one.publish("/q", body, message_id=message_id, timeout=60.0)
            for message_id, body in bodies.items()
        ]
        for publication in publications:
            await publication
        await eventually(lambda: len(found) == len(bodies), timeout=30.0)
        assert one.stats().vhosts["/"].publish_queue.resent == 0
    assert lost == []
    assert found == {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def small_bodies(rabbitmq: RabbitMQ) -> Iterator[str]:
    """A vhost of the server, which meanwhile takes 100,000 bytes at most."""
    usual = rabbitmq.set_max_message_size(100_000)
    vhost = rabbitmq.make_vhost()
    yield rabbitmq.url(vhost)
    rabbitmq.delete_vhost(vhost)
    rabbitmq.set_max_message_size(usual)


@pytest.mark.rabbitmq
async def test_frame_max_below_what_rabbitmq_takes_is_named_as_the_reason(
    rabbitmq: RabbitMQ,
) -> None:
    config = {"vhosts": {"/": {"connection": {"url": rabbitmq.url(), "frame_max": 4_096}}}}
    if rabbitmq.version < (4, 1):
        await (await Broker.create(config)).shutdown()
        return
    with pytest.raises(ConnectFailedError, match=r"frame_max is 4096, .* takes none below 8192"):
        await Broker.create(config)


async def test_body_above_the_limit_is_refused_by_the_broker_alone_and_then_by_us(
    small_bodies: str,
) -> None:
    config = {"vhosts": {"/": {"connection": small_bodies, "queues": ["q"]}}}
    async with Broker.create(config) as broker:
        broker.on("error", lambda *args: None)
        names = [f"m{number}" for number in range(100)]
        publications = {
            name: await broker.publish(
                "/q", b"x" * (100_001 if name == "m50" else 100_000), message_id=name
            )
            for name in names
        }
        large = publications.pop("m50")
        with pytest.raises(MessageTooLargeError) as caught:
            await large
        error = caught.value
        assert (error.size_bytes, error.limit_bytes) == (100_001, 100_000)
        assert str(error) == (
            "publication '/q': message m50 is larger than the broker accepts: 100001 bytes, "
            "at most 100000 are allowed: the broker's own max_message_size"
        )
        outcomes = [await publication for publication in publications.values()]
        queue = broker.stats().vhosts["/"].publish_queue
        assert sum(outcome.maybe_duplicate for outcome in outcomes) >= queue.resent - 1 > 0
        assert (queue.succeeded, queue.failed) == (99, 1)

        # Known from now on: nothing is sent, no channel is lost.
        with pytest.raises(MessageTooLargeError, match="100001 bytes"):
            await (await broker.publish("/q", b"x" * 100_001))
        assert broker.stats().vhosts["/"].publish_queue.resent == queue.resent
        found = await all_of(broker, "q")
    assert {each.properties.message_id for each in found} == set(publications)


async def all_of(broker: Broker, queue: str) -> list[Delivery]:
    """The messages in `queue`, repeats included."""
    link = await broker.connect()
    channel = await link.open_channel()
    found = []
    while (delivery := await channel.get(queue, no_ack=True)) is not None:
        found.append(delivery)
    await link.close()
    return found


async def test_body_above_a_limit_that_is_known_is_never_sent(url: str) -> None:
    connection, source = {"url": url}, "node.max_message_size"
    if url != "embedded://":
        connection["max_message_size"] = "100KB"
        source = "max_message_size of the connection"
    config = {"node": {"max_message_size": "100KB"}}
    vhost = {"connection": connection, "queues": ["q"]}
    async with Broker.create({**config, "vhosts": {"/": vhost}}) as broker:
        before, large, after = [
            await broker.publish("/q", b"x" * size) for size in (100_000, 100_001, 1)
        ]
        with pytest.raises(MessageTooLargeError) as caught:
            await large
        assert not caught.value.retryable
        assert caught.value.source == source
        await before
        await after
        queue = broker.stats().vhosts["/"].publish_queue
        assert (queue.succeeded, queue.failed, queue.resent) == (2, 1, 0)
        assert [len(each.body) for each in await taken(broker, "q", 2)] == [100_000, 1]


async def test_message_that_the_broker_refuses_ends_at_once_and_holds_up_no_other(
    start: StartBroker,
) -> None:
    broker = await start({"queues": ["q"]})
    bad: dict[str, Any] = {"headers": {"CC": "no list"}}
    good: dict[str, Any] = {}
    alone = await broker.publish("/q", "alone", **bad)
    async with asyncio.timeout(30.0):
        with pytest.raises(PublishRefusedError, match="406 PRECONDITION_FAILED"):
            await alone
    publications = [
        await broker.publish("/q", number, **(bad if number == 5 else good)) for number in range(10)
    ]
    async with asyncio.timeout(30.0):
        ends = await asyncio.gather(*publications, return_exceptions=True)
    assert [isinstance(end, PublishRefusedError) for end in ends] == [
        number == 5 for number in range(10)
    ]
    assert {each.body for each in await all_of(broker, "q")} == {
        b"%d" % number for number in range(10) if number != 5
    }


async def test_body_too_large_for_the_outbox_is_refused_and_the_outbox_goes_on(
    tmp_path: Path,
) -> None:
    vhost = {"queues": ["q"], "publish_queue": {"outbox": str(tmp_path / "outbox.db")}}
    config = {"node": {"max_message_size": "1KiB"}, "vhosts": {"/": vhost}}
    async with Broker.create(config) as broker:
        with pytest.raises(MessageTooLargeError, match=r"1025 bytes, .* node\.max_message_size"):
            await broker.publish("/q", b"x" * 1025)
        await (await broker.publish("/q", b"x" * 1024))


@pytest.mark.rabbitmq
async def test_requests_fail_at_once_when_their_reply_queue_is_lost(rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    retry = {"min": "20ms", "max": "100ms"}
    connection = {"url": rabbitmq.url(vhost), "retry": retry}
    async with Broker.create({"vhosts": {"/": {"connection": connection, "queues": ["q"]}}}) as one:
        one.on("error", lambda *args: None)
        asked = [
            asyncio.create_task(one.request("/q", number, timeout=30.0)) for number in range(3)
        ]
        await eventually(lambda: one.stats().vhosts["/"].publish_queue.succeeded == 3)
        await asyncio.to_thread(rabbitmq.close_connections)
        async with asyncio.timeout(30.0):
            ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [RequestLostError] * 3
    rabbitmq.delete_vhost(vhost)
