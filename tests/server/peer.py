"""A client on a plain socket that can send anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame
from pamqp.heartbeat import Heartbeat

HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_TIMEOUT = 60.0


class Peer:
    """One connection; frames are sent unchanged, and read on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._received = b""
        self.heartbeats = 0

    @classmethod
    async def connect(cls, port: int, **options: Any) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    @classmethod
    async def open(cls, port: int, *, heartbeat: int = 0, **capabilities: bool) -> Self:
        """Connect, log in as guest and open the vhost ``/``."""
        peer = await cls.connect(port)
        try:
            await peer.log_in(heartbeat, capabilities)
        except BaseException:
            await peer.close()
            raise
        return peer

    @classmethod
    @contextlib.asynccontextmanager
    async def on_channel(cls, port: int) -> AsyncIterator[Self]:
        """Such a client with channel 1 open, closed at the end."""
        peer = await cls.open(port)
        try:
            await peer.channel()
            yield peer
        finally:
            await peer.close()

    async def log_in(self, heartbeat: int, capabilities: dict[str, bool]) -> None:
        self.write(HEADER)
        await self.expect(commands.Connection.Start)
        named = {name.replace("__", "."): on for name, on in capabilities.items()}
        properties: Any = {"capabilities": named}
        self.send(0, commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"))
        tune = await self.expect(commands.Connection.Tune)
        self.send(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat))
        self.send(0, commands.Connection.Open("/"))
        await self.expect(commands.Connection.OpenOk)

    async def channel(self, number: int = 1) -> None:
        self.send(number, commands.Channel.Open())
        await self.expect(commands.Channel.OpenOk)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, channel: int, method: Frame) -> None:
        self.write(pamqp.frame.marshal(method, channel))

    async def receive(self) -> Any:
        """The next method; content and heartbeats are skipped.

        Raises:
            EOFError: the server has closed the socket.
        """
        while True:
            frame = await self._frame()
            if isinstance(frame, Heartbeat):
                self.heartbeats += 1
            elif isinstance(frame, Frame):
                return frame

    async def expect(self, kind: type[Any]) -> Any:
        got = await self.receive()
        assert isinstance(got, kind), got
        return got

    async def _frame(self) -> Any:
        while True:
            if len(self._received) >= 7:
                size = int.from_bytes(self._received[3:7], "big") + 8
                if len(self._received) >= size:
                    data, self._received = self._received[:size], self._received[size:]
                    return pamqp.frame.unmarshal(data)[2]
            async with asyncio.timeout(_TIMEOUT):
                more = await self.reader.read(65536)
            if not more:
                raise EOFError
            self._received += more

    async def ended(self) -> bytes:
        """All frames until the server closes the socket."""
        async with asyncio.timeout(_TIMEOUT):
            try:
                return self._received + await self.reader.read(-1)
            except ConnectionError:
                return self._received

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
