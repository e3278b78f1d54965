"""The built-in broker on a port refuses what RabbitMQ refuses, with the same text and
consequence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiormq
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands as c
from pamqp.base import Frame

from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

pytestmark = pytest.mark.rabbitmq


def queue(name: str = "q1", *, durable: bool = True, **more: Any) -> Frame:
    return c.Queue.Declare(queue=name, durable=durable, **more)


def with_arguments(**arguments: Any) -> list[Frame]:
    return [queue(arguments={f"x-{key.replace('_', '-')}": v for key, v in arguments.items()})]


def exchange(name: str = "x1", type: str = "direct", *, durable: bool = True, **more: Any) -> Frame:
    return c.Exchange.Declare(exchange=name, exchange_type=type, durable=durable, **more)


def consume(name: str = "q1", **more: Any) -> Frame:
    return c.Basic.Consume(queue=name, **more)


PASSIVE: dict[str, Any] = {"passive": True}

CASES: dict[str, Sequence[Frame]] = {
    "ttl negative": with_arguments(message_ttl=-1),
    "ttl text": with_arguments(message_ttl="1"),
    "ttl flag": with_arguments(message_ttl=True),
    "ttl of centuries": with_arguments(message_ttl=1 << 40),
    "expires 0": with_arguments(expires=0),
    "expires negative": with_arguments(expires=-5),
    "length negative": with_arguments(max_length=-1),
    "length text": with_arguments(max_length="many"),
    "bytes negative": with_arguments(max_length_bytes=-1),
    "priority above 255": with_arguments(max_priority=256),
    "priority negative": with_arguments(max_priority=-1),
    "priority text": with_arguments(max_priority="1"),
    "overflow unknown": with_arguments(overflow="spill"),
    "overflow number": with_arguments(overflow=1),
    "dead-letter exchange number": with_arguments(dead_letter_exchange=1),
    "dead-letter key alone": with_arguments(dead_letter_routing_key="k"),
    "dead-letter key number": with_arguments(dead_letter_exchange="", dead_letter_routing_key=1),
    "queue type unknown": with_arguments(queue_type="no-such"),
    "queue type number": with_arguments(queue_type=1),
    "single active consumer text": with_arguments(single_active_consumer="true"),
    "argument unknown": with_arguments(foo=1),
    "queue reserved": [queue("amq.mine")],
    "queue missing": [queue("nope", **PASSIVE)],
    "queue missing, get": [c.Basic.Get(queue="nope")],
    "queue missing, consume": [consume("nope")],
    "queue missing, purge": [c.Queue.Purge(queue="nope")],
    "queue missing, delete": [c.Queue.Delete(queue="nope")],
    "queue missing, bind": [c.Queue.Bind(queue="nope", exchange="amq.direct")],
    "queue missing, unbind": [c.Queue.Unbind(queue="nope", exchange="amq.direct")],
    "no queue declared, bind": [c.Queue.Bind(queue="", exchange="amq.direct")],
    "no queue declared, consume": [consume("")],
    "no queue declared, purge": [c.Queue.Purge(queue="")],
    "no queue declared, delete": [c.Queue.Delete(queue="")],
    "queue in use": [queue(), consume(), c.Queue.Delete(queue="q1", if_unused=True)],
    "durable differs": [queue(), queue(durable=False)],
    "auto-delete differs": [queue(), queue(auto_delete=True)],
    "exclusive differs": [queue(), queue(exclusive=True)],
    "not exclusive any more": [queue(exclusive=True), queue()],
    "ttl differs": [*with_arguments(message_ttl=1000), *with_arguments(message_ttl=2000)],
    "ttl left out": [*with_arguments(message_ttl=1000), queue()],
    "ttl added": [queue(), *with_arguments(message_ttl=100_000)],
    "dead-letter exchange added": [queue(), *with_arguments(dead_letter_exchange="a")],
    "single active consumer added": [queue(), *with_arguments(single_active_consumer=True)],
    "length added": [queue(), *with_arguments(max_length=5)],
    "ttl bad and added": [queue(), *with_arguments(message_ttl="a")],
    "queue type said": [queue(), *with_arguments(queue_type="classic")],
    "unknown argument added": [queue(), *with_arguments(foo=1)],
    "exchange type unknown": [exchange(type="no-such")],
    "exchange type unknown, again": [exchange(), exchange(type="no-such")],
    "exchange type differs": [exchange(), exchange(type="topic")],
    "exchange durable differs": [exchange(), exchange(durable=False)],
    "exchange auto-delete differs": [exchange(), exchange(auto_delete=True)],
    "exchange internal differs": [exchange(), exchange(internal=True)],
    "alternate exchange added": [exchange(), exchange(arguments={"alternate-exchange": "a"})],
    "alternate exchange number": [exchange(arguments={"alternate-exchange": 1})],
    "exchange reserved": [exchange("amq.mine")],
    "exchange default": [exchange("")],
    "exchange missing": [exchange("nope", **PASSIVE)],
    "exchange default, passive": [exchange("", **PASSIVE)],
    "exchange predeclared, other type": [exchange("amq.direct", "fanout")],
    "exchange predeclared, delete": [c.Exchange.Delete(exchange="amq.direct")],
    "exchange reserved, delete": [c.Exchange.Delete(exchange="amq.nope")],
    "exchange default, delete": [c.Exchange.Delete(exchange="")],
    "exchange missing, delete": [c.Exchange.Delete(exchange="nope")],
    "exchange in use": [
        exchange(),
        queue(),
        c.Queue.Bind(queue="q1", exchange="x1"),
        c.Exchange.Delete(exchange="x1", if_unused=True),
    ],
    "bind to nothing": [queue(), c.Queue.Bind(queue="q1", exchange="nope")],
    "bind to the default exchange": [queue(), c.Queue.Bind(queue="q1", exchange="")],
    "unbind from the default exchange": [queue(), c.Queue.Unbind(queue="q1", exchange="")],
    "bind an exchange that is not there": [
        c.Exchange.Bind(destination="nope", source="amq.direct")
    ],
    "bind an exchange to nothing": [c.Exchange.Bind(destination="amq.direct", source="nope")],
    "bind the default exchange": [c.Exchange.Bind(destination="", source="amq.direct")],
    "x-match unknown": [
        queue(),
        c.Queue.Bind(queue="q1", exchange="amq.headers", arguments={"x-match": "most"}),
    ],
    "x-match number": [
        queue(),
        c.Queue.Bind(queue="q1", exchange="amq.headers", arguments={"x-match": 1}),
    ],
    "consumer tag twice": [queue(), consume(consumer_tag="t"), consume(consumer_tag="t")],
    "exclusive beside another": [queue(), consume(), consume(exclusive=True)],
    "another beside exclusive": [queue(), consume(exclusive=True), consume()],
    "consumer priority text": [queue(), consume(arguments={"x-priority": "high"})],
    "consumer priority flag": [queue(), consume(arguments={"x-priority": True})],
    "consumer unknown, cancel": [c.Basic.Cancel(consumer_tag="nope")],
    "reply consumer with acks": [consume("amq.rabbitmq.reply-to")],
    "reply consumer twice": [consume("amq.rabbitmq.reply-to", no_ack=True)] * 2,
    "reply queue, declared": [queue("amq.rabbitmq.reply-to")],
    "ack of nothing": [c.Basic.Ack(delivery_tag=7)],
    "ack of tag 0": [c.Basic.Ack(delivery_tag=0)],
    "ack of nothing up to": [c.Basic.Ack(delivery_tag=7, multiple=True)],
    "ack of all there is": [c.Basic.Ack(delivery_tag=0, multiple=True)],
    "nack of nothing": [c.Basic.Nack(delivery_tag=7)],
    "reject of nothing": [c.Basic.Reject(delivery_tag=7)],
    "commit outside": [c.Tx.Commit()],
    "rollback outside": [c.Tx.Rollback()],
    "confirms in a transaction": [c.Tx.Select(), c.Confirm.Select()],
    "transaction with confirms": [c.Confirm.Select(), c.Tx.Select()],
    "recover without requeue": [c.Basic.Recover(requeue=False)],
    "prefetch in bytes": [c.Basic.Qos(prefetch_size=5)],
    "flow stopped by the client": [c.Channel.Flow(active=False)],
}
PUBLISHES: dict[str, dict[str, Any]] = {
    "to nothing": {"exchange": "nope"},
    "expiration text": {"properties": c.Basic.Properties(expiration="abc")},
    "expiration negative": {"properties": c.Basic.Properties(expiration="-1")},
    "expiration broken": {"properties": c.Basic.Properties(expiration="1.5")},
    "expiration with a space": {"properties": c.Basic.Properties(expiration=" 5")},
    "expiration with a plus": {"properties": c.Basic.Properties(expiration="+5")},
    "CC text": {"properties": c.Basic.Properties(headers={"CC": "k"})},
    "BCC number": {"properties": c.Basic.Properties(headers={"BCC": 1})},
    "CC of numbers": {"properties": c.Basic.Properties(headers={"CC": [1]})},
    "immediate": {"immediate": True},
    "request without a consumer": {
        "properties": c.Basic.Properties(reply_to="amq.rabbitmq.reply-to")
    },
}

Outcome = tuple[str, str]
"""The kind of close, and its text."""


async def outcome(url: str, frames: Sequence[Frame], publish: dict[str, Any] | None) -> Outcome:
    connection = await aiormq.connect(url)
    channel: Any = await connection.channel(publisher_confirms=False)
    for name in ("q1", "x1"):
        await channel.rpc(c.Queue.Delete(queue=name))
        await channel.rpc(c.Exchange.Delete(exchange=name))
    try:
        for frame in frames:
            if frame.synchronous:
                await channel.rpc(frame)
            else:
                await channel.write_queue.put(
                    ChannelFrame.marshall(channel_number=channel.number, frames=[frame])
                )
        if publish is not None:
            await channel.basic_publish(b"x", **{"routing_key": "k", **publish})
        await channel.rpc(c.Basic.Qos(prefetch_count=1))  # behind what has no answer
    except (aiormq.exceptions.AMQPError, asyncio.CancelledError, RuntimeError):
        pass
    closed = next(
        (
            (what, error)
            for what, closing in (("connection", connection.closing), ("channel", channel.closing))
            if closing.done() and (error := closing.exception()) is not None
        ),
        None,
    )
    await connection.close()
    return ("nothing", "") if closed is None else (closed[0], str(closed[1]))


@pytest.fixture(scope="module")
def served() -> Any:
    with Served() as served:
        yield served


@pytest.mark.parametrize("case", [*CASES, *PUBLISHES])
async def test_a_refusal_has_the_code_the_scope_and_the_words_of_rabbitmq(
    case: str, served: Served, rabbitmq: RabbitMQ
) -> None:
    if case.startswith("exchange type unknown") and rabbitmq.version < (4, 0):
        pytest.skip("503 before RabbitMQ 4, which a server does not follow")
    frames, publish = CASES.get(case, ()), PUBLISHES.get(case)
    ours = await outcome(served.url(), frames, publish)
    theirs = await outcome(rabbitmq.url(), frames, publish)
    assert ours == theirs
