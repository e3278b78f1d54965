"""`asyncio.run` repeatedly in one process: nothing is left behind, and unclosed objects are
reported once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.app import a_config
from tests.faults.conftest import Place
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[2]
RUNS = 20
AT_EXIT = 10.0  # seconds a program may take to end

COMPLAINTS = (
    "Task was destroyed",
    "never retrieved",
    "never awaited",
    "Event loop is closed",
    "Exception ignored",
    "Traceback",
)

PROGRAM = """
import asyncio, gc
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
    if "cut" in how:
        down = asyncio.Event()
        broker.on("disconnect", lambda *args: down.set())
        print("cut me", flush=True)
        await down.wait()
    if "kept" in how:
        main.broker = broker
    if "forgotten" not in how:
        await broker.shutdown()
        assert asyncio.all_tasks() == {{asyncio.current_task()}}, asyncio.all_tasks()

for _ in range({runs}):
    asyncio.run(main())
    gc.collect()
print("finished", flush=True)
"""


async def run(
    url: str, vhost: str, how: str, *, runs: int = RUNS, proxy: Proxy | None = None
) -> tuple[int, str, float]:
    """Run the program; returns its status, what it wrote to stderr, and how long its end took."""
    program = PROGRAM.format(config=a_config(url, vhost), how=how, runs=runs)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-X", "dev", "-W", "always::ResourceWarning", "-c", program),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    finished = time.monotonic()
    async for line in process.stdout:
        finished = time.monotonic()
        if line.startswith(b"cut me") and proxy is not None:
            proxy.cut()
    errors = (await reading).decode()
    return await process.wait(), errors, time.monotonic() - finished


def check(status: int, errors: str, ending: float, *, forgotten: int = 0) -> None:
    assert [each for each in COMPLAINTS if each in errors] == [], errors
    warned = [line for line in errors.splitlines() if "ResourceWarning: unclosed" in line]
    assert len(warned) == forgotten, errors
    assert all("unclosed Broker (vhosts" in line for line in warned), errors
    assert status == 0, errors
    assert ending < AT_EXIT


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["shut down", "cut"])
async def test_twenty_runs_leave_nothing_and_complain_of_nothing(place: Place, how: str) -> None:
    check(*await run(place.url, place.vhost, how, proxy=place.proxy))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["forgotten", "forgotten after a cut"])
async def test_each_forgotten_shutdown_is_told_of_once_and_by_nothing_else(
    place: Place, how: str
) -> None:
    check(*await run(place.url, place.vhost, how, proxy=place.proxy), forgotten=RUNS)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["shut down", "forgotten"])
async def test_runs_on_the_built_in_broker_are_alike(how: str) -> None:
    status, errors, ending = await run("embedded://", "/", how)
    check(status, errors, ending, forgotten=RUNS if how == "forgotten" else 0)
    # Without source lines, and without asyncio's warnings about a slow machine.
    passed_over = (" ", "Executing")
    said = [line for line in errors.splitlines() if line and not line.startswith(passed_over)]
    assert all("ResourceWarning" in line for line in said), errors


@pytest.mark.parametrize("how", ["forgotten", "forgotten and kept"])
async def test_broker_that_lives_until_the_program_ends_is_told_of_then(
    tmp_path: Path, how: str
) -> None:
    """It is referenced by the thread of a file, or by a name of the application."""
    url = f"embedded://{tmp_path}/node.db"
    check(*await run(url, "/", how, runs=1), forgotten=1)
