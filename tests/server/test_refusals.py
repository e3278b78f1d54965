"""Refusals of a session have RabbitMQ's code, scope, text and ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from tests.server.peer import HEADER, Peer
from tests.support.listening import Listening
from tests.support.rabbitmq import RabbitMQ

Act = Callable[[Peer], None]


def publish(user_id: str = "", *, immediate: bool = False) -> Act:
    def act(peer: Peer) -> None:
        method = commands.Basic.Publish(exchange="", routing_key="q", immediate=immediate)
        peer.send(1, method)
        properties = b"\x00\x10" + bytes([len(user_id)]) + user_id.encode()
        header = b"\x00\x3c" + bytes(10) + (properties if user_id else bytes(2))
        peer.write(b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce")

    return act


def consume_twice(peer: Peer) -> None:
    peer.send(1, commands.Queue.Declare(queue="refusals", exclusive=True, nowait=True))
    for _ in range(2):
        peer.send(1, commands.Basic.Consume(queue="refusals", consumer_tag="c", nowait=True))


def sends(*methods: Any) -> Act:
    def act(peer: Peer) -> None:
        for method in methods:
            peer.send(1, method)

    return act


CASES: dict[str, Act] = {
    "prefetch in bytes": sends(commands.Basic.Qos(prefetch_size=10)),
    "immediate": publish(immediate=True),
    "flow": sends(commands.Channel.Flow(active=False)),
    "recover without requeue": sends(commands.Basic.Recover(requeue=False)),
    "no queue declared before": sends(commands.Queue.Bind(queue="", exchange="amq.fanout")),
    "consumer tag in use": consume_twice,
    "user_id of another": publish("anna"),
    "confirm after tx": sends(commands.Tx.Select(), commands.Confirm.Select()),
    "commit without tx": sends(commands.Tx.Commit()),
    "second channel.open": sends(commands.Channel.Open()),
    "a method that is not for servers": sends(commands.Queue.DeclareOk("q", 0, 0)),
    "unknown tag": sends(commands.Basic.Ack(delivery_tag=5)),
    "missing queue": sends(commands.Basic.Consume(queue="missing", consumer_tag="c")),
}


async def refusal(port: int, act: Act) -> tuple[object, ...]:
    """The first close that a server answers to `act`."""
    async with Peer.on_channel(port) as peer:
        act(peer)
        while True:
            got = await peer.receive()
            if isinstance(got, commands.Channel.Close | commands.Connection.Close):
                return (
                    type(got).__qualname__,
                    got.reply_code,
                    got.reply_text,
                    got.class_id,
                    got.method_id,
                )


@pytest.mark.parametrize("case", CASES)
async def test_a_refusal_is_rabbitmqs(rabbitmq: RabbitMQ, case: str) -> None:
    async with Listening.started(engine={"compatibility": rabbitmq.version[:2]}) as listening:
        ours = await refusal(listening.port, CASES[case])
    assert ours == await refusal(rabbitmq.port, CASES[case])


@pytest.mark.parametrize(
    ("response", "vhost"), [("\0guest\0wrong", "/"), ("\0guest\0guest", "missing")]
)
async def test_a_refused_login_is_reported_as_rabbitmq_tells_it(
    rabbitmq: RabbitMQ, response: str, vhost: str
) -> None:
    async def answer(port: int) -> tuple[object, ...]:
        peer = await Peer.connect(port)
        try:
            peer.write(HEADER)
            await peer.expect(commands.Connection.Start)
            properties: Any = {"capabilities": {"authentication_failure_close": True}}
            peer.send(0, commands.Connection.StartOk(properties, "PLAIN", response, "en_US"))
            got = await peer.receive()
            if isinstance(got, commands.Connection.Tune):
                peer.send(0, commands.Connection.TuneOk(got.channel_max, got.frame_max, 0))
                peer.send(0, commands.Connection.Open(vhost))
                got = await peer.receive()
            return got.reply_code, got.reply_text, got.class_id, got.method_id
        finally:
            await peer.close()

    async with Listening.started() as listening:
        ours = await answer(listening.port)
    assert ours == await answer(rabbitmq.port)


@pytest.mark.parametrize(("channel_max", "frame_max"), [(2_047, 0), (2_047, 131_073), (0, 131_072)])
async def test_limits_beyond_those_offered_are_refused_as_on_rabbitmq(
    rabbitmq: RabbitMQ, channel_max: int, frame_max: int
) -> None:
    """A 0 means no limit, which is more than was offered."""

    async def may_go_on(port: int) -> bool:
        peer = await Peer.connect(port)
        try:
            peer.write(HEADER)
            await peer.expect(commands.Connection.Start)
            peer.send(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
            await peer.expect(commands.Connection.Tune)
            peer.send(0, commands.Connection.TuneOk(channel_max, frame_max, 0))
            peer.send(0, commands.Connection.Open("/"))
            return isinstance(await peer.receive(), commands.Connection.OpenOk)
        except (EOFError, ConnectionError):
            return False
        finally:
            await peer.close()

    async with Listening.started() as listening:
        assert not await may_go_on(listening.port)
    assert not await may_go_on(rabbitmq.port)
