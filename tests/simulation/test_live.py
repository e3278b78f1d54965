"""The same plans and the same promises on a real RabbitMQ; `make soak` has some hundred."""

from __future__ import annotations

import pytest

from tests.simulation.live import run_all
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.rabbitmq


@pytest.mark.timeout(240)
async def test_rabbitmq_keeps_the_promises_of_the_simulation(rabbitmq: RabbitMQ) -> None:
    assert await run_all(rabbitmq, range(8)) == []
