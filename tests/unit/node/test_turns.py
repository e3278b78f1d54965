"""When a node carries out effects: at once after a rest, else many together."""

from __future__ import annotations

import asyncio

from broker_client.node.node import Node
from tests.support.builders import a_message
from tests.support.eventually import eventually
from tests.support.receivers import RecordingReceiver
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


async def test_effects_are_carried_out_at_once_after_a_rest_and_together_without() -> None:
    node, receiver = Node("test"), RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), receiver, confirm=True
    )
    await node.drain()
    await asyncio.sleep(0.01)  # the rest, in virtual time

    node.commands.publish(channel, [a_message()])
    node.carry_out()
    assert receiver.heard == [("confirm", 1, 1, True)]

    node.commands.publish(channel, [a_message()])
    node.carry_out()
    node.commands.publish(channel, [a_message()])
    node.carry_out()
    assert receiver.confirmed == 1
    await eventually(lambda: receiver.confirmed == 3)
    assert receiver.heard[-1] == ("confirm", 2, 3, True)
    await node.close()
