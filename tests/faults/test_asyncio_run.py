"""`asyncio.run` again and again in one process: nothing is left behind, nothing complains."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.app import a_config
from tests.faults.conftest import Place

ROOT = Path(__file__).parents[2]

COMPLAINTS = (
    "Task was destroyed",
    "never retrieved",
    "never awaited",
    "Event loop is closed",
    "Exception ignored",
    "ResourceWarning",
    "Traceback",
)

PROGRAM = """
import asyncio, gc, sys, threading, time
from broker_client import Broker

config, how = {config!r}, {how!r}

async def main():
    broker = await Broker.create(config)
    broker.on("error", lambda error, vhost: None)
    handled = asyncio.Event()
    async def handle(message, content, ack_or_nack):
        await ack_or_nack()
        handled.set()
    await broker.subscribe("work", handle)
    await (await broker.publish("a", {{"id": 1}}))
    await handled.wait()
    if how == "cut":
        down = asyncio.Event()
        broker.on("disconnect", lambda *args: down.set())
        print("cut me", flush=True)
        await down.wait()
    if how != "forgotten":
        await broker.shutdown()
        assert asyncio.all_tasks() == {{asyncio.current_task()}}, asyncio.all_tasks()

for _ in range(20):
    asyncio.run(main())
    gc.collect()
print("finished", time.perf_counter(), flush=True)
"""


async def run(place: Place, how: str) -> tuple[int, str]:
    """Run the program; returns its status and what it wrote to stderr."""
    program = PROGRAM.format(config=a_config(place.url, place.vhost), how=how)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-X",
        "dev",
        "-c",
        program,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    async for line in process.stdout:
        if line.startswith(b"cut me"):
            place.proxy.cut()
    errors = (await reading).decode()
    return await process.wait(), errors


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["shut down", "cut"])
async def test_twenty_runs_leave_nothing_and_complain_of_nothing(place: Place, how: str) -> None:
    status, errors = await run(place, how)
    found = [complaint for complaint in COMPLAINTS if complaint in errors]
    assert found == [], errors
    assert status == 0, errors


@pytest.mark.timeout(60)
async def test_forgotten_shutdown_does_not_hang_the_program(place: Place) -> None:
    status, errors = await run(place, "forgotten")
    found = [each for each in COMPLAINTS[:4] if each in errors]
    assert found == [], errors
    assert status == 0, errors
