"""Clients in the server's process and event loop."""

from __future__ import annotations

import pytest

from broker_client.config.listen import parse_listen_address
from broker_client.config.server import ServerConfig
from broker_client.errors import BrokerClosedError
from broker_client.node.node import Node
from broker_client.server.server import Server


async def test_no_more_than_little_is_read_from_such_a_client_at_a_time() -> None:
    """In-process links buffer no more than one turn of the loop; TCP buffers more."""
    node = Node()
    server = Server(node, [parse_listen_address("amqp://127.0.0.1:0")], ServerConfig())
    await server.start()
    within = await server.connect_within()
    within.setblocking(False)
    try:
        assert 0 < within.send(bytes(1_000_000)) < 64 * 1024
    finally:
        within.close()
        await server.stop()
        await node.close()
    with pytest.raises(BrokerClosedError):
        await server.connect_within()
