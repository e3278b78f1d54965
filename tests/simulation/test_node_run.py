"""Seeded schedules of a node alone, with store faults and deaths between any two effects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import Campaign
from tests.simulation.levels import LEVELS, Level, failure_of
from tests.simulation.node_run import NodePlan
from tests.support.eventually import eventually

SEEDS = {"node": 240, "node-short": 10_000}
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", [LEVELS[name] for name in SEEDS], ids=lambda level: level.name)
def test_every_promise_of_a_node_is_kept(level: Level, part: int) -> None:
    for seed in range(part, SEEDS[level.name], PARTS):
        if (failure := failure_of(level, seed)) is not None:
            pytest.fail(str(failure))


def test_a_schedule_is_the_same_every_time() -> None:
    once, twice = NodePlan.drawn(7).run(), NodePlan.drawn(7).run()
    assert once.disk == twice.disk
    assert once.gone == twice.gone


def test_very_many_seeds_go_on_from_where_they_were(tmp_path: Path) -> None:
    file, told = tmp_path / "done.json", list[str]()
    assert Campaign("node-short", 7, 40, file).run(1, told.append, size=15) == 0
    assert json.loads(file.read_text()) == {"level": "node-short", "first": 7, "done": 40}
    again = Campaign("node-short", 1_000, 60, file)  # started on another day
    assert (again.first, again.done) == (7, 40)
    assert again.run(1, told.append, size=15) == 0
    assert told[-1] == "node-short: 60 seeds from 7, all promises kept"


async def test_ctrl_c_keeps_what_was_done_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "done.json"
    campaign = await asyncio.create_subprocess_exec(
        sys.executable,
        *f"-m tests.simulation --level node-short --seeds 1000000 --resume {file}".split(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        # A shell that runs tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        await eventually(file.exists, timeout=90.0)
        os.killpg(campaign.pid, signal.SIGINT)  # as a terminal does
        output, errors = await campaign.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(campaign.pid, signal.SIGKILL)
    done = json.loads(file.read_text())["done"]
    assert f"interrupted after {done:,} of 1,000,000 seeds" in output.decode()
    assert errors == b""
    assert campaign.returncode == 130
