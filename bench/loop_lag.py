"""What watching the steps of a handler costs, a message.

    python -m bench.loop_lag

The same task is made and awaited with and without `watched` between its fence and its handler.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from broker_client.consuming.loop_lag import watched

ROUNDS = 15
BATCH = 100  # tasks alive at a time


async def handler() -> None:
    """One step, as a handler that acks has."""


async def fence(work: Awaitable[Any]) -> None:
    """As around every handler."""
    try:
        await work
    except Exception as error:
        raise AssertionError from error


def blocked(seconds: float) -> None:
    """Never called: no step takes a second."""


def plain() -> Any:
    return fence(handler())


def timed() -> Any:
    return fence(watched(handler(), 1.0, blocked))


async def microseconds(make: Callable[[], Any], number: int) -> float:
    """Of processor time for each task made by `make`."""
    loop = asyncio.get_running_loop()
    begun = time.process_time()
    for _ in range(number // BATCH):
        tasks = [loop.create_task(make()) for _ in range(BATCH)]
        await tasks[-1]
    return (time.process_time() - begun) / number * 1e6


async def measure(number: int) -> tuple[float, float]:
    """(plain, timed) of the quickest rounds: what is slower was disturbed."""
    rounds = [
        (await microseconds(plain, number), await microseconds(timed, number))
        for _ in range(ROUNDS)
    ]
    return min(each for each, _ in rounds), min(each for _, each in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loop_lag")
    parser.add_argument("--number", type=int, default=5_000, metavar="N", help="tasks a round")
    args = parser.parse_args()
    without, with_watch = asyncio.run(measure(args.number))
    sys.stdout.write(
        f"a task a message: {without:.2f} µs; watched: {with_watch:.2f} µs; "
        f"the watch costs {with_watch - without:.2f} µs\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
