"""The Prometheus collector of a Broker, on both brokers, checked by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from broker_client import Broker
from broker_client.errors import InvalidMiddlewareError, UnsupportedError
from broker_client.metrics import BrokerCollector
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually
from tests.support.left_out import installed_program

CONFIG: dict[str, Any] = {
    "exchanges": ["orders", "dead"],
    "queues": {"work": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": {}},
    "bindings": ["orders[order.#] -> work", "dead[#] -> cemetery"],
    "publications": {"orders": {"exchange": "orders", "routing_key": "order.placed"}},
    "subscriptions": {
        "work": {
            "queue": "work",
            "recovery": [{"strategy": "republish", "attempts": 1}, {"strategy": "nack"}],
        }
    },
}


def registered(broker: Broker) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"broker_client_{name}", labels)


def main_role(url: str) -> str:
    """Of the connection for publishing, which on the built-in broker is the only one."""
    return "both" if url == "embedded://" else "publishing"


def outcomes(broker: Broker) -> tuple[int, int, int]:
    """Messages that were acked, republished and nacked."""
    stats = broker.stats().subscriptions["work"]
    return stats.acked, stats.republished, stats.nacked


async def exercise(broker: Broker) -> None:
    """One message is acked, one is republished and dead-lettered, one is returned."""

    @broker.handle("work")
    async def work(content: str) -> None:
        if content == "bad":
            raise ValueError(content)

    publication = await broker.publish("orders", "good")
    await publication
    await (await broker.publish("orders", "bad"))
    lost = await broker.publish("orders", "lost", "nowhere")
    lost.on("return", lambda message: None)
    await eventually(lambda: lost.is_ended)
    await eventually(lambda: outcomes(broker) == (1, 1, 1))


async def test_metrics_count_what_happened(start: StartBroker, url: str) -> None:
    broker = await start(CONFIG)
    registry = registered(broker)
    await exercise(broker)

    def of(name: str, **labels: str) -> float | None:
        return value(registry, name, **labels)

    for role in ["both"] if url == "embedded://" else ["publishing", "consuming"]:
        assert of("connection_up", vhost="/", role=role) == 1
        assert of("connects_total", vhost="/", role=role) == 1
    assert of("blocked", vhost="/") == 0
    assert of("publishes_total", publication="orders", outcome="success") == 2
    assert of("publishes_total", publication="orders", outcome="return") == 1
    assert of("publish_seconds_count", publication="orders") == 2
    assert of("deliveries_total", subscription="work", outcome="acked") == 1
    assert of("deliveries_total", subscription="work", outcome="republished") == 1
    assert of("deliveries_total", subscription="work", outcome="nacked") == 1
    assert of("handler_seconds_count", subscription="work") == 3
    assert of("handler_errors_total", subscription="work") == 2
    assert of("deliveries_unsettled", subscription="work") == 0
    assert of("publishes_waiting", vhost="/") == of("publishes_unconfirmed", vhost="/") == 0
    assert of("channels", vhost="/", mode="confirm", state="idle") is not None
    depth = of("queue_messages", vhost="/", queue="cemetery", state="ready")
    assert depth == (1 if url == "embedded://" else None)


async def test_metrics_of_a_broker_that_was_cut_count_the_reconnect(
    start: StartBroker, url: str
) -> None:
    broker = await start(CONFIG)
    registry = registered(broker)
    await broker.bounce()
    assert value(registry, "connects_total", vhost="/", role=main_role(url)) == 2


async def test_metrics_are_collected_in_another_thread_and_after_the_end(
    start: StartBroker, url: str
) -> None:
    broker = await start(CONFIG)
    registry, role = registered(broker), main_role(url)
    text = await asyncio.to_thread(generate_latest, registry)
    assert f'broker_client_connection_up{{role="{role}",vhost="/"}} 1.0' in text.decode()
    await broker.shutdown()
    assert value(registry, "connection_up", vhost="/", role=role) == 0


async def test_age_of_the_first_message_of_a_queue_grows_on_the_built_in_broker() -> None:
    async with Broker.create({"vhosts": {"/": {"queues": {"work": {}}}}}) as broker:
        registry = registered(broker)

        def age() -> float:
            return value(registry, "queue_oldest_seconds", vhost="/", queue="work") or 0.0

        assert age() == 0.0
        await (await broker.publish("/work", 1))
        await eventually(lambda: age() > 0.05)
        await broker.purge()
        assert age() == 0.0


async def test_queues_that_are_not_declared_share_one_label() -> None:
    async with Broker.create({"vhosts": {"/": {"queues": {"work": {}}}}}) as broker:
        registry = registered(broker)
        link = await broker.connect()
        channel = await link.open_channel()
        for number in range(3):
            await channel.declare_queue(f"made.up.{number}")
        text = generate_latest(registry).decode()
        await link.close()
    assert "made.up" not in text
    assert 'queue="(other)"' in text


async def test_collector_that_comes_after_a_subscription_is_refused(start: StartBroker) -> None:
    broker = await start(CONFIG)
    await broker.subscribe("work")
    with pytest.raises(InvalidMiddlewareError, match="made before"):
        BrokerCollector(broker)


def test_metrics_without_their_package_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "broker_client.metrics")
    with pytest.raises(UnsupportedError, match=r"\[prometheus\]"):
        import broker_client.metrics  # noqa: F401 - fails


# --------------------------------------------------------------------------- promtool


@pytest.fixture
def promtool() -> str:
    return installed_program("promtool")


async def test_promtool_finds_nothing_wrong_with_the_metrics(
    start: StartBroker, promtool: str
) -> None:
    broker = await start(CONFIG)
    registry = registered(broker)
    await exercise(broker)
    text = generate_latest(registry)
    assert text.count(b"# TYPE ") >= 15
    process = await asyncio.create_subprocess_exec(
        promtool,
        "check",
        "metrics",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(text)
    assert (process.returncode, said.decode()) == (0, "")
