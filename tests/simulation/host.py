"""Processes of the simulation: the server, and the clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest import mock

from broker_client.config.listen import ListenAddress
from broker_client.config.server import ServerConfig
from broker_client.core.settings import EngineSettings
from broker_client.errors import StoreCorruptError, StoreError
from broker_client.node.node import Node
from broker_client.server import server as server_module
from broker_client.server.server import Server
from broker_client.server.sockets import ListeningSocket
from broker_client.store.writer import SqliteStore
from tests.simulation.disk import Disk, SimVfs
from tests.simulation.journal import Journal, JournaledStore
from tests.simulation.loop import ProcessLoop, Scheduler, SimClock
from tests.simulation.network import Network
from tests.simulation.promises import Promises
from tests.simulation.threads import StoreThreads

NAME = "server"
PLACE = (NAME, 5672)
CONSUMER_TIMEOUT = 10.0
"""Seconds a delivery may stay unsettled."""
_CONFIG = ServerConfig(heartbeat=5, consumer_timeout=CONSUMER_TIMEOUT)
_RESTART = 2.0  # seconds a supervisor waits, at most, before it starts a process again


class Machine:
    """Runs one process after another, each with an event loop of its own."""

    def __init__(self, name: str, scheduler: Scheduler, network: Network) -> None:
        self.name = name
        self.scheduler, self.network = scheduler, network
        self.loop: ProcessLoop | None = None
        self.failures: list[dict[str, Any]] = []
        self.lives = 0

    def run(self, main: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        """Start a process, which ends with `main`."""
        self.lives += 1
        self.loop = loop = self.scheduler.new_loop(self.name)
        loop.failures = self.failures
        self.network.attach(loop)
        task = loop.create_task(main, name=self.name)
        task.add_done_callback(lambda done: self._ended(loop, done, ended))

    def _ended(
        self, loop: ProcessLoop, task: asyncio.Task[None], ended: Callable[[], None]
    ) -> None:
        if loop.is_dead:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.may_fail(error):
            self.failures.append({"message": f"{self.name} ends", "exception": error})
        # Its socket and tasks go with it, once this callback is over.
        self.scheduler.world.call_soon(self._clean_up, loop, ended)

    def _clean_up(self, loop: ProcessLoop, ended: Callable[[], None]) -> None:
        if not loop.is_dead:
            self.kill()
            ended()

    def may_fail(self, error: BaseException) -> bool:
        """Is that a reason for the process to end?"""
        return False

    def kill(self) -> None:
        """End the process at once."""
        loop, self.loop = self.loop, None
        if loop is not None:
            self.network.detach(loop)
            loop.kill()


class ServerMachine(Machine):
    """The built-in broker on a port, its file, and who starts it again when it ends."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        threads: StoreThreads,
        vfs: SimVfs,
        folder: Path,
        promises: Promises,
        chance: Random,
    ) -> None:
        super().__init__(NAME, scheduler, network)
        self.threads, self.vfs, self.chance = threads, vfs, chance
        self.folder = folder
        self.journal = Journal(promises)
        self.node: Node | None = None
        self.crashes = 0
        self.stops = False
        """When it ends now, it is for good."""
        self._stop_asked: asyncio.Event | None = None
        self._ended_in_order = True
        self._disks = 0
        self.disk = self._mounted(Disk(folder / "disk0"))
        self.disk.folder.mkdir()
        threads.after_work = self._look_at_disk
        self.start()

    def _mounted(self, disk: Disk) -> Disk:
        self.vfs.mount(disk)
        return disk

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        self.run(self._serve(), self._restart_later)

    async def _serve(self) -> None:
        self._stop_asked = asyncio.Event()
        clock = SimClock(self.scheduler)
        store = SqliteStore(str(self.disk.folder / "node.db"), clock, wall=clock.now)
        journaled = JournaledStore(store, self.journal, in_order=self._ended_in_order)
        self._ended_in_order = False
        self.node = node = Node(
            self.name, store=journaled, clock=clock, settings=EngineSettings(memory_limit=2_000)
        )
        try:
            await node.recover()
            node.administration.add_vhost("/")
            if node.access.add_default_user():
                await node.drain()
            server = Server(node, [ListenAddress("amqp", *PLACE)], _CONFIG)
            with (
                mock.patch.object(server_module, "open_sockets", _open_sockets),
                mock.patch.object(server_module, "leave_to_parent"),  # no process is forked
            ):
                await server.start()
            await self._until_stopped(server)
        finally:
            await node.close()
        self._ended_in_order = node.failure is None

    async def _until_stopped(self, server: Server) -> None:
        assert self._stop_asked is not None
        waits = [
            asyncio.create_task(server.wait_failed()),
            asyncio.create_task(self._stop_asked.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        await server.stop()

    def _restart_later(self) -> None:
        self.node = None
        if not self.stops:
            delay = self.chance.uniform(0.01, _RESTART)
            self.scheduler.world.call_later(delay, self._start_again)

    def _start_again(self) -> None:
        if self.loop is None:
            self.start()

    def may_fail(self, error: BaseException) -> bool:
        return is_refusal(self.disk, error)

    def stop(self) -> None:
        """As by a signal."""
        if self._stop_asked is not None:
            self._stop_asked.set()

    def crash(self, *, power: bool) -> None:
        """Kill it; the next life finds what the disk has."""
        if self.loop is None:
            return
        self.crashes += 1
        self._disks += 1
        self.disk = self._mounted(
            self.disk.image(self.folder / f"disk{self._disks}", self.chance, power=power)
        )
        self._ended_in_order = False
        self._stop_asked = None
        with self.threads.ending():
            self.kill()
        self._restart_later()

    def _look_at_disk(self) -> None:
        if self.disk.is_dead:
            self.crash(power=True)

    # ---------------------------------------------------------------- what is in it

    def check(self) -> None:
        """
        Raises:
            AssertionError: the core has lost or doubled a message.
        """
        node = self.node
        if node is None or node.failure is not None:
            return
        check_node(node)

    def held(self) -> int:
        """Messages in its queues, in whatever state; -1 while it is down."""
        if self.node is None or self.loop is None or self.node.failure is not None:
            return -1
        queues = self.node.stats().queues
        return sum(each.ready + each.in_flight + each.deferred for each in queues)


def is_refusal(disk: Disk, error: BaseException) -> bool:
    """Does `error` say that `disk` refused to write? That a file is damaged it may not say."""
    is_damage = isinstance(error, StoreCorruptError)
    return isinstance(error, StoreError) and disk.faults > 0 and not is_damage


def check_node(node: Node) -> None:
    """
    Raises:
        AssertionError: its core has lost or doubled a message.
    """
    node.engine.check_conservation()
    flying: set[int] = set()
    for channel in node.engine.state.channels.values():
        for entry in channel.ledger.entries():
            assert id(entry) not in flying, f"{entry} is in flight twice"
            flying.add(id(entry))


class _Socket:
    """A listening socket of the simulated network."""

    def getsockname(self) -> tuple[str, int]:
        return PLACE

    def fileno(self) -> int:
        return -1

    def dup(self) -> _Socket:
        return self

    def close(self) -> None: ...


def _open_sockets(address: ListenAddress) -> list[ListeningSocket]:
    return [ListeningSocket(cast(Any, _Socket()), address)]
