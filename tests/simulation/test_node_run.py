"""Seeded schedules of a node alone, with store faults and deaths between any two effects."""

from __future__ import annotations

import pytest

from tests.simulation.levels import LEVELS, Level, failure_of
from tests.simulation.node_run import NodeRun

SEEDS = {"node": 240, "node-short": 600}
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", [LEVELS[name] for name in SEEDS], ids=lambda level: level.name)
def test_every_promise_of_a_node_is_kept(level: Level, part: int) -> None:
    for seed in range(part, SEEDS[level.name], PARTS):
        if (failure := failure_of(level, seed)) is not None:
            pytest.fail(str(failure))


def test_a_schedule_is_the_same_every_time() -> None:
    once, twice = NodeRun(7), NodeRun(7)
    once.run()
    twice.run()
    assert once.world.disk == twice.world.disk
    assert once.world.gone == twice.world.gone
