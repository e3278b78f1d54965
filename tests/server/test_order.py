"""A server answers on one channel in the order of the requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pamqp import commands

from tests.server.conftest import Listen
from tests.server.peer import Peer
from tests.support.served import Served
from tests.support.wire import method, publish


async def test_what_is_answered_after_a_cancel_without_wait_follows_the_deliveries(
    listen: Listen,
) -> None:
    server = await listen()
    async with Peer.on_channel(server.port) as peer:
        peer.send(1, commands.Queue.Declare(queue="q"))
        await peer.expect(commands.Queue.DeclareOk)
        for _ in range(3):
            peer.write(publish())
        peer.send(1, commands.Basic.Qos(0, 2, False))
        peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c", nowait=True))
        peer.send(1, commands.Basic.Cancel("c", nowait=True))
        peer.send(1, commands.Basic.Get(queue="q"))
        peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="d"))
        assert isinstance(await peer.receive(), commands.Basic.QosOk)
        for number in (1, 2):
            delivery = await peer.expect(commands.Basic.Deliver)
            assert (delivery.consumer_tag, delivery.delivery_tag) == ("c", number)
        assert (await peer.expect(commands.Basic.GetOk)).delivery_tag == 3
        await peer.expect(commands.Basic.ConsumeOk)


@pytest.mark.parametrize("how", ["after a return", "after a declaration on the disk"])
async def test_consume_ok_comes_before_the_deliveries_when_it_has_to_wait(
    tmp_path: Path, how: str
) -> None:
    with Served(data=tmp_path / "broker.db") as server:
        async with Peer.on_channel(server.port) as peer:
            peer.send(1, commands.Queue.Declare(queue="q", durable=True))
            await peer.expect(commands.Queue.DeclareOk)
            peer.write(publish(routing_key="q"))
            if how == "after a return":
                first = publish(mandatory=True, routing_key="nowhere")
            else:
                first = method(commands.Queue.Declare(queue="another", durable=True), 1)
            consume = commands.Basic.Consume(queue="q", consumer_tag="c")
            peer.write(first + method(consume, 1))  # in one segment
            names = [type(await peer.receive()).__name__ for _ in range(3)]
    assert names == [
        "Return" if how == "after a return" else "DeclareOk",
        "ConsumeOk",
        "Deliver",
    ]


async def test_a_return_comes_before_the_answers_to_later_methods(listen: Listen) -> None:
    server = await listen()
    async with Peer.on_channel(server.port) as peer:
        later = (
            commands.Confirm.Select(),
            commands.Basic.Qos(0, 5, False),
            commands.Queue.Declare(queue="q"),
        )
        for each in later:
            peer.write(publish(mandatory=True, routing_key="nowhere") + method(each, 1))
            assert isinstance(await peer.receive(), commands.Basic.Return)
            expected = {each.valid_responses[0], "Basic.Ack"}
            if each is later[0]:
                expected.discard("Basic.Ack")
            assert {(await peer.receive()).name for _ in expected} == expected


async def test_what_a_client_sends_on_a_channel_that_the_node_has_just_closed_is_ignored(
    listen: Listen,
) -> None:
    """The delivery has timed out, and the client has not heard of it."""
    server = await listen(consumer_timeout=5.0)
    async with Peer.on_channel(server.port) as peer:
        await peer.channel(2)
        peer.send(1, commands.Queue.Declare(queue="q"))
        await peer.expect(commands.Queue.DeclareOk)
        peer.write(publish(routing_key="q"))
        peer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
        await peer.expect(commands.Basic.ConsumeOk)
        await peer.expect(commands.Basic.Deliver)
        server.node.engine.tick(server.node.now() + 6.0)
        [session] = server.server._sessions  # noqa: SLF001 - as if it read slowly
        session.pause_writing()
        session.resume_writing()
        peer.write(
            publish(routing_key="q")
            + method(commands.Basic.Ack(1), 1)
            + method(commands.Queue.Declare(queue="q"), 1)
            + method(commands.Queue.Declare(queue="other"), 2)
        )
        answers = [await peer.receive(), await peer.receive()]
    [closing] = [each for each in answers if isinstance(each, commands.Channel.Close)]
    assert closing.reply_code == 406
    assert any(isinstance(each, commands.Queue.DeclareOk) for each in answers)
