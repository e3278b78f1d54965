"""The outbox at the end of its Broker; see also `tests/faults/test_outbox.py`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker_client.broker import Broker
from tests.support.eventually import eventually


def a_config(folder: Path) -> dict[str, Any]:
    vhost = {
        "queues": ["q"],
        "publications": {"p": {"queue": "q"}},
        "publish_queue": {"outbox": str(folder / "outbox.db"), "max_queued": 2},
    }
    return {"vhosts": {"/": vhost}}


async def test_end_while_more_waits_than_the_publish_queue_takes_complains_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        queue = broker._publishers["/"].queue
        queue.pause()
        for number in range(5):
            await broker.publish("p", number)
        await eventually(lambda: queue.stats().waiting == 2)
        with caplog.at_level(logging.ERROR):
            await broker.shutdown(timeout=0.0)
    assert caplog.records == []
    async with Broker.create(a_config(tmp_path)) as broker:
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.succeeded == 5)
