"""The command ``broker-client serve``, in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import aio_pika

from tests.support.served import Served


async def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    server = Served(tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    try:
        connection = await aio_pika.connect(server.url())
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            for number in range(100):
                message = aio_pika.Message(b"%d" % number, delivery_mode=2)
                await channel.default_exchange.publish(message, "q")
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with await aio_pika.connect(server.url()) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            assert queue.declaration_result.message_count == 100
            received = await queue.get()
            assert received is not None
            assert received.body == b"0"
            await received.ack()
    finally:
        await asyncio.to_thread(server.close)


def test_without_data_it_says_that_nothing_is_kept() -> None:
    with Served() as server:
        assert "in memory" in server.line
        assert server.stop() == 0


def test_a_port_that_is_taken_is_one_line_that_names_the_setting() -> None:
    with Served() as server:
        refused = _serve("--listen", f"127.0.0.1:{server.port}")
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert str(server.port) in line
        assert "--listen" in line


def test_a_file_of_another_process_is_refused_with_its_id(tmp_path: Path) -> None:
    with Served(tmp_path / "broker.db") as server:
        refused = _serve("--data", str(tmp_path / "broker.db"), "--listen", "127.0.0.1:0")
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert f"process {server.pid}" in line


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker_client", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
