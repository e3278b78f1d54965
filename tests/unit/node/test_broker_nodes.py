"""What an application sees of its built-in broker: `Broker.nodes`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_client import Broker
from broker_client.errors import BrokerClientError, UnknownNameError
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
    """Above the node's own limit, and told in time."""
    async with Broker.create(CONFIG) as broker, asyncio.timeout(15.0):
        broker.on("error", lambda *_: None)
        publication = await broker.publish("later", "x", headers={"x-delay": 60_001}, timeout=1.0)
        with pytest.raises(BrokerClientError):
            await publication
        assert broker.nodes.node().stats().queues[0].message_count == 0


async def test_the_configuration_reaches_the_scan_loop() -> None:
    async with Broker.create(CONFIG) as broker:
        policy = broker.nodes.node().scanner.policy
        assert policy.settings.selection_count == 7
        assert policy.settings.interval == 0.1


async def test_publishes_wait_while_the_node_is_short_of_memory_and_go_on_when_it_is_not() -> None:
    config = {**CONFIG, "node": {"memory_high_watermark": "1KiB"}}
    bodies = [f"{number:03d}".ljust(300) for number in range(30)]
    async with Broker.create(config) as broker, asyncio.timeout(15.0):
        told: list[str] = []
        broker.on("blocked", lambda reason, vhost: told.append(reason))
        broker.on("unblocked", lambda vhost: told.append("unblocked"))
        first = [await broker.publish("later", body) for body in bodies[:10]]
        await asyncio.gather(*first)  # what was under way is taken all the same
        await eventually(lambda: told == ["low on memory"])
        rest = [await broker.publish("later", body) for body in bodies[10:]]
        node = broker.nodes.node()
        await node.drain()
        assert node.stats().queues[0].message_count == 10
        seen: list[Any] = []

        async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
            seen.append(content)
            await ack_or_nack()

        await broker.subscribe("later", handle)
        await asyncio.gather(*rest)
        await eventually(lambda: seen == bodies)
        await eventually(lambda: told[-1] == "unblocked")


async def test_the_only_node_there_is_is_that_of_the_file(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path / 'broker.db'}"
    vhost = {"connection": url, "queues": ["later"]}
    async with Broker.create({"vhosts": {"/": vhost}}) as broker:
        node = broker.nodes.node()
        assert [queue.name for queue in node.stats().queues] == ["later"]
        assert broker.nodes.node(url) is node


async def test_of_several_nodes_each_has_its_address(tmp_path: Path) -> None:
    one, other = (f"embedded://{tmp_path / name}.db" for name in ("one", "other"))
    vhosts = {
        "/": {"queues": ["private"]},
        "a": {"connection": one, "queues": ["in-one"]},
        "b": {"connection": other, "queues": ["in-other"]},
        "c": {"connection": "embedded://shared", "queues": ["in-shared"]},
    }

    def queues(address: str = "") -> list[str]:
        return [queue.name for queue in broker.nodes.node(address).stats().queues]

    async with Broker.create({"vhosts": vhosts}) as broker:
        assert (queues(), queues(one), queues(other)) == (["private"], ["in-one"], ["in-other"])
        assert queues("shared") == queues("embedded://shared") == ["in-shared"]
        with pytest.raises(UnknownNameError, match=r"third.db.*declared: .*one.db, .*other.db"):
            broker.nodes.node(f"embedded://{tmp_path / 'third.db'}")
