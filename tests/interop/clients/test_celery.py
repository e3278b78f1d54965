"""A Celery application and kombu, unchanged, on the built-in broker's port."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from tests.support.served import Served

_FOLDER = Path(__file__).parent
_TIMEOUT = 30.0


@pytest.fixture(scope="module")
def app(served: Served) -> Iterator[Any]:
    """The application, with a worker in a process of its own."""
    environment = {**os.environ, "BROKER": served.url(), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "1"]
    worker = subprocess.Popen(
        [*command, "--pool", "solo", "-l", "warning"],
        cwd=_FOLDER,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = os.environ.get("BROKER")
    os.environ["BROKER"] = served.url()
    sys.path.insert(0, str(_FOLDER))
    try:
        celery_app = importlib.import_module("celery_app")

        yield celery_app
        celery_app.app.close()
    finally:
        sys.path.remove(str(_FOLDER))
        os.environ.pop("BROKER") if before is None else os.environ.update(BROKER=before)
        worker.terminate()
        worker.wait(_TIMEOUT)


@pytest.mark.filterwarnings("ignore")
def test_tasks_give_results_retry_and_wait_for_their_time(app: Any) -> None:
    results = [app.add.delay(n, n) for n in range(20)]
    assert [result.get(timeout=_TIMEOUT) for result in results] == [2 * n for n in range(20)]
    assert app.unreliable.delay(2).get(timeout=_TIMEOUT) == 2
    began = time.time()
    assert app.when.apply_async(countdown=1).get(timeout=_TIMEOUT) >= began + 1
    at = datetime.now(UTC) + timedelta(seconds=1)
    assert app.when.apply_async(eta=at).get(timeout=_TIMEOUT) >= at.timestamp()
    assert (app.add.s(1, 2) | app.add.s(3)).delay().get(timeout=_TIMEOUT) == 6
    assert app.app.control.ping(timeout=5)


@pytest.mark.filterwarnings("ignore")
def test_kombu_publishes_with_confirms_and_consumes(url: str) -> None:
    exchange = Exchange("kombu", "topic", durable=True)
    queue = Queue("kombu", exchange, routing_key="kombu.#")
    got: list[Any] = []

    def handle(body: Any, message: Any) -> None:
        got.append(body)
        message.ack()

    options = {"confirm_publish": True}
    with (
        Connection(url, transport_options=options, heartbeat=4) as connection,
        connection.channel() as channel,
    ):
        producer = Producer(channel, exchange)
        for number in range(10):
            producer.publish({"n": number}, routing_key="kombu.a", declare=[queue])
        with Consumer(channel, [queue], callbacks=[handle], prefetch_count=3):
            while len(got) < 10:
                connection.drain_events(timeout=_TIMEOUT)
    assert got == [{"n": number} for number in range(10)]
