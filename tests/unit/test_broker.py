"""The facade, on a broker in this process."""

import asyncio
import copy
import datetime
import math
import pickle
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import broker_client
from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.config import (
    BrokerConfig,
    Forward,
)
from broker_client.config.loader import load_config
from broker_client.errors import (
    BrokerClosedError,
    ConfigError,
    ConnectFailedError,
    InvalidContentError,
    InvalidMessageError,
    MessageReturnedError,
    TransportError,
    UnknownNameError,
    WrongLoopError,
)
from broker_client.message import Message, Properties
from broker_client.publication import Publication
from tests.support.received import ReceivedMessages


def a_config(**changes: Any) -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {
                "exchanges": ["orders", "dead", "delay"],
                "queues": {
                    "fulfil": {"options": {"dead_letter_exchange": "dead"}},
                    "audit": {"options": {"dead_letter_exchange": "dead"}},
                    "cemetery": {},
                },
                "bindings": [
                    "orders[order.#] -> fulfil",
                    "dead -> cemetery",
                    "delay[late.#] -> audit",
                ],
                "publications": {
                    "orders": {"exchange": "orders", "routing_key": "order.placed"},
                    "plain": {"queue": "audit", "confirm": False},
                    "marked": {
                        "queue": "audit",
                        "options": {"priority": 5, "headers": {"by": "marked"}, "type": "T"},
                    },
                    "late": {"exchange": "delay", "routing_key": "late.order"},
                },
                "subscriptions": {
                    "fulfil": {"queue": "fulfil"},
                    "audit": {"queue": "audit"},
                },
            }
        },
        **changes,
    }


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.create(a_config()) as broker:
        yield broker


# --------------------------------------------------------------------------- making one


async def test_create_may_be_awaited() -> None:
    broker = await Broker.create(a_config())
    assert repr(broker) == "<Broker open: /: up>"
    await broker.shutdown()
    assert repr(broker) == "<Broker closed: /: closed>"


async def test_create_takes_a_config_object_too() -> None:
    async with Broker.create(load_config(a_config())) as broker:
        assert broker.connections() == [("/", "embedded://")]


async def test_wrong_configuration_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="exchangs"):
        await Broker.create({"vhosts": {"/": {"exchangs": []}}})


async def test_failing_start_leaves_nothing_open() -> None:
    config = a_config()
    config["vhosts"]["second"] = {
        "connection": {"url": "amqp://guest:guest@127.0.0.1:1", "connect_timeout": "2s"}
    }
    with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:1"):
        await Broker.create(config)
    # the fixture checks for leaked tasks and sockets


async def test_block_that_raises_shuts_down_nevertheless() -> None:
    with pytest.raises(LookupError):
        async with Broker.create(a_config()) as broker:
            raise LookupError
    with pytest.raises(BrokerClosedError):
        await broker.publish("orders", "x")


# --------------------------------------------------------------------------- publishing


async def test_published_message_arrives_with_its_content(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("fulfil", sink)
    outcome = await (await broker.publish("orders", {"id": 7}))
    assert await sink.receives() == [{"id": 7}]
    [message] = sink.messages
    assert message.message_id == outcome.message_id
    assert (message.exchange, message.routing_key) == ("orders", "order.placed")
    assert message.properties.delivery_mode == 2
    assert message.content_type == "application/json"


async def test_overrides_win_over_the_publication(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    publication = await broker.publish(
        "marked",
        b"x",
        message_id="mine",
        headers={"by": "me", "more": 1},
        content_type="application/x",
        content_encoding="gzip",
        persistent=False,
        priority=1,
        expiration=60.0,
        correlation_id="c",
        reply_to="r",
        timestamp=at,
        type="U",
        app_id="a",
    )
    await publication
    await sink.receives()
    properties = sink.messages[0].properties
    assert properties.headers == {"by": "me", "more": 1}
    assert (properties.message_id, properties.content_type) == ("mine", "application/x")
    assert (properties.delivery_mode, properties.priority) == (1, 1)
    assert (properties.expiration, properties.timestamp) == ("60000", at)
    assert (properties.type, properties.correlation_id, properties.reply_to) == ("U", "c", "r")
    assert (properties.app_id, properties.content_encoding) == ("a", "gzip")


async def test_unroutable_message_ends_as_return_unless_told_otherwise(broker: Broker) -> None:
    with pytest.raises(MessageReturnedError):
        await (await broker.publish("orders", "x", "nowhere"))
    await (await broker.publish("orders", "x", "nowhere", mandatory=False))


async def test_every_queue_and_exchange_has_a_publication(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("/audit", sink)
    await (await broker.publish("/audit", "to the queue"))
    await (await broker.publish("/delay", "to the exchange", "late.x"))
    assert await sink.receives(2) == ["to the queue", "to the exchange"]


async def test_publication_to_a_queue_goes_there_whatever_the_routing_key(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)
    await (await broker.publish("marked", "x", "elsewhere"))
    assert await sink.receives() == ["x"]


async def test_publication_without_confirms_succeeds_once_written(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)
    await (await broker.publish("plain", "x"))
    assert await sink.receives() == ["x"]


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"routing_key": "k" * 256}, "routing key"),
        ({"routing_key": 7}, "routing key"),
        ({"headers": {"x": object()}}, r"headers\['x'\]"),
        ({"headers": {"x": {"y": [1, {1}]}}}, r"headers\['x'\]\['y'\]\[1\]"),
        ({"headers": {1: "x"}}, "headers"),
        ({"headers": {"k" * 256: 1}}, "key in headers"),
        ({"headers": {"x": 2**64}}, r"headers\['x'\]"),
        ({"correlation_id": 7}, "correlation_id"),
        ({"reply_to": "r" * 300}, "reply_to"),
        ({"priority": 256}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"timestamp": 1_700_000_000}, "timestamp"),
        ({"type": "half \ud800"}, "type"),
        ({"expiration": -1}, "expiration"),
        ({"expiration": math.nan}, "expiration"),
        ({"expiration": "10s"}, "expiration"),
        ({"expiration": 3651 * 86_400}, "expiration"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": "5s"}, "timeout"),
        ({"delay": "1s"}, "delay"),
        ({"headers": [("x", 1)]}, "headers"),
        ({"persist": False}, "'persist'"),
        ({"restore_routing_headers": True}, "'restore_routing_headers'"),
    ],
)
async def test_message_that_amqp_cannot_carry_is_refused_and_the_place_named(
    broker: Broker, overrides: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidMessageError, match=f"cannot publish: {place} "):
        await broker.publish("orders", "x", **overrides)
    assert broker.stats().vhosts["/"].publish_queue.published == 0


async def test_option_that_a_publish_does_not_know_gives_the_nearest(broker: Broker) -> None:
    options: Any = {"correlationid": "x"}
    for call in (
        broker.publish("orders", "x", **options),
        broker.request("orders", "x", **options),
        broker.publish_many("orders", ["x"], **options),
    ):
        with pytest.raises(InvalidMessageError, match="did you mean 'correlation_id'"):
            await call


async def test_content_that_json_cannot_express_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidContentError):
        await broker.publish("orders", {"x": object()})


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("call", "name", "hint"),
    [
        ("publish", "ordrs", "did you mean 'orders'"),
        ("subscribe", "fulfill", "did you mean 'fulfil'"),
        ("connect", "//", "declared: /"),
    ],
)
async def test_unknown_name_gives_the_nearest(
    broker: Broker, call: str, name: str, hint: str
) -> None:
    arguments = {"publish": (name, "x"), "subscribe": (name,), "connect": (name,)}[call]
    with pytest.raises(UnknownNameError, match=hint):
        await getattr(broker, call)(*arguments)


async def test_unknown_event_gives_the_nearest(broker: Broker) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'blocked'"):
        broker.on("bloked", print)


# --------------------------------------------------------------------------- forwarding


async def first_of(broker: Broker, name: str, sink: ReceivedMessages) -> Message:
    await broker.subscribe(name, sink)
    await sink.receives()
    return sink.messages[0]


async def test_forward_keeps_body_and_properties_and_lets_the_publication_win(
    broker: Broker,
) -> None:
    publication = await broker.publish(
        "orders", {"id": 1}, message_id="m", headers={"by": "first", "x": 1}, priority=1, app_id="a"
    )
    await publication
    message = await first_of(broker, "fulfil", ReceivedMessages())
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)
    await (await broker.forward("marked", message))
    assert await sink.receives() == [{"id": 1}]
    properties = sink.messages[0].properties
    # rascal: override > publication > message
    assert (properties.priority, properties.type) == (5, "T")
    assert own_headers(properties) == {"by": "marked", "x": 1}
    assert (properties.message_id, properties.app_id) == ("m", "a")
    await (await broker.forward("marked", message, priority=9, headers={"by": "call"}))
    await sink.receives(2)
    properties = sink.messages[1].properties
    assert properties.priority == 9
    assert own_headers(properties) == {"by": "call", "x": 1}


def own_headers(properties: Properties) -> dict[str, Any]:
    """The headers that forwarding has not added."""
    headers = properties.headers or {}
    return {key: value for key, value in headers.items() if key not in ("CC", "rascal")}


async def test_forward_takes_the_publications_routing_key_or_the_messages_own(
    broker: Broker,
) -> None:
    await (await broker.publish("orders", "x", "order.late"))
    message = await first_of(broker, "fulfil", ReceivedMessages())
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)
    await (await broker.forward("late", message))
    await sink.receives()
    assert sink.messages[0].routing_key == "late.order"
    await (await broker.forward("late", message, "late.other"))
    await sink.receives(2)
    assert sink.messages[1].routing_key == "late.other"


async def test_recovery_by_forward_leads_back_by_its_cc(broker: Broker) -> None:
    sink = ReceivedMessages()
    await broker.subscribe("audit", sink)

    async def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack(ValueError("later"), Forward(publication="late"))

    await broker.subscribe("fulfil", fail)
    await (await broker.publish("orders", "x", "order.placed"))
    await sink.receives()
    headers = sink.messages[0].headers
    assert headers["CC"] == ["fulfil.late.order"]
    assert headers["rascal"]["recovery"] == {"fulfil": {"forwarded": 1}}
    assert sink.messages[0].routing_key == "order.placed"


# --------------------------------------------------------------------------- subscriptions


async def test_subscribe_all_gives_each_declared_subscription(broker: Broker) -> None:
    subscriptions = await broker.subscribe_all()
    assert [each.name for each in subscriptions] == ["fulfil", "audit"]
    sinks = [ReceivedMessages(), ReceivedMessages()]
    for subscription, sink in zip(subscriptions, sinks, strict=True):
        subscription.on("message", sink)
    await (await broker.publish("orders", 1))
    await (await broker.publish("plain", 2))
    assert [await sink.receives() for sink in sinks] == [[1], [2]]
    await broker.unsubscribe_all()
    assert all(subscription.is_cancelled for subscription in subscriptions)


# --------------------------------------------------------------------------- life


async def test_purge_empties_the_queues_and_counts(broker: Broker) -> None:
    for _ in range(3):
        await (await broker.publish("orders", "x"))
    await (await broker.publish("marked", "x"))
    assert await broker.purge() == 4
    assert await broker.purge() == 0


async def test_nuke_deletes_everything_and_shuts_down() -> None:
    broker = await Broker.create(a_config())
    link = await broker.connect()
    await broker.nuke()
    with pytest.raises(BrokerClosedError):
        await broker.publish("orders", "x")
    await link.close()


async def test_closed_broker_refuses_at_once_and_closes_twice() -> None:
    broker = await Broker.create(a_config())
    await broker.shutdown()
    await broker.shutdown()
    for call in (
        broker.publish("orders", "x"),
        broker.subscribe("fulfil"),
        broker.subscribe_all(),
        broker.connect(),
        broker.purge(),
        broker.nuke(),
        broker.bounce(),
    ):
        with pytest.raises(BrokerClosedError):
            await call


async def test_shutdown_waits_for_publishes_under_way() -> None:
    broker = await Broker.create(a_config())
    publications = [await broker.publish("orders", number) for number in range(500)]
    await broker.shutdown()
    assert all([await each for each in publications])


async def test_handler_that_is_still_at_it_may_publish_while_the_broker_shuts_down() -> None:
    broker = await Broker.create(a_config())
    begun, go = asyncio.Event(), asyncio.Event()
    follow_ups: list[Publication] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        begun.set()
        await go.wait()
        follow_ups.append(await broker.publish("marked", "done"))
        await follow_ups[0]
        await ack_or_nack()

    subscription = await broker.subscribe("fulfil", handle)
    await (await broker.publish("orders", "x"))
    await begun.wait()
    shutting = asyncio.create_task(broker.shutdown())
    await asyncio.sleep(0)
    assert repr(broker) == "<Broker closing: /: up>"
    with pytest.raises(BrokerClosedError):
        await broker.subscribe("audit")
    go.set()
    await shutting
    assert (await follow_ups[0]).message_id
    assert subscription.stats().acked == 1
    assert subscription.stats().handler_errors == 0


async def test_handler_may_shut_the_broker_down() -> None:
    broker = await Broker.create(a_config())
    ended = asyncio.Event()

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        await broker.shutdown()
        await broker.shutdown()
        ended.set()

    await broker.subscribe("fulfil", handle)
    await broker.publish("orders", "x")
    async with asyncio.timeout(30):
        await ended.wait()
        await broker.shutdown()
    with pytest.raises(BrokerClosedError):
        await broker.publish("orders", "y")


async def test_shutdown_is_awaited_by_those_who_call_it_meanwhile() -> None:
    broker = await Broker.create(a_config())
    await asyncio.gather(*(broker.shutdown() for _ in range(3)))
    assert repr(broker) == "<Broker closed: /: closed>"


async def test_listener_that_raises_is_an_error_of_the_broker(broker: Broker) -> None:
    heard: list[tuple[Any, ...]] = []

    def fail(*args: Any) -> None:
        raise LookupError("mine")

    broker.on("error", lambda error, vhost: heard.append((error, vhost)))
    broker.on("connect", fail)
    await broker.bounce()
    errors = [(type(error), vhost) for error, vhost in heard]
    assert (LookupError, "") in errors


# --------------------------------------------------------------------------- misuse


async def test_call_from_a_thread_says_how_to_call(broker: Broker) -> None:
    def call() -> None:
        with pytest.raises(WrongLoopError, match="publish_sync"):
            broker.handle("fulfil")
        coroutine = broker.publish("orders", "x")
        with pytest.raises(WrongLoopError, match="another thread"):
            coroutine.send(None)

    await asyncio.to_thread(call)


async def test_broker_made_without_create_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"for a dict write .*Broker.create"):
        Broker({"vhosts": {}})  # type: ignore[arg-type] # the mistake
    unopened = Broker(load_config(a_config()))
    with pytest.raises(WrongLoopError, match="was not opened"):
        await unopened.publish("orders", "x")


async def test_broker_cannot_be_pickled_or_copied(broker: Broker) -> None:
    for how in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a Broker cannot be pickled"):
            how(broker)


def test_broker_of_another_loop_says_so() -> None:
    async def make() -> Broker:
        broker = await Broker.create(a_config())
        await broker.shutdown()
        return broker

    async def use(broker: Broker) -> None:
        for call in (broker.publish("orders", "x"), broker.shutdown(), broker.subscribe_all()):
            with pytest.raises(WrongLoopError, match="create the Broker where it is used"):
                await call

    asyncio.run(use(asyncio.run(make())))


async def test_connect_gives_a_link_of_ones_own(broker: Broker) -> None:
    link = await broker.connect("/")
    channel = await link.open_channel()
    assert (await channel.check_queue("fulfil")).message_count == 0
    await link.close()
    with pytest.raises(TransportError):
        await link.open_channel()
    await (await broker.publish("orders", "x"))


async def test_broker_shows_the_configuration_with_everything_filled_in() -> None:
    source = {"vhosts": {"/": {"queues": ["q"]}}, "defaults": {"publications": {"timeout": "3s"}}}
    async with Broker.create(source) as broker:
        config = broker.config
    assert isinstance(config, BrokerConfig)
    assert list(config.vhosts["/"].exchanges) == [""]
    implied = config.find_publication("/q")
    assert implied is not None
    assert implied.timeout == 3.0
    assert source == {
        "vhosts": {"/": {"queues": ["q"]}},
        "defaults": {"publications": {"timeout": "3s"}},
    }


def test_names_that_programs_begin_with_are_exported() -> None:
    assert {"Broker", "BrokerConfig", "load_config"} <= set(broker_client.__all__)


async def test_message_id_is_made_up_and_told() -> None:
    async with Broker.create({"vhosts": {"/": {"queues": ["q"]}}}) as broker:
        told: list[str] = []
        publications = [await broker.publish("/q", n) for n in range(2)]
        for publication in publications:
            publication.on("success", told.append)
            assert re.fullmatch("[0-9a-f]{32}", (await publication).message_id)
        chosen = await broker.publish("/q", "x", message_id="mine")
        chosen.on("success", told.append)
        await chosen
    assert told == [*(each.message_id for each in publications), "mine"]
    assert len(set(told)) == 3


async def test_package_that_is_missing_fails_the_publish_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of the encryption is the call's, not an event of the publication."""
    for module in ("padding", "ciphers"):
        monkeypatch.setitem(sys.modules, f"cryptography.hazmat.primitives.{module}", None)
    profile = {"name": "k", "key": "00" * 32, "algorithm": "aes-256-cbc"}
    publications = {"p": {"queue": "q", "encryption": profile}}
    async with Broker.create(
        {"vhosts": {"/": {"queues": ["q"], "publications": publications}}}
    ) as broker:
        with pytest.raises(broker_client.BrokerClientError, match=r"broker-client\[crypto\]"):
            await broker.publish("p", "x")
        assert broker.stats().vhosts["/"].publish_queue.published == 0
