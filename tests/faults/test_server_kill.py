"""``broker-client serve`` is killed under the load of four client processes."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import aio_pika
import pytest

from tests.faults.amqp_child import QUEUE
from tests.support.eventually import eventually
from tests.support.served import Served

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 3)
_PUBLISHERS = ("a", "b", "c")
_BETWEEN = 300  # messages confirmed between two kills, at most


@pytest.mark.timeout(180 + 60 * ROUNDS)
async def test_nothing_confirmed_is_lost_and_order_holds_over_kills(
    tmp_path: Path, chance: random.Random
) -> None:
    server = Served("--log-level", "error", data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    logs = {name: tmp_path / f"{name}.log" for name in (*_PUBLISHERS, "consumer")}
    children = [await asyncio.to_thread(_start, server, name, path) for name, path in logs.items()]
    try:
        for _ in range(ROUNDS):
            size = _size(logs)
            wanted = size + chance.randrange(_BETWEEN)
            await eventually(lambda wanted=wanted: _size(logs) > wanted, 60)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        size = _size(logs)
        await eventually(lambda: _size(logs) > size + _BETWEEN, 60)
    finally:
        for child in children:
            await asyncio.to_thread(_end, child)
    left = await _drained(server)
    await asyncio.to_thread(server.close)
    text = await asyncio.to_thread(logs["consumer"].read_text)
    lives = [_by_publisher(life.splitlines()) for life in text.split("o\n")]
    lives.append(_by_publisher(left))  # messages unacked at the last kill are delivered once more
    for name in _PUBLISHERS:
        lines = await asyncio.to_thread(logs[name].read_text)
        confirmed = {int(line.split()[1]) for line in lines.splitlines()}
        found = {number for life in lives for number in life[name]}
        assert confirmed
        assert confirmed <= found, f"lost: {sorted(confirmed - found)[:20]}"
        for life in lives:
            assert life[name] == sorted(set(life[name])), "out of order, or twice"


def _by_publisher(lines: Iterable[str]) -> dict[str, list[int]]:
    """The numbers of each publisher, in the order of ``d PUBLISHER N``."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        _, name, number = line.split()
        found[name].append(int(number))
    return found


def _size(logs: dict[str, Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in logs.values())


def _start(server: Served, name: str, log: Path) -> subprocess.Popen[bytes]:
    job = "consume" if name == "consumer" else "publish"
    with log.open("wb") as out:
        return _child(server.url(), name, job, out)


def _child(url: str, name: str, job: str, out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.amqp_child", url, name, job],
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.DEVNULL,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()  # an incomplete line does not count
    child.communicate(timeout=90)


async def _drained(server: Served) -> list[str]:
    found = []
    async with await aio_pika.connect(server.url()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(QUEUE, durable=True)
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            found.append(f"d {message.body.decode()}")
    return found
