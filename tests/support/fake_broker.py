"""The broker's side of a handshake, and of later methods as a script says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal, unmarshal
from pamqp.heartbeat import Heartbeat

Script = Callable[[Frame], list[Frame] | None]
"""Answers to a method; None gives the usual one, an empty list none."""

_USUAL: dict[type[Frame], Callable[[Any], Frame]] = {
    commands.Connection.Open: lambda _: commands.Connection.OpenOk(),
    commands.Connection.Close: lambda _: commands.Connection.CloseOk(),
    commands.Channel.Open: lambda _: commands.Channel.OpenOk(),
    commands.Channel.Close: lambda _: commands.Channel.CloseOk(),
    commands.Confirm.Select: lambda _: commands.Confirm.SelectOk(),
    commands.Basic.Qos: lambda _: commands.Basic.QosOk(),
    commands.Basic.Consume: lambda asked: commands.Basic.ConsumeOk(asked.consumer_tag),
    commands.Exchange.Declare: lambda _: commands.Exchange.DeclareOk(),
    commands.Queue.Declare: lambda asked: commands.Queue.DeclareOk(asked.queue, 0, 0),
    commands.Queue.Bind: lambda _: commands.Queue.BindOk(),
}


class FakeBroker:
    """Listens on a loopback port: ``async with FakeBroker() as broker:``.

    Args:
        tune: channel_max, frame_max and heartbeat to propose.
        script: overrides answers.
        context: for TLS.
        properties: its server properties; None gives its capabilities.
    """

    def __init__(
        self,
        *,
        tune: tuple[int, int, int] = (2047, 131_072, 60),
        script: Script = lambda method: None,
        context: ssl.SSLContext | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self._properties = _PROPERTIES if properties is None else properties
        self._tune, self._script, self._context = tune, script, context
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        self.methods: list[Frame] = []

    def heard(self, kind: type[Frame]) -> Any:
        """The last method of that kind."""
        return [method for method in self.methods if isinstance(method, kind)][-1]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer), name="fake broker")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(8)  # the protocol header
            self._send(writer, 0, commands.Connection.Start(server_properties=self._properties))
            while True:
                number, method = await _next(reader)
                if isinstance(method, Frame):
                    self.methods.append(method)
                    for answer in self._answers(method):
                        self._send(writer, number, answer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def _answers(self, method: Frame) -> list[Frame]:
        if isinstance(method, commands.Connection.StartOk):
            return [commands.Connection.Tune(*self._tune)]
        scripted = self._script(method)
        if scripted is not None:
            return scripted
        usual = _USUAL.get(type(method))
        return [] if usual is None else [usual(method)]

    def _send(self, writer: asyncio.StreamWriter, number: int, method: Frame) -> None:
        writer.write(marshal(method, number))


_PROPERTIES: dict[str, Any] = {
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
    }
}


async def _next(reader: asyncio.StreamReader) -> tuple[int, Frame | Heartbeat | Any]:
    head = await reader.readexactly(7)
    rest = await reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
    _, number, method = unmarshal(head + rest)
    return number, method
