"""Seeded schedules of a node with store faults and deaths between any two effects."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.property.simulation import Simulation
from tests.property.world import BrokenPromiseError

SEEDS = 240
AT_A_TIME = 30


@pytest.fixture(autouse=True)
def _no_noise() -> Iterator[None]:
    logging.disable()  # a failed store is reported as it shall be, hundreds of times
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_every_promise_is_kept_whatever_fails_and_when(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        try:
            Simulation(seed).run()
        except (Exception, BrokenPromiseError) as error:  # noqa: BLE001 - told with its seed
            pytest.fail(
                f"{type(error).__name__}: {error}\n"
                f"again: python -m tests.property.simulation --seed {seed} --trace"
            )


def test_a_schedule_is_the_same_every_time() -> None:
    once, twice = Simulation(7), Simulation(7)
    once.run()
    twice.run()
    assert once.world.disk == twice.world.disk
    assert once.world.gone == twice.world.gone
