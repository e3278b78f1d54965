"""A message forwarded by node's rascal and one forwarded here are the same message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from broker_client.message import Delivery
from broker_client.publishing.template import ForwardOverrides
from tests.interop.conftest import RunRascal
from tests.support.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(180)]


def a_vhost(**close_timeout: Any) -> dict[str, Any]:
    return {
        "exchanges": ["orders", "delay"],
        "queues": ["q", "late"],
        "bindings": ["orders[order.#] -> q", "delay[late.#] -> late"],
        "publications": {
            "orders": {"exchange": "orders"},
            "own": {"exchange": "delay", "routing_key": "late.one"},
            "any": {"exchange": "delay"},
        },
        "subscriptions": {"q": {"queue": "q", **close_timeout}},
    }


def camel_case(value: dict[str, Any]) -> dict[str, Any]:
    """Our keys of a publication, and rascal's names for them."""
    value["publications"]["own"]["routingKey"] = value["publications"]["own"].pop("routing_key")
    return value


async def forwarded_here(
    broker: Broker, publication: str, key: str | None, restore: bool | None
) -> None:
    came: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        came.set_result(message)

    subscription = await broker.subscribe("q", keep)
    message = await asyncio.wait_for(came, 60.0)
    overrides: ForwardOverrides = {}
    if restore is not None:
        overrides["restore_routing_headers"] = restore
    await (await broker.forward(publication, message, key, **overrides))
    await subscription.cancel()


async def taken(broker: Broker, vhost: str) -> Delivery:
    """The message of ``late``."""
    link = await broker.connect(vhost)
    channel = await link.open_channel()
    delivery = await channel.get("late", no_ack=True)
    await link.close()
    assert delivery is not None
    return delivery


def headers_of(delivery: Delivery) -> dict[str, Any]:
    headers = delivery.properties.headers
    assert isinstance(headers, dict)
    return headers


@pytest.mark.parametrize(
    ("publication", "key", "restore"),
    [("own", None, None), ("any", "late.call", True), ("own", "late.call", False)],
)
async def test_forwarded_message_is_what_rascal_makes_of_it(
    rabbitmq: RabbitMQ,
    run_rascal: RunRascal,
    publication: str,
    key: str | None,
    restore: bool | None,
) -> None:
    vhost = rabbitmq.make_vhost()
    connection = {"connection": rabbitmq.url(vhost)}
    theirs = {"vhosts": {vhost: {**connection, **camel_case(a_vhost(closeTimeout=200))}}}
    overrides = {"routingKey": key, "restoreRoutingHeaders": restore}
    job = {
        "do": "forward",
        "config": theirs,
        "subscription": "q",
        "publication": publication,
        "overrides": {name: value for name, value in overrides.items() if value is not None},
    }
    ours = {"vhosts": {vhost: {**connection, **a_vhost(close_timeout="200ms")}}}
    made: list[Delivery] = []
    async with Broker.create(ours) as broker:
        for who in ("rascal", "here"):
            sent = await broker.publish(
                "orders",
                {"id": 7},
                "order.new",
                message_id="m1",
                headers={"mine": "x", "CC": ["order.again"]},
                priority=3,
                expiration=600.0,
                correlation_id="c",
                type="T",
            )
            await sent
            if who == "rascal":
                await run_rascal(job)
            else:
                await forwarded_here(broker, publication, key, restore)
            made.append(await taken(broker, vhost))
    theirs_made, ours_made = made
    assert ours_made.body == theirs_made.body
    assert (ours_made.exchange, ours_made.routing_key) == (
        theirs_made.exchange,
        theirs_made.routing_key,
    )
    # A count of the queue it came from; a copy is counted from zero.
    assert headers_of(theirs_made)["rascal"].pop("redeliveries") == 0
    assert ours_made.properties == theirs_made.properties
    rabbitmq.delete_vhost(vhost)


# --------------------------------------------------------------------------- by recovery


OPTIONS = {
    "CC": ["late.cc"],
    "headers": {"theirs": "publication", "both": "publication"},
    "priority": 7,
    "type": "again",
    "expiration": 300_000,
}


def a_retry_vhost(rascal: bool, **options: Any) -> dict[str, Any]:
    """One vhost in either spelling; `late` gets forwarded messages."""
    publication = {"exchange": "delay", "options": dict(options)}
    if not rascal:
        ours = publication["options"]
        assert isinstance(ours, dict)
        headers = ours.setdefault("headers", {})
        if "CC" in ours:
            ours["headers"] = {**headers, "CC": ours.pop("CC")}
        if "expiration" in ours:
            ours["expiration"] = f"{ours['expiration']}ms"
    return {
        "exchanges": ["orders", "delay"],
        "queues": ["q", "late"],
        "bindings": ["orders[order.#] -> q", "delay[#] -> late"],
        "publications": {"orders": {"exchange": "orders"}, "retry": publication},
        "subscriptions": {"q": {"queue": "q", "closeTimeout" if rascal else "close_timeout": 200}},
    }


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # options of the publication; of the strategy as rascal has them; as we do
    "options of the publication": (OPTIONS, {}, {}),
    "no options": ({}, {}, {}),
    "routing key of the strategy": (
        {},
        {"options": {"routingKey": "custom.routing.key"}},
        {"routing_key": "custom.routing.key"},
    ),
    "options of both": (
        OPTIONS,
        {"options": {"options": {"priority": 1, "headers": {"both": "strategy"}}}},
        {"options": {"priority": 1, "headers": {"both": "strategy"}}},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_copy_of_the_recovery_strategy_is_what_rascal_makes_of_it(
    rabbitmq: RabbitMQ, run_rascal: RunRascal, case: str
) -> None:
    options, theirs, ours = CASES[case]
    vhost = rabbitmq.make_vhost()
    connection = {"connection": rabbitmq.url(vhost)}
    job = {
        "do": "consume",
        "config": {"vhosts": {vhost: {**connection, **a_retry_vhost(True, **options)}}},
        "subscription": "q",
        "count": 1,
        "fail": [{"strategy": "forward", "publication": "retry", **theirs}],
    }
    config = a_retry_vhost(False, **options)
    config["subscriptions"]["q"]["close_timeout"] = "200ms"
    made: list[Delivery] = []
    async with Broker.create({"vhosts": {vhost: {**connection, **config}}}) as broker:
        for who in ("rascal", "here"):
            await (
                await broker.publish(
                    "orders",
                    {"id": 7},
                    "order.new",
                    message_id="m1",
                    headers={"mine": "message", "both": "message", "CC": ["order.again"]},
                    priority=3,
                    correlation_id="c",
                    type="T",
                )
            )
            if who == "rascal":
                await run_rascal(job)
            else:
                await failed_here(broker, [{"strategy": "forward", "publication": "retry", **ours}])
            made.append(await taken(broker, vhost))
    theirs_made, ours_made = made
    assert ours_made.body == theirs_made.body
    assert (ours_made.exchange, ours_made.routing_key) == (
        theirs_made.exchange,
        theirs_made.routing_key,
    )
    assert told(ours_made) == told(theirs_made)
    assert ours_made.properties._replace(headers=None) == theirs_made.properties._replace(
        headers=None
    )
    rabbitmq.delete_vhost(vhost)


def told(delivery: Delivery) -> dict[str, Any]:
    """The headers without error texts and those specific to one client."""
    headers = dict(headers_of(delivery))
    history = dict(headers.pop("rascal"))
    assert history.pop("error")["message"] == "failed in node"
    for own in ("redeliveries", "tries"):
        history.pop(own, None)
    return {**headers, "rascal": history}


async def failed_here(broker: Broker, recovery: list[dict[str, Any]], times: int = 1) -> int:
    """Fail messages with `recovery` until `times` were handled; returns the number of handled
    ones."""
    handled = 0
    done = asyncio.Event()

    async def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        nonlocal handled
        handled += 1
        await ack_or_nack(RuntimeError("failed in node"), recovery)
        if handled >= times:
            done.set()

    subscription = await broker.subscribe("q", fail)
    subscription.on("error", lambda error: None)
    await asyncio.wait_for(done.wait(), 60.0)
    await subscription.cancel()
    return handled


def a_loop(rascal: bool) -> dict[str, Any]:
    """Rascal's retry with back-off: through a queue with a TTL, and back by the CC."""
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "retry"}
    dead = {"x-dead-letter-exchange": "dead"}
    options: dict[str, Any] = {"CC": ["delay.short"]} if rascal else {}
    if not rascal:
        options = {"headers": {"CC": ["delay.short"]}}
    return {
        "exchanges": ["jobs", "delay", "retry", "dead"],
        "queues": {
            "q": {"options": {"arguments": dead}},
            "short": {"options": {"arguments": arguments}},
            "dead-letters": {},
        },
        "bindings": [
            "jobs[a.b.c] -> q",
            "delay[delay.short] -> short",
            "retry[q.#] -> q",
            "dead[#] -> dead-letters",
        ],
        "publications": {
            "jobs": {"exchange": "jobs"},
            "retry": {"exchange": "delay", "options": options},
        },
        "subscriptions": {
            "q": {"queue": "q", "closeTimeout" if rascal else "close_timeout": 200},
        },
    }


async def test_retry_with_a_back_off_by_cc_tries_as_often_as_rascal(
    rabbitmq: RabbitMQ, run_rascal: RunRascal
) -> None:
    vhost = rabbitmq.make_vhost()
    connection = {"connection": rabbitmq.url(vhost)}
    recovery: list[dict[str, Any]] = [
        {"strategy": "forward", "publication": "retry", "attempts": 3},
        {"strategy": "nack"},
    ]
    job = {
        "do": "consume",
        "config": {"vhosts": {vhost: {**connection, **a_loop(True)}}},
        "subscription": "q",
        "count": 4,
        "fail": recovery,
    }
    config = a_loop(False)
    config["subscriptions"]["q"]["close_timeout"] = "200ms"
    async with Broker.create({"vhosts": {vhost: {**connection, **config}}}) as broker:
        for who in ("rascal", "here"):
            await (await broker.publish("jobs", {"id": 7}, "a.b.c", message_id=who))
            if who == "rascal":
                seen = await run_rascal(job)
                assert [each["key"] for each in seen] == ["a.b.c"] * 4
            else:
                assert await failed_here(broker, recovery, times=4) == 4
            link = await broker.connect(vhost)
            channel = await link.open_channel()
            async with asyncio.timeout(30.0):
                dead = None
                while dead is None:
                    dead = await channel.get("dead-letters", no_ack=True)
                    await asyncio.sleep(0.01)
            assert dead.properties.message_id == who
            assert headers_of(dead)["rascal"]["recovery"] == {"q": {"forwarded": 3}}
            await link.close()
    rabbitmq.delete_vhost(vhost)
