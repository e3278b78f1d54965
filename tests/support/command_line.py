"""The command ``broker-client``, in the test's process or its own, and the contents of queues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiormq
from typer.testing import CliRunner, Result

from broker_client.cli.main import app


class ChannelTo:
    """A channel of a connection of its own, for an ``async with`` block."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Any:
        self._connection = await aiormq.connect(self._url)
        return await self._connection.channel()

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


def run(url: str, command: str, *arguments: str, input: str | bytes | None = None) -> Result:
    """Run a command on the broker at `url`."""
    options = {"BROKER_CLIENT_URL": url}
    return CliRunner().invoke(app, [command, *arguments], env=options, input=input)


@contextmanager
def program(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command on the broker at `url`, as a program that can be interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "broker_client", *arguments],
        env={**os.environ, "BROKER_CLIENT_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a shell SIGINT is ignored, also by children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(result: Result) -> Any:
    """The JSON of its last line."""
    return json.loads(result.stdout.splitlines()[-1])


def drained(url: str, queue: str) -> list[Any]:
    """Remove all messages of `queue`, and return them."""
    result = run(url, "get", queue, "--count", "100000", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(url: str, queue: str) -> list[str]:
    """Remove all messages of `queue`, and return their bodies."""

    async def take() -> list[str]:
        async with ChannelTo(url) as channel:
            count = (await channel.queue_declare(queue, passive=True)).message_count
            arrived: asyncio.Queue[Any] = asyncio.Queue()
            await channel.basic_consume(queue, arrived.put, no_ack=True)
            async with asyncio.timeout(60):
                return [(await arrived.get()).body.decode() for _ in range(count)]

    return asyncio.run(take())


def reject(url: str, queue: str, count: int) -> None:
    """Dead-letter all messages of `queue`."""

    async def run_it() -> None:
        async with ChannelTo(url) as channel:
            for _ in range(count):
                got = await channel.basic_get(queue)
                await channel.basic_reject(got.delivery.delivery_tag, requeue=False)
            await channel.basic_qos(prefetch_count=1)

    asyncio.run(run_it())


def ready(url: str, queue: str) -> int:
    """How many messages are ready in `queue`."""

    async def count() -> int:
        async with ChannelTo(url) as channel:
            return int((await channel.queue_declare(queue, passive=True)).message_count)

    return asyncio.run(count())
