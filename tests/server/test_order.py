"""A server answers on one channel in the order of the requests."""

from __future__ import annotations

from pamqp import commands

from tests.server.conftest import Listen
from tests.server.peer import Peer
from tests.support.wire import publish


async def test_what_is_answered_after_a_cancel_without_wait_follows_the_deliveries(
    listen: Listen,
) -> None:
    server = await listen()
    peer = await Peer.open(server.port)
    try:
        await peer.channel()
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
    finally:
        await peer.close()
