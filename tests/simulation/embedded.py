"""The built-in broker in the process of its application: both die together, over one file.

One application after the other opens the file: killed, without power between any two writes, on a
disk that fails, or stopped in order. Steps of the plan that name a client or the server mean this
one process.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from broker_client.config.loader import load_config
from broker_client.connection.substitutes import Substitutes
from broker_client.errors import TopologyError
from broker_client.node.node import Node
from broker_client.runtime.clock import Clock
from broker_client.store import writer
from broker_client.store.writer import SqliteStore
from tests.simulation.application import Application, a_config
from tests.simulation.disk import Disk, SimVfs
from tests.simulation.host import CONSUMER_TIMEOUT, Machine, check_node, is_refusal
from tests.simulation.journal import Journal, JournaledStore
from tests.simulation.loop import SimClock
from tests.simulation.plan import Plan
from tests.simulation.running import Simulation, a_place, logged_failures

_RESTART = 2.0  # seconds a supervisor waits, at most, before it starts the process again
_NODE = "node.db"


class EmbeddedMachine(Machine):
    """The process of application and broker, its disk, and who starts it again when it ends."""

    def __init__(self, world: EmbeddedWorld, vfs: SimVfs, folder: Path) -> None:
        super().__init__("app", world.scheduler, world.network)
        self._world, self._vfs, self._folder = world, vfs, folder
        self.application: Application
        self.journals: dict[str, Journal] = defaultdict(lambda: Journal(world.promises))
        """Of each file of a node: the broker's, and the outbox."""
        self.stops = False
        """When it ends now, it is for good."""
        self.ends = 0
        """How often it has ended."""
        self._ended_in_order = False
        self.disk = Disk(folder / "disk0")
        self.disk.folder.mkdir()
        vfs.mount(self.disk)
        world.threads.after_work = self._look_at_disk
        self.start()

    def start(self) -> None:
        world, disk = self._world, self.disk.folder
        variant = world.plan.variant
        config = a_config(f"embedded://{disk}/{_NODE}", "/", variant, disk)
        config["node"] = {"message_timeout": f"{CONSUMER_TIMEOUT:g}s", "memory_limit": 2_000}
        self.application = Application(
            f"{self.name}{self.lives + 1}",
            load_config(config),
            world.promises,
            salt=world.plan.seed,
            variant=variant,
            substitutes=Substitutes(clock=SimClock(self.scheduler)),
            oversleep=CONSUMER_TIMEOUT * 1.5,
        )
        self.run(self._live(), self._ended_by_itself)

    async def _live(self) -> None:
        in_order, self._ended_in_order = self._ended_in_order, False

        def journaled(path: str, clock: Clock) -> JournaledStore:
            store = SqliteStore(path, clock, wall=clock.now)
            return JournaledStore(store, self.journals[Path(path).name], in_order=in_order)

        self._world.new_store = journaled
        await self.application.run()
        self._ended_in_order = not any(each.has_failed for each in self.journals.values())

    # ---------------------------------------------------------------- its end

    @property
    def nodes(self) -> Sequence[Node]:
        broker = self.application.broker
        return () if self.loop is None or broker is None else broker.nodes.all()

    @property
    def has_failed(self) -> bool:
        broker = self.application.broker
        return broker is not None and broker.nodes.have_failed

    def may_fail(self, error: BaseException) -> bool:
        """Files are opened as it starts, and the topology is declared in one."""
        if isinstance(error, TopologyError) and "541 INTERNAL_ERROR" in str(error):
            return self.disk.faults > 0
        return is_refusal(self.disk, error)

    def stop(self) -> None:
        """As by a signal."""
        if self.loop is not None:
            self.loop.call_soon(self.application.stop)

    def crash(self, *, power: bool) -> None:
        """Kill it; the next life finds what the disk has."""
        if self.loop is None:
            return
        self.disk = self.disk.image(
            self._folder / f"disk{self.lives}", self._world.chance, power=power
        )
        self._vfs.mount(self.disk)
        self._ended_in_order = False
        with self._world.threads.ending():
            self.kill()
        self._ended_by_itself()

    def _ended_by_itself(self) -> None:
        self.ends += 1
        self._world.promises.abandon(self.application.name)
        if not self.stops:
            delay = self._world.chance.uniform(0.01, _RESTART)
            self.scheduler.world.call_later(delay, self._start_again)

    def _start_again(self) -> None:
        if self.loop is None:
            self.start()

    def _look_at_disk(self) -> None:
        if self.disk.is_dead:
            self.crash(power=True)


class EmbeddedWorld(Simulation):
    """That process alone."""

    def __init__(self, plan: Plan, vfs: SimVfs, folder: Path) -> None:
        super().__init__(plan)
        self.new_store: Callable[[str, Clock], JournaledStore]
        with self.threads.in_place():
            self.machine = EmbeddedMachine(self, vfs, folder)

    @property
    def machines(self) -> Sequence[Machine]:
        return (self.machine,)

    def make_store(self, path: str, clock: Clock) -> Any:
        """In place of `SqliteStore`."""
        return self.new_store(path, clock)

    @property
    def disk(self) -> Disk:
        return self.machine.disk

    def check_core(self) -> None:
        machine = self.machine
        if machine.loop is not None and machine.has_failed:
            machine.crash(power=False)  # who watches its health does so
        for node in machine.nodes:
            check_node(node)

    def held(self) -> int:
        nodes = self.machine.nodes
        if not nodes or self.machine.has_failed:
            return -1
        queues = [queue for node in nodes for queue in node.stats().queues]
        return sum(each.ready + each.in_flight + each.deferred for each in queues)

    def is_publishing(self) -> bool:
        return self.machine.loop is None or self.machine.application.is_publishing

    def losses(self) -> int:
        return self.machine.ends

    # ---------------------------------------------------------------- steps

    def do_publish(self, client: str, publication: str, count: int) -> None:
        if self.machine.loop is not None:
            self.machine.application.publish(publication, count, self.machine.loop)

    def do_kill_server(self) -> None:
        self.machine.crash(power=False)

    def do_cut_power(self) -> None:
        self.machine.crash(power=True)

    def do_stop_server(self) -> None:
        self.machine.stop()

    # ---------------------------------------------------------------- the end

    def end(self) -> None:
        self.machine.stops = True
        self.machine.stop()
        self.await_end(self.machine)

    def abandon(self) -> None:
        self.machine.disk.is_dead = True
        with self.threads.ending():
            self.machine.kill()


@contextlib.contextmanager
def a_world(plan: Plan) -> Iterator[EmbeddedWorld]:
    """A world with a folder of its own."""
    with a_place(plan.seed) as (vfs, folder):
        stores: list[EmbeddedWorld] = []
        with mock.patch.object(
            writer, "SqliteStore", lambda path, clock: stores[0].make_store(path, clock)
        ):
            world = EmbeddedWorld(plan, vfs, folder)
            stores.append(world)
            try:
                yield world
            finally:
                with logged_failures(world.promises):  # nobody need hear of them now
                    world.abandon()


def run(plan: Plan, trace: Callable[[str], None] | None = None) -> EmbeddedWorld:
    """Run `plan`; returns the world as it is then.

    Raises:
        BrokenPromiseError: something was promised and not kept.
    """
    with a_world(plan) as world:
        world.run(trace)
        return world
