"""One run: clients, network, server and disk, driven by the scheduler through a plan."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from broker_client.config.loader import load_config
from tests.simulation.application import Application, a_config
from tests.simulation.disk import SimVfs
from tests.simulation.host import CONSUMER_TIMEOUT, PLACE, Machine, ServerMachine
from tests.simulation.loop import Scheduler
from tests.simulation.network import Network
from tests.simulation.order import ordered_sets
from tests.simulation.plan import CLIENTS, Plan, Step
from tests.simulation.promises import BrokenPromiseError, Promises
from tests.simulation.threads import StoreThreads

LIVENESS = 45.0
"""Virtual seconds, from the last fault, within which all is confirmed, handled and settled."""
_END = 60.0  # seconds for everybody to stop
_STEPS = 300_000  # callbacks after which a run goes round in circles
_LOOK = 1.0  # seconds between two looks at the server
IN_ORDER = 7
"""Links lost in a row, each over a publish, after which a publish may overtake another."""
_IN_MEMORY = Path("/dev/shm")


class ClientMachine(Machine):
    """A process of the application, which is started again when it is killed."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.scheduler, world.network)
        self._world = world
        self.application: Application
        self._stopping = False
        host, port = PLACE
        url = f"amqp://guest:guest@{host}:{port}"
        self._config = load_config(a_config(url, "/", world.plan.variant))
        self.start()

    def start(self) -> None:
        world = self._world
        self.application = Application(
            f"{self.name}{self.lives + 1}",
            self._config,
            world.promises,
            salt=world.plan.seed,
            overrides=world.plan.variant.overrides,
            oversleep=CONSUMER_TIMEOUT * 1.5,
        )
        self.run(self.application.run(), lambda: None)

    def publish(self, publication: str, count: int) -> None:
        if self.loop is not None:
            self.loop.call_soon(self.application.publish, publication, count)

    def stop(self) -> None:
        self._stopping = True
        if self.loop is not None:
            self.loop.call_soon(self.application.stop)

    def crash(self) -> None:
        if self.loop is None:
            return
        self.kill()
        self._world.promises.abandon(self.application.name)
        if not self._stopping:
            self.start()


class World:
    """Everything there is."""

    def __init__(self, plan: Plan, vfs: SimVfs, folder: Path) -> None:
        self.plan = plan
        chance = Random(plan.seed)
        self.scheduler = Scheduler(chance)
        self.promises = Promises()
        self.network = Network(self.scheduler, chance)
        self.network.attach(self.scheduler.world)
        self.threads = StoreThreads(self.scheduler, chance)
        with self.threads.in_place():
            self.server = ServerMachine(
                self.scheduler, self.network, self.threads, vfs, folder, self.promises, chance
            )
            self.clients = {name: ClientMachine(name, self) for name in CLIENTS}
        self.rested_after = 0.0
        """Virtual seconds from the last fault until all was done."""
        self.logged: list[str] = []

    def run(self, trace: Callable[[str], None] | None = None) -> None:
        """
        Raises:
            BrokenPromiseError: something was promised and not kept.
        """
        with self.threads.in_place(), _logged_failures(self.promises):
            self._check_regularly()
            for step in self.plan.steps:
                self._run_until(step.at, lambda: False)
                if trace is not None:
                    trace(f"{self.scheduler.steps:6} {step}")
                self._do(step)
            self._run_until(self.plan.end, lambda: False)
            self._stop_faults()
            began = self.scheduler.now
            if not self._run_until(began + LIVENESS, self._is_done):
                unfinished = self.promises.unfinished()
                self.promises.break_(
                    f"no rest {LIVENESS:g} s after the last fault: {len(unfinished)} messages "
                    f"unfinished ({', '.join(unfinished[:5])}), {self.server.held()} in queues"
                )
            self.promises.check()
            self.rested_after = self.scheduler.now - began
            self.promises.check_end(self.network.ended)
            self._end()

    # ---------------------------------------------------------------- steps

    def _do(self, step: Step) -> None:
        getattr(self, f"do_{step.name}")(*step.arguments)

    def do_publish(self, client: str, publication: str, count: int) -> None:
        self.clients[client].publish(publication, count)

    def do_cut(self, client: str) -> None:
        self.network.cut(client)

    def do_storm(self, client: str, count: int) -> None:
        if count > IN_ORDER:
            self.promises.in_order = False
        self.network.storms[client] = count

    def do_silence(self, client: str, direction: str, seconds: float) -> None:
        if direction != "from":
            self.network.silence(client, self.server.name, seconds)
        if direction != "to":
            self.network.silence(self.server.name, client, seconds)

    def do_slow(self, delay: float, seconds: float) -> None:
        self.network.slowest = delay
        self.scheduler.world.call_later(seconds, self.network.speed_up)

    def do_kill_server(self) -> None:
        self.server.crash(power=False)

    def do_cut_power(self) -> None:
        self.server.crash(power=True)

    def do_die_in_commit(self, operations: int) -> None:
        self.server.disk.dies_in = operations

    def do_fail_disk(self, fault: str, operations: int) -> None:
        disk = self.server.disk
        disk.fault, disk.fails_in = fault, operations

    def do_slow_disk(self, delay: float, seconds: float) -> None:
        self.threads.slowest = delay
        self.scheduler.world.call_later(seconds, self.threads.speed_up)

    def do_stop_server(self) -> None:
        if self.server.loop is not None:
            self.server.loop.call_soon(self.server.stop)

    def do_kill_client(self, client: str) -> None:
        self.clients[client].crash()

    # ---------------------------------------------------------------- from step to step

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

    def _check_regularly(self) -> None:
        try:
            self.server.check()
        except AssertionError as error:
            self.promises.break_(f"in the core: {error}")
        for machine in (self.server, *self.clients.values()):
            for context in machine.failures:
                why = repr(context.get("exception"))
                self.promises.break_(f"{machine.name}: {context['message']}: {why}")
        for context in self.scheduler.world.failures:
            self.promises.break_(f"{context['message']}: {context.get('exception')!r}")
        self.scheduler.world.call_later(_LOOK, self._check_regularly)

    def _is_done(self) -> bool:
        if any(client.application.is_publishing for client in self.clients.values()):
            return False
        return not self.promises.unfinished() and self.server.held() == 0

    def _stop_faults(self) -> None:
        self.network.heal()
        self.threads.speed_up()
        self.server.disk.dies_in = self.server.disk.fails_in = None

    def _end(self) -> None:
        """Everybody stops in order; the file is empty then, and nothing goes on."""
        for client in self.clients.values():
            client.stop()
        self._await_end(*self.clients.values())
        self.server.stops = True
        if self.server.loop is not None:
            self.server.loop.call_soon(self.server.stop)
        self._await_end(self.server)

    def _await_end(self, *machines: Machine) -> None:
        at = self.scheduler.now + _END
        if not self._run_until(at, lambda: all(each.loop is None for each in machines)):
            self.promises.break_(f"{[each.name for each in machines if each.loop]} does not stop")
        self.promises.check()

    def abandon(self) -> None:
        """End all processes, so that nothing is left of the run."""
        for client in self.clients.values():
            client.kill()
        self.server.disk.is_dead = True
        with self.threads.ending():
            self.server.kill()


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
def _logged_failures(promises: Promises) -> Iterator[None]:
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
def a_world(plan: Plan) -> Iterator[World]:
    """A world with a folder of its own, and the same chance for all that draws by itself."""
    state = random.getstate()
    random.seed(plan.seed)
    folder = str(_IN_MEMORY) if _IN_MEMORY.is_dir() else None
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="simulation") as name,
            SimVfs().registered() as vfs,
            ordered_sets(),
        ):
            world = World(plan, vfs, Path(name))
            try:
                yield world
            finally:
                world.abandon()
    finally:
        asyncio._set_running_loop(None)  # noqa: SLF001 - as the loops have set it
        random.setstate(state)


def run(plan: Plan, trace: Callable[[str], None] | None = None) -> World:
    """Run `plan`; returns the world as it is then.

    Raises:
        BrokenPromiseError: something was promised and not kept.
    """
    with a_world(plan) as world:
        world.run(trace)
        return world
