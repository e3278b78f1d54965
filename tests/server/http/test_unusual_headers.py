"""Messages with values that JSON does not have, as the management API shows them."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.server.http.conftest import Api
from tests.server.peer import Peer
from tests.server.test_pass_through import TABLES, publish_with


@pytest.mark.parametrize("table", TABLES)
async def test_any_header_is_shown_as_json(api: Api, table: str) -> None:
    async with Peer.on_channel(api.server.addresses[0].port) as peer:
        peer.send(1, commands.Queue.Declare(queue="q"))
        await peer.expect(commands.Queue.DeclareOk)
        peer.write(publish_with("q", table))
        peer.send(1, commands.Queue.Declare(queue="q", passive=True))
        assert (await peer.expect(commands.Queue.DeclareOk)).message_count == 1
    asked: dict[str, Any] = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    answer = await api.client.post("/api/queues/%2F/q/get", json=asked)
    assert answer.status_code == 200, answer.text
    (message,) = answer.json()
    assert message["payload"] == "body"
    assert list(message["properties"]["headers"]) == _KEYS[table]


_KEYS = {
    "numbers": ["a", "b", "c", "d", "e"],
    "64 bits": ["a", "b", "c"],
    "bytes": ["a", "b"],
    "decimals": ["a", "b"],
    "keys": ["", "k", "??", "k" * 255],
    "60 deep": ["a"],
    "array": ["a"],
    "empty": [],
}
