"""Tests of service.py with the pytest plugin: ``pytest examples``.

They run on the built-in broker, or on the one that ``--broker-url`` names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_client import Broker
from broker_client.testing.recorder import Recorder
from examples.service import fulfil, router


@pytest.fixture
def broker_config() -> Path:
    return Path(__file__).parents[1] / "config" / "service.yaml"


async def test_fulfil_takes_an_order() -> None:
    await fulfil({"id": 7})  # a handler is a plain function


async def test_order_is_fulfilled(broker: Broker, broker_recorder: Recorder) -> None:
    broker.include(router)
    await (await broker.publish("orders", {"id": 7}))
    [order] = await broker_recorder.wait_handled("fulfil")
    assert (order.content, order.message.tries) == ({"id": 7}, 1)


@pytest.mark.broker_virtual_time  # the pauses between the tries take no time
async def test_order_that_fails_is_tried_six_times_then_dead_lettered(
    broker: Broker, broker_recorder: Recorder
) -> None:
    @broker.handle("fulfil")
    async def fail(order: dict[str, int]) -> None:
        raise ConnectionError("no carrier")

    await broker.publish("orders", {"id": 8})
    [order] = await broker_recorder.wait_dead_lettered("fulfil", timeout=60)
    assert (order.message.tries, str(order.error)) == (6, "no carrier")
