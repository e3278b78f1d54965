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
    """What rascal calls the keys of a publication."""
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
    message = await asyncio.wait_for(came, 15.0)
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
    # A count of the queue it came from; whoever receives the copy counts anew.
    assert headers_of(theirs_made)["rascal"].pop("redeliveries") == 0
    assert ours_made.properties == theirs_made.properties
    rabbitmq.delete_vhost(vhost)
