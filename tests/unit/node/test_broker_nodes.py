"""What an application sees of its built-in broker: `Broker.nodes`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client import Broker
from broker_client.errors import BrokerClientError
from tests.support.eventually import eventually

CONFIG: dict[str, Any] = {
    "node": {"max_publish_delay": "1m", "scan": {"selection_count": 7}},
    "vhosts": {
        "/": {
            "queues": ["later"],
            "publications": {"later": {"queue": "later"}},
            "subscriptions": {"later": {"queue": "later"}},
        }
    },
}


async def test_a_delayed_publish_can_be_seen_run_now_and_is_handled_as_new() -> None:
    async with Broker.create(CONFIG) as broker:
        publication = await broker.publish("later", "x", headers={"x-delay": 50_000})
        await publication
        node = broker.nodes.node()
        (waiting,) = node.deferred("later")
        assert waiting.due_at == pytest.approx(node.now() + 50.0, abs=5.0)
        subscription = await broker.subscribe("later")
        seen: list[tuple[Any, int | None]] = []

        @subscription.on("message")
        async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
            seen.append((content, message.attempts))
            flying = node.in_flight("later")
            assert [each.message_id for each in flying] == [message.message_id]
            await ack_or_nack()

        assert node.run_deferred("later") == 1
        await eventually(lambda: seen == [("x", 1)])
        await eventually(lambda: node.stats().queues[0].ack_count == 1)


async def test_a_delay_that_the_node_refuses_ends_the_publication_with_an_error() -> None:
    """D10: above the node's own limit, and told in time."""
    async with Broker.create(CONFIG) as broker, asyncio.timeout(15.0):
        broker.on("error", lambda *_: None)
        publication = await broker.publish("later", "x", headers={"x-delay": 60_001}, timeout=1.0)
        with pytest.raises(BrokerClientError):
            await publication
        assert broker.nodes.node().stats().queues[0].message_count == 0


async def test_the_configuration_reaches_the_scan_loop() -> None:
    async with Broker.create(CONFIG) as broker:
        policy = broker.nodes.node()._scanner.policy
        assert policy.settings.selection_count == 7
        assert policy.settings.interval == 0.1
