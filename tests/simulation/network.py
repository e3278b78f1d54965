"""A network in memory, with the promises of TCP and none besides.

Bytes arrive in order and once, in pieces that have nothing to do with those written, after a delay
drawn for each piece; or they never arrive, and then nothing behind them does. A connection may be
reset, and a path may be silent for a while in one direction or both, in which case what was sent
arrives when that is over. TCP does not reorder, duplicate or change bytes, so neither does this;
peers that send such bytes are what the fuzz tests are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.loop import ProcessLoop, Scheduler, SimServer

_BUFFER = 64 * 1024  # bytes under way, before who writes is told to pause
_CONNECT_TIMEOUT = 120.0  # seconds until the system gives up
_PUBLISH = bytes([0, 60, 0, 40])  # begins a basic.publish
_QUICK = 0.0005  # seconds that a piece takes, at most, while nothing slows it


class Network:
    """Who listens where, and which connections there are."""

    def __init__(self, scheduler: Scheduler, chance: Random) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.slowest = _QUICK
        self.ended = 0
        """Connections that have ended so far, for whatever reason."""
        self.storms: dict[str, int] = {}
        """How many more connections of a process are lost as soon as it publishes on them."""
        self._listeners: dict[tuple[str, int], tuple[ProcessLoop, Callable[[], Any]]] = {}
        self._connections: list[Connection] = []
        self._silent: dict[tuple[str, str], float] = {}
        """Until when, by the names of sender and receiver."""
        self._ports = 40_000

    def attach(self, loop: ProcessLoop) -> None:
        """Give `loop` its connection to the network."""

        async def connect(factory: Callable[[], Any], host: str, port: int) -> Any:
            return await self._connect(loop, factory, host, port)

        def listen(factory: Callable[[], Any], socket: Any) -> SimServer:
            place = socket.getsockname()

            def start() -> None:
                self._listeners[place] = loop, factory

            def stop() -> None:
                self._listeners.pop(place, None)

            return SimServer(stop, start)

        loop.connect, loop.listen = connect, listen

    def detach(self, loop: ProcessLoop) -> None:
        """The process is gone: its system closes its sockets, with a reset for what is unread."""
        self._listeners = {
            place: entry for place, entry in self._listeners.items() if entry[0] is not loop
        }
        for connection in list(self._connections):
            for end in connection.ends:
                if end.loop is loop:
                    end.die()

    # ---------------------------------------------------------------- faults

    def between(self, name: str) -> list[Connection]:
        """The open connections of the process `name`."""
        return [c for c in self._connections if any(end.loop.name == name for end in c.ends)]

    def cut(self, name: str) -> None:
        """Reset every connection of the process `name`; what was under way is lost."""
        for connection in self.between(name):
            connection.reset()

    def silence(self, sender: str, receiver: str, seconds: float) -> None:
        """Have nothing arrive on that path until the time is over."""
        until = self.scheduler.now + seconds
        self._silent[sender, receiver] = max(until, self.silent_until(sender, receiver))

    def silent_until(self, sender: str, receiver: str) -> float:
        return self._silent.get((sender, receiver), 0.0)

    def speed_up(self) -> None:
        self.slowest = _QUICK

    def heal(self) -> None:
        """Let all that was held up arrive now."""
        self.storms.clear()
        self._silent.clear()
        self.speed_up()
        for connection in self._connections:
            for end in connection.ends:
                end.arrive_now()

    def arrival(self, sender: str, receiver: str) -> float:
        """When a piece that is sent now will be there."""
        at = max(self.scheduler.now, self.silent_until(sender, receiver))
        return at + self.chance.uniform(0.0, self.slowest)

    # ---------------------------------------------------------------- connecting

    async def _connect(
        self, loop: ProcessLoop, factory: Callable[[], Any], host: str, port: int
    ) -> Any:
        there_and_back = self.chance.uniform(0.0, self.slowest)
        wait = self.silent_until(loop.name, host), self.silent_until(host, loop.name)
        delay = max(0.0, max(wait) - self.scheduler.now) + there_and_back
        await asyncio.sleep(min(delay, _CONNECT_TIMEOUT))
        if delay > _CONNECT_TIMEOUT:
            raise TimeoutError("connect")
        entry = self._listeners.get((host, port))
        if entry is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        self._ports += 1
        connection = Connection(self, loop, entry[0], (host, port), self._ports)
        self._connections.append(connection)
        protocol = factory()
        client, server = connection.ends
        client.begin(protocol)
        entry[0].call_soon(self._accept, server, entry[1])
        return client, protocol

    def _accept(self, end: End, factory: Callable[[], Any]) -> None:
        if not end.is_lost:
            end.begin(factory())

    def closed(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.ended += 1


class Connection:
    """Two ends."""

    def __init__(
        self,
        network: Network,
        client: ProcessLoop,
        server: ProcessLoop,
        place: tuple[str, int],
        port: int,
    ) -> None:
        self.network = network
        names = {"peername": ("127.0.0.1", place[1]), "sockname": ("127.0.0.1", port)}
        turned = {"peername": names["sockname"], "sockname": names["peername"]}
        one, two = End(self, client, names), End(self, server, turned)
        one.peer, two.peer = two, one
        self.ends = one, two

    def reset(self) -> None:
        self.network.closed(self)
        for end in self.ends:
            end.lose(ConnectionResetError(104, "Connection reset by peer"))


class End(asyncio.Transport):
    """One end of a connection, as a transport of asyncio."""

    peer: End

    def __init__(self, connection: Connection, loop: ProcessLoop, names: dict[str, Any]) -> None:
        super().__init__(names)
        self.loop = loop
        self.is_lost = False
        self._connection, self._network = connection, connection.network
        self._protocol: Any = None
        self._closing = False
        self._reading = True
        self._ended = False
        """The other side sends no more, and what it sent was read."""
        self._inbox: list[tuple[float, bytes]] = []
        """(arrival, piece) of what is under way to here; an empty piece is the end."""
        self._wakes_at = float("inf")
        self._high = _BUFFER
        self._paused_writing = False

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule()

    # ---------------------------------------------------------------- what arrives

    def push(self, data: bytes) -> None:
        """Something is sent to here."""
        sender = self.peer.loop.name
        at = self._network.arrival(sender, self.loop.name)
        if self._inbox:
            at = max(at, self._inbox[-1][0])
        self._inbox.append((at, data))
        self._schedule()

    def arrive_now(self) -> None:
        now = self._network.scheduler.now
        self._inbox = [(min(at, now), data) for at, data in self._inbox]
        self._wakes_at = float("inf")
        self._schedule()

    def _schedule(self) -> None:
        if self._inbox and self._protocol is not None and self._reading and not self.is_lost:
            at = self._inbox[0][0]
            if at < self._wakes_at:
                self._wakes_at = at
                self.loop.call_at(at, self._arrive, at)

    def _arrive(self, due: float) -> None:
        if due == self._wakes_at:
            self._wakes_at = float("inf")
        now = self._network.scheduler.now
        if self.is_lost or not self._reading or not self._inbox or self._inbox[0][0] > now:
            self._schedule()
            return
        data = self._inbox.pop(0)[1]
        while data and self._inbox and self._inbox[0][1] and self._inbox[0][0] <= now:
            if self._network.chance.random() < 0.5:
                break
            data += self._inbox.pop(0)[1]  # one read may find several pieces
        if data:
            if not self._closing:
                self._protocol.data_received(data)
            self.peer.has_room()
        elif not self._ended:
            self._ended = True
            if not self._protocol.eof_received() and not self.is_lost:
                self.close()
        self._schedule()

    # ---------------------------------------------------------------- the end

    def die(self) -> None:
        """The process of this end is gone. Its peer reads what was sent, and then of the end."""
        self.is_lost = True
        if self._network.chance.random() < 0.5 and not self._inbox:
            self.peer.push(b"")
        else:
            at = self._network.arrival(self.loop.name, self.peer.loop.name)
            self._network.scheduler.world.call_at(at, self._connection.reset)
        self._network.closed(self._connection)

    def lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._inbox.clear()
            if self._protocol is not None:
                self.loop.call_soon(self._protocol.connection_lost, error)

    def close(self) -> None:
        if not self._closing and not self.is_lost:
            self._closing = True
            self.peer.push(b"")
            self.loop.call_soon(self._closed)

    def _closed(self) -> None:
        self.lose(None)
        self._network.closed(self._connection)

    def abort(self) -> None:
        if not self.is_lost:
            self._network.closed(self._connection)
            self.lose(None)
            at = self._network.arrival(self.loop.name, self.peer.loop.name)
            error = ConnectionResetError(104, "Connection reset by peer")
            self.peer.loop.call_at(at, self.peer.lose, error)

    def is_closing(self) -> bool:
        return self._closing or self.is_lost

    # ---------------------------------------------------------------- what is sent

    def write(self, data: Any) -> None:
        if self._closing or self.is_lost or self.peer.is_lost or not data:
            return
        sent = data = bytes(data)
        chance = self._network.chance
        while len(data) > 1 and chance.random() < 0.3:
            at = chance.randrange(1, len(data))
            self.peer.push(data[:at])
            data = data[at:]
        self.peer.push(data)
        storms, name = self._network.storms, self.loop.name
        if storms.get(name) and _PUBLISH in sent:
            storms[name] -= 1
            self.loop.call_soon(self._connection.reset)
            return
        if self.get_write_buffer_size() > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def has_room(self) -> None:
        """The other side has read something."""
        if self._paused_writing and self.get_write_buffer_size() <= self._high // 4:
            self._paused_writing = False
            if not self.is_lost:
                self.loop.call_soon(self._protocol.resume_writing)

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for _, data in self.peer.unread)

    @property
    def unread(self) -> list[tuple[float, bytes]]:
        return self._inbox

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _BUFFER if high is None else high

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule()

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def can_write_eof(self) -> bool:
        return False
