"""`profile: test`, end to end: two concurrent runs on one vhost do not interfere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.broker import Broker
from broker_client.config.loader import load_config
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.timeout(120)


def a_config(server: RabbitMQ, vhost: str) -> dict[str, Any]:
    return {
        "profile": "test",
        "vhosts": {
            vhost: {
                "connection": server.url(vhost),
                "exchanges": ["orders", {"name": "dead", "type": "topic"}],
                "queues": {
                    "work": {"options": {"dead_letter_exchange": "dead"}},
                    "cemetery": {},
                    "answers": {"reply_to": True, "options": {"exclusive": True}},
                },
                "bindings": [
                    "orders[order.#] -> work",
                    "dead -> cemetery",
                    "orders[answer.#] -> answers",
                ],
                "publications": {
                    "placed": {"exchange": "orders", "routing_key": "order.placed"},
                    "answer": {"exchange": "orders", "routing_key": "answer.one"},
                },
                "subscriptions": {
                    "work": {"queue": "work", "recovery": [{"strategy": "nack"}]},
                    "cemetery": {"queue": "cemetery"},
                    "answers": {"queue": "answers"},
                },
            }
        },
    }


async def test_test_profile_works_end_to_end_and_two_runs_do_not_meet(
    rabbitmq: RabbitMQ,
) -> None:
    vhost = rabbitmq.make_vhost()
    heard: dict[str, list[tuple[str, Any]]] = {"one": [], "two": []}

    async def run(name: str) -> None:
        config = load_config(a_config(rabbitmq, vhost))
        async with Broker.create(config) as broker:

            async def fail(message: Any, content: Any, ack_or_nack: Any) -> None:
                heard[name].append(("work", content))
                await ack_or_nack(LookupError("not today"))

            def hear(queue: str) -> Any:
                async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
                    heard[name].append((queue, content))
                    await ack_or_nack()

                return handle

            await broker.subscribe("work", fail)
            for queue in ("cemetery", "answers"):
                await broker.subscribe(queue, hear(queue))
            await (await broker.publish("placed", f"from {name}"))
            await (await broker.publish("answer", f"answer to {name}"))
            await eventually(lambda: len(heard[name]) == 3)
            await barrier.wait()
            await broker.nuke()

    barrier = asyncio.Barrier(2)
    await asyncio.gather(run("one"), run("two"))
    for name, each in heard.items():
        assert sorted(each) == [
            ("answers", f"answer to {name}"),
            ("cemetery", f"from {name}"),
            ("work", f"from {name}"),
        ]
    rabbitmq.delete_vhost(vhost)


async def test_exchanges_of_a_test_run_go_with_their_queues(rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    raw = a_config(rabbitmq, vhost)
    raw["defaults"] = {"queues": {"options": {"expires": "3s"}}}
    config = load_config(raw)
    names = [each.qualified_name for each in config.vhosts[vhost].exchanges.values() if each.name]
    async with Broker.create(config) as broker:
        link = await broker.connect(vhost)
        channel = await link.open_channel()
        for name in names:
            await channel.check_exchange(name)
        await link.close()

    def left() -> list[str]:
        listed = rabbitmq.ctl("list_exchanges", "-p", vhost, "name").split()
        return [name for name in names if name in listed]

    await eventually(lambda: not left(), timeout=30.0)
    rabbitmq.delete_vhost(vhost)
