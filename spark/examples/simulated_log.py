"""A delivery-event log of made-up traffic, to try the jobs on.

    python spark/examples/simulated_log.py build/log --messages 20000
    python -m spark.pipeline throughput --events build/log --plot build/throughput.png

Two queues: `orders` is quick and fails sometimes; `mails` is slow, falls behind half-way
through, and times out. What fails too often goes to `cemetery`.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from broker_client.events.delivery_event import DeliveryEvent  # noqa: E402 - found once the path is set
from broker_client.events.log import EventLog  # noqa: E402

START = 1_767_261_600.0
"""2026-01-01T10:00:00Z"""
ERRORS = (
    ("KeyError", "'customer'"),
    ("ValueError", "order {n} has a negative amount: -{n}"),
    ("TimeoutError", "no answer from 10.0.0.{m}:8080 in 5 s"),
)
_CHUNK = 5_000


class Traffic(NamedTuple):
    """How a simulated queue behaves."""

    queue: str
    share: float
    handling: float
    """Seconds, typically."""
    failing: float
    timing_out: float


QUEUES = (
    Traffic("orders", 0.7, 0.02, 0.03, 0.0),
    Traffic("mails", 0.3, 0.25, 0.01, 0.02),
)


def simulated(messages: int, *, minutes: float = 30.0, seed: int = 1) -> Iterator[DeliveryEvent]:
    """The events of `messages` messages, in order of time."""
    rng = random.Random(seed)  # noqa: S311 - made-up traffic, nothing secret
    pending: list[tuple[float, int, DeliveryEvent]] = []
    count = 0
    for number in range(messages):
        at = START + minutes * 60 * number / messages + rng.uniform(0, 0.5)
        for event in _message(rng, f"m{number}", at, (at - START) / (minutes * 60)):
            assert event.ts is not None, "_message knows when things happen"
            count += 1
            heapq.heappush(pending, (event.ts, count, event))
        while pending and pending[0][0] < at - 0.5:
            yield heapq.heappop(pending)[2]
    while pending:
        yield heapq.heappop(pending)[2]


def _message(rng: random.Random, key: str, at: float, elapsed: float) -> Iterator[DeliveryEvent]:
    traffic = rng.choices(QUEUES, [each.share for each in QUEUES])[0]
    size = rng.randrange(200, 2_000)
    base: dict[str, Any] = {
        "vhost": "/",
        "exchange": "shop",
        "routing_key": f"{traffic.queue}.new",
        "message_id": key,
        "size": size,
        "published_at": at,
    }
    yield DeliveryEvent("published", ts=at, **base)
    yield DeliveryEvent("confirmed", ts=at + 0.002, **base)
    base |= {"queue": traffic.queue, "enqueued_at": at}
    yield DeliveryEvent("enqueued", ts=at, **base)
    wait = rng.expovariate(1 / 0.005)
    if traffic.queue == "mails" and 0.4 < elapsed < 0.75:
        wait += 240 * (1 - abs(elapsed - 0.6) / 0.2) if 0.4 < elapsed < 0.8 else 0.0
    at += max(wait, 0.001)
    poisoned = rng.random() < traffic.failing / 4
    for attempt in range(1, 6):
        base |= {"attempt": attempt, "redelivered": attempt > 1, "delivered_at": at}
        base["consumer"] = f"worker-{rng.randrange(4)}"
        yield DeliveryEvent("delivered", ts=at, **base)
        if rng.random() < traffic.timing_out:
            at += 60
            yield DeliveryEvent("timed_out", ts=at, reason="timeout", **base)
            continue
        at += rng.lognormvariate(0, 0.6) * traffic.handling
        if not poisoned and rng.random() >= traffic.failing:
            yield DeliveryEvent("acked", ts=at, **base)
            return
        kind, text = ERRORS[hash_of(key) % len(ERRORS)]
        error: dict[str, Any] = {
            "error_class": kind,
            "error": text.format(n=hash_of(key), m=attempt),
        }
        yield DeliveryEvent("nacked", ts=at, reason="handler_error", **error, **base)
        if attempt < 5:
            yield DeliveryEvent("requeued", ts=at, reason="handler_error", **error, **base)
            at += 0.2
    yield DeliveryEvent("dead_lettered", ts=at, reason="rejected", **base)
    yield DeliveryEvent("enqueued", ts=at, vhost="/", exchange="dead", message_id=key, size=size,
                        queue="cemetery", published_at=base["published_at"],
                        enqueued_at=at)  # fmt: skip


def hash_of(key: str) -> int:
    """A number that belongs to a message, the same in every run."""
    return int(key[1:]) * 7919 % 10_007


def write(folder: Path, messages: int, *, minutes: float = 30.0, seed: int = 1) -> int:
    """Write the log; returns how many events it has."""
    log = EventLog(folder, "simulated", buffer=2**40, max_bytes=16 * 2**20)
    chunk: list[DeliveryEvent] = []
    total = 0
    for event in simulated(messages, minutes=minutes, seed=seed):
        chunk.append(event)
        if len(chunk) == _CHUNK:
            log.record_many(chunk, chunk[0].ts)
            log.flush(60.0)
            total += len(chunk)
            chunk = []
    log.record_many(chunk, chunk[0].ts if chunk else None)
    log.close(60.0)
    return total + len(chunk)


def main() -> int:
    command = argparse.ArgumentParser(description="A delivery-event log of made-up traffic.")
    command.add_argument("folder", type=Path)
    command.add_argument("--messages", type=int, default=20_000, metavar="N")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    events = write(options.folder, options.messages, seed=options.seed)
    sys.stdout.write(f"{events:,} events of {options.messages:,} messages in {options.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
