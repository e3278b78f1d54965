"""Client, network, server and disk from seeds; and bugs, planted, that these runs must find."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.levels import LEVELS, failure_of, reason_of
from tests.simulation.node_world import BrokenPromiseError as BrokenNodePromiseError
from tests.simulation.plan import Plan
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.world import World, run

SEEDS = 30
AT_A_TIME = 2
EMBEDDED_SEEDS = 60
FULL, NODE, EMBEDDED = LEVELS["full"], LEVELS["node"], LEVELS["embedded"]
NEAR = 12
"""Seeds in which a bug is found from where it once was: the product may change."""


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_every_promise_is_kept_whatever_fails_and_when(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        if (failure := failure_of(FULL, seed)) is not None:
            pytest.fail(str(failure))


@pytest.mark.parametrize("part", range(4))
def test_every_promise_is_kept_by_application_and_broker_in_one_process(part: int) -> None:
    for seed in range(part, EMBEDDED_SEEDS, 4):
        if (failure := failure_of(EMBEDDED, seed)) is not None:
            pytest.fail(str(failure))


def test_a_seed_is_the_same_run_every_time() -> None:
    once, twice = run(Plan.drawn(7)), run(Plan.drawn(7))
    assert _told(once) == _told(twice)


def _told(world: World) -> object:
    promises = world.promises
    return world.scheduler.steps, world.scheduler.now, promises.ends, promises.handled


@pytest.mark.parametrize(
    ("bug", "level", "first"),
    [
        ("unsynced", FULL, 0),
        ("early-confirm", FULL, 10),
        ("early-confirm", NODE, 0),
        ("lost-requeue", FULL, 3),
        ("shared-lease", NODE, 10),
        ("requeue-order", FULL, 0),
        ("double-end", FULL, 0),
        ("resend-order", FULL, 6),
        ("overtaking", FULL, 23),
        ("unsynced", EMBEDDED, 0),
        ("early-confirm", EMBEDDED, 0),
        ("early-remember", EMBEDDED, 0),
        ("early-ack-outbox", EMBEDDED, 108),
        ("early-ack-shovel", EMBEDDED, 38),
        ("short-batch", EMBEDDED, 50),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_a_planted_bug_is_found(bug: str, level: object, first: int) -> None:
    assert isinstance(level, type(FULL))
    with BUGS[bug].planted():
        found = any(reason_of(level.draw(seed)) for seed in range(first, first + NEAR))
    assert found, BUGS[bug].what


def test_a_failure_is_shrunk_to_a_command_and_a_program_that_fail_again() -> None:
    bug = BUGS["shared-lease"]
    with bug.planted():
        failures = (failure_of(NODE, seed) for seed in range(10, 10 + NEAR))
        failure = next(each for each in failures if each is not None)
    assert len(failure.steps) < len(NODE.draw(failure.seed).steps) / 4
    command = str(failure).partition("again: python ")[2].partition("\n")[0].split()
    again = [sys.executable, *command]
    assert subprocess.run([*again, "--bug", "shared-lease"], capture_output=True).returncode == 1
    assert subprocess.run(again, capture_output=True).returncode == 0
    with bug.planted(), pytest.raises(BrokenNodePromiseError):
        exec(failure.program, {})
    exec(failure.program, {})


def test_a_failure_of_the_full_stack_is_reported_as_a_program_too() -> None:
    with BUGS["double-end"].planted():
        failure = next(filter(None, (failure_of(FULL, seed) for seed in range(NEAR))))
        with pytest.raises(BrokenPromiseError, match="more than one terminal event"):
            exec(failure.program, {})
    exec(failure.program, {})
