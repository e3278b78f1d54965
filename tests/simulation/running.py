"""What every simulated world does with a plan: step by step, then to rest, then to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from tests.simulation.disk import Disk, SimVfs
from tests.simulation.host import Machine
from tests.simulation.loop import Scheduler
from tests.simulation.network import Network
from tests.simulation.order import ordered_sets
from tests.simulation.plan import Plan, Step
from tests.simulation.promises import BrokenPromiseError, Promises
from tests.simulation.threads import StoreThreads

LIVENESS = 45.0
"""Virtual seconds, from the last fault or the end of the last handler that overslept, within
which all is confirmed, handled and settled."""
_END = 60.0  # seconds for everybody to stop
_STEPS = 300_000  # callbacks after which a run goes round in circles
_LOOK = 1.0  # seconds between two looks at the core
_IN_MEMORY = Path("/dev/shm")


class Simulation(ABC):
    """Machines, a network and disks, driven by the scheduler through a plan.

    Each step of the plan is a method, `do_` and its name.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = Random(plan.seed)
        self.scheduler = Scheduler(self.chance)
        self.promises = Promises(hops=plan.variant.hops)
        self.network = Network(self.scheduler, self.chance)
        self.network.attach(self.scheduler.world)
        self.threads = StoreThreads(self.scheduler, self.chance)
        self.rested_after = 0.0
        """Virtual seconds from the last fault until all was done."""

    @property
    @abstractmethod
    def machines(self) -> Sequence[Machine]: ...

    @abstractmethod
    def check_core(self) -> None:
        """
        Raises:
            AssertionError: the core has lost or doubled a message.
        """

    @abstractmethod
    def held(self) -> int:
        """Messages in queues, in whatever state; -1 while nobody can say."""

    @abstractmethod
    def is_publishing(self) -> bool:
        """True while an application has not passed on all that it was told to publish."""

    @abstractmethod
    def losses(self) -> int:
        """How often a connection or a process has ended so far."""

    @property
    @abstractmethod
    def disk(self) -> Disk:
        """The broker's, at present."""

    @abstractmethod
    def end(self) -> None:
        """Everybody stops in order; nothing goes on then."""

    @abstractmethod
    def abandon(self) -> None:
        """End all processes, so that nothing is left of the run."""

    # ---------------------------------------------------------------- steps

    def do_die_in_commit(self, operations: int) -> None:
        self.disk.dies_in = operations

    def do_fail_disk(self, fault: str, operations: int) -> None:
        self.disk.fault, self.disk.fails_in = fault, operations

    def do_slow_disk(self, delay: float, seconds: float) -> None:
        self.threads.slowest = delay
        self.scheduler.world.call_later(seconds, self.threads.speed_up)

    def stop_faults(self) -> None:
        self.threads.speed_up()
        self.disk.dies_in = self.disk.fails_in = None

    # ---------------------------------------------------------------- a run

    def run(self, trace: Callable[[str], None] | None = None) -> None:
        """
        Raises:
            BrokenPromiseError: something was promised and not kept.
        """
        with self.threads.in_place(), logged_failures(self.promises):
            self._look_regularly()
            for step in self.plan.steps:
                self._run_until(step.at, lambda: False)
                if trace is not None:
                    trace(f"{self.scheduler.steps:6} {step}")
                self._do(step)
            self._run_until(self.plan.end, lambda: False)
            self.stop_faults()
            began = self.scheduler.now
            if not self._come_to_rest(began):
                unfinished = self.promises.unfinished()
                self.promises.break_(
                    f"no rest {LIVENESS:g} s after the last fault: {len(unfinished)} messages "
                    f"unfinished ({', '.join(unfinished[:5])}), {self.held()} in queues"
                )
            self.promises.check()
            self.rested_after = self.scheduler.now - began
            self.promises.check_end(self.losses())
            self.end()

    def _do(self, step: Step) -> None:
        getattr(self, f"do_{step.name}")(*step.arguments)

    def _come_to_rest(self, began: float) -> bool:
        """Whether all is done in time; faults ended as it `began`."""
        while not self._run_until(until := began + LIVENESS, self._is_done):
            began = max(began, self.promises.asleep_until)
            if began + LIVENESS <= until:
                return False
        return True

    def _run_until(self, at: float, done: Callable[[], bool]) -> bool:
        """Until `done`, or that time; returns whether it is done."""
        timer = self.scheduler.world.call_at(at, lambda: None)
        try:
            while self.scheduler.now < at:
                if done():
                    return True
                self._step()
            return done()
        finally:
            timer.cancel()

    def _step(self) -> None:
        if not self.scheduler.step():
            raise BrokenPromiseError("everybody waits, and nobody for a time")
        if self.scheduler.steps > _STEPS:
            raise BrokenPromiseError(f"{_STEPS} callbacks, and no end")
        if self.promises.broken:
            self.promises.check()

    def _look_regularly(self) -> None:
        try:
            self.check_core()
        except AssertionError as error:
            self.promises.break_(f"in the core: {error}")
        for machine in self.machines:
            for context in machine.failures:
                why = repr(context.get("exception"))
                self.promises.break_(f"{machine.name}: {context['message']}: {why}")
        for context in self.scheduler.world.failures:
            self.promises.break_(f"{context['message']}: {context.get('exception')!r}")
        self.scheduler.world.call_later(_LOOK, self._look_regularly)

    def _is_done(self) -> bool:
        if self.is_publishing():
            return False
        return not self.promises.unfinished() and self.held() == 0

    def await_end(self, *machines: Machine) -> None:
        """Wait until they have ended, or note that they do not."""
        at = self.scheduler.now + _END
        if not self._run_until(at, lambda: all(each.loop is None for each in machines)):
            self.promises.break_(f"{[each.name for each in machines if each.loop]} does not stop")
        self.promises.check()


class _LoggedFailures(logging.Handler):
    """A failure that is caught and logged is a failure."""

    def __init__(self, promises: Promises) -> None:
        super().__init__(logging.ERROR)
        self._promises = promises

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            if not isinstance(error, ValueError) or "as its handler wants it" not in str(error):
                self._promises.break_(f"logged: {record.getMessage()}: {error!r}")


@contextlib.contextmanager
def logged_failures(promises: Promises) -> Iterator[None]:
    """Note them, and print nothing."""
    loggers = [logging.getLogger(name) for name in ("broker_client", "aiormq", "aio_pika")]
    propagating = [logger.propagate for logger in loggers]
    handler = _LoggedFailures(promises)
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, propagates in zip(loggers, propagating, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagates


@contextlib.contextmanager
def a_place(seed: int) -> Iterator[tuple[SimVfs, Path]]:
    """A folder for disks, and the same chance for all that draws by itself."""
    state = random.getstate()
    random.seed(seed)
    folder = str(_IN_MEMORY) if _IN_MEMORY.is_dir() else None
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="simulation") as name,
            SimVfs().registered() as vfs,
            ordered_sets(),
        ):
            yield vfs, Path(name)
    finally:
        asyncio._set_running_loop(None)  # noqa: SLF001 - as the loops have set it
        random.setstate(state)
