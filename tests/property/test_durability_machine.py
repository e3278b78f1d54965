"""The world of the simulation, driven by hypothesis, which shrinks failures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.simulation.node_world import DEAD, FANOUT, QUEUES, SINGLE, BrokenPromiseError, World

AT = st.integers(0, 2)
WHICH = st.integers(0, 20)
ANY = st.sampled_from(list(QUEUES))


def works(machine: DurabilityMachine) -> bool:
    return machine.world.node.failure is None


class DurabilityMachine(RuleBasedStateMachine):
    @initialize(memory_limit=st.sampled_from([0, 5, 1 << 20]))
    def begin(self, memory_limit: int) -> None:
        logging.disable()
        self.world = World(memory_limit=memory_limit)

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)

    def do(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            self.world.guarded(lambda: action(*arguments, **options))
            self.world.check()
        except BrokenPromiseError as error:
            raise AssertionError(str(error)) from error

    @precondition(works)
    @rule(
        at=AT,
        queue=st.sampled_from([None, *SINGLE]),
        persistent=st.booleans(),
        priority=st.integers(0, 3),
    )
    def publish(self, at: int, queue: str | None, persistent: bool, priority: int) -> None:
        self.do(self.world.publish, at, queue, persistent=persistent, priority=priority)

    @precondition(works)
    @rule(at=AT, queue=ANY, prefetch=st.integers(0, 3))
    def consume(self, at: int, queue: str, prefetch: int) -> None:
        self.do(self.world.consume, at, queue, prefetch)

    @precondition(works)
    @rule(at=AT)
    def cancel(self, at: int) -> None:
        self.do(self.world.cancel, at)

    @precondition(works)
    @rule(at=AT, queue=ANY, no_ack=st.booleans())
    def get(self, at: int, queue: str, no_ack: bool) -> None:
        self.do(self.world.get, at, queue, no_ack=no_ack)

    @precondition(works)
    @rule(which=WHICH)
    def ack(self, which: int) -> None:
        self.do(self.world.ack, which)

    @precondition(works)
    @rule(which=WHICH)
    def reject(self, which: int) -> None:
        self.do(self.world.reject, which)

    @precondition(works)
    @rule(which=WHICH, delay=st.sampled_from([None, 0.0, 3.0]))
    def requeue(self, which: int, delay: float | None) -> None:
        self.do(self.world.requeue, which, delay)

    @precondition(works)
    @rule(which=WHICH)
    def touch(self, which: int) -> None:
        self.do(self.world.touch, which)

    @precondition(works)
    @rule(at=AT)
    def lose_channel(self, at: int) -> None:
        self.do(self.world.close_channel, at)

    @precondition(works)
    @rule(queue=st.sampled_from([*FANOUT, DEAD]))
    def purge(self, queue: str) -> None:
        self.do(self.world.purge, queue)

    @precondition(works)
    @rule(queue=st.sampled_from([*FANOUT, "short"]))
    def remake(self, queue: str) -> None:
        self.do(self.world.remake, queue)

    @precondition(works)
    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 6.0]))
    def advance(self, seconds: float) -> None:
        self.do(self.world.advance, seconds)

    @precondition(works)
    @rule()
    def note_attempts(self) -> None:
        self.do(self.world.note_attempts)

    @rule()
    def turn(self) -> None:
        self.do(self.world.turn)

    @rule(fail=st.sampled_from([False] * 9 + [True]))
    def end_commit(self, fail: bool) -> None:
        self.do(self.world.end_commit, fail=fail)

    @rule(points=st.integers(1, 12), commits=st.integers(0, 2))
    def die_soon(self, points: int, commits: int) -> None:
        self.world.die_in, self.world.commits_at_death = points, commits

    @rule(commits=st.integers(0, 2))
    def crash_and_recover(self, commits: int) -> None:
        self.world.commits_at_death = commits
        self.do(self.world.crash)

    @invariant()
    def every_message_is_somewhere_or_counted_as_gone(self) -> None:
        if hasattr(self, "world"):
            self.world.engine.check_conservation()


TestDurability = DurabilityMachine.TestCase
TestDurability.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
