"""Code shared by the peers written in Python."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple

QUEUE = "bench"
BODY = b"x" * 256
WINDOW = 1000  # most publishes without a confirm
PREFETCH = 200


class Spent(NamedTuple):
    """Seconds that one step took."""

    passed: float
    processor: float
    """Of the client's process."""


class Seconds(NamedTuple):
    """Durations of publishing and consuming."""

    publish: Spent
    """From the first publish to the last confirm."""
    consume: Spent
    """From the subscription to the last ack."""


class Countdown:
    """Notes the time at which the last of `count` messages is acked."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._done = asyncio.Event()

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    async def wait(self) -> None:
        async with asyncio.timeout(120):
            await self._done.wait()


async def timed(work: Awaitable[object]) -> Spent:
    """The seconds that `work` takes."""
    start, processor = time.perf_counter(), time.process_time()
    await work
    return Spent(time.perf_counter() - start, time.process_time() - processor)


async def in_window(publish: Callable[[], Awaitable[object]], count: int) -> None:
    """Call `publish` `count` times, `WINDOW` at a time, for clients whose publish waits for the
    confirm.

    Tasks that take turns cost such a client less than a task for every message.
    """
    turns = iter(range(count))

    async def worker() -> None:
        for _ in turns:
            await publish()

    await asyncio.gather(*(worker() for _ in range(min(WINDOW, count))))


def run(measure: Callable[[str, int], Awaitable[Seconds]], packages: Sequence[str]) -> None:
    """The command line of a peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("messages", type=int)
    options = parser.parse_args()

    async def main() -> Seconds:
        return await measure(options.url, options.messages)

    seconds = asyncio.run(main())
    versions = {name: version(name) for name in packages}
    steps = {step: spent._asdict() for step, spent in seconds._asdict().items()}
    print(json.dumps({**steps, "versions": versions}))
