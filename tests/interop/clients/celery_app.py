"""A Celery application as its documentation shows one; the address comes from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

app = Celery("clients", broker=os.environ["BROKER"], backend="rpc://")
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=3)
def unreliable(self: Any, failures: int) -> int:
    """Fails `times` times, then returns the number of the attempt."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def when() -> float:
    return time.time()
