"""One run: clients, network, server and disk, driven by the scheduler through a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from broker_client.config.loader import load_config
from tests.simulation.application import Application, a_config
from tests.simulation.disk import Disk, SimVfs
from tests.simulation.host import CONSUMER_TIMEOUT, PLACE, Machine, ServerMachine
from tests.simulation.plan import CLIENTS, Plan
from tests.simulation.running import Simulation, a_place

IN_ORDER = 7
"""Links lost in a row, each over a publish, after which a publish may overtake another."""


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
            variant=world.plan.variant,
            oversleep=CONSUMER_TIMEOUT * 1.5,
        )
        self.run(self.application.run(), lambda: None)

    def publish(self, publication: str, count: int) -> None:
        if self.loop is not None:
            self.application.publish(publication, count, self.loop)

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


class World(Simulation):
    """Two applications, the server and its disk."""

    def __init__(self, plan: Plan, vfs: SimVfs, folder: Path) -> None:
        super().__init__(plan)
        with self.threads.in_place():
            self.server = ServerMachine(
                self.scheduler, self.network, self.threads, vfs, folder, self.promises, self.chance
            )
            self.clients = {name: ClientMachine(name, self) for name in CLIENTS}

    @property
    def machines(self) -> Sequence[Machine]:
        return self.server, *self.clients.values()

    @property
    def disk(self) -> Disk:
        return self.server.disk

    def check_core(self) -> None:
        self.server.check()

    def held(self) -> int:
        return self.server.held()

    def is_publishing(self) -> bool:
        return any(client.application.is_publishing for client in self.clients.values())

    def losses(self) -> int:
        return self.network.ended

    # ---------------------------------------------------------------- steps

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

    def do_stop_server(self) -> None:
        if self.server.loop is not None:
            self.server.loop.call_soon(self.server.stop)

    def do_kill_client(self, client: str) -> None:
        self.clients[client].crash()

    # ---------------------------------------------------------------- the end

    def stop_faults(self) -> None:
        super().stop_faults()
        self.network.heal()

    def end(self) -> None:
        for client in self.clients.values():
            client.stop()
        self.await_end(*self.clients.values())
        self.server.stops = True
        if self.server.loop is not None:
            self.server.loop.call_soon(self.server.stop)
        self.await_end(self.server)

    def abandon(self) -> None:
        for client in self.clients.values():
            client.kill()
        self.server.disk.is_dead = True
        with self.threads.ending():
            self.server.kill()


@contextlib.contextmanager
def a_world(plan: Plan) -> Iterator[World]:
    """A world with a folder of its own."""
    with a_place(plan.seed) as (vfs, folder):
        world = World(plan, vfs, folder)
        try:
            yield world
        finally:
            world.abandon()


def run(plan: Plan, trace: Callable[[str], None] | None = None) -> World:
    """Run `plan`; returns the world as it is then.

    Raises:
        BrokenPromiseError: something was promised and not kept.
    """
    with a_world(plan) as world:
        world.run(trace)
        return world
