"""A TCP proxy on loopback that fails like a network, on request."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Self

_CHUNK_BYTES = 64 * 1024
_SMALL_CHUNK_BYTES = 4 * 1024  # of a throttled connection
_RST_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends a reset


class _Pair:
    """One client and the connection made to the server on its behalf."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.client, self.server = client, server

    @property
    def writers(self) -> tuple[asyncio.StreamWriter, asyncio.StreamWriter]:
        return self.client[1], self.server[1]

    def reset(self) -> None:
        """Drop both ends with a TCP reset, unsent bytes and all."""
        for writer in self.writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            writer.transport.abort()

    def fin(self) -> None:
        """Close both ends in order."""
        for writer in self.writers:
            writer.close()


class Proxy:
    """Forwards bytes between its own port and `host`:`port`.

    ``async with Proxy(host, port) as proxy:`` listens on ``127.0.0.1:proxy.port``.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._listener: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing: asyncio.Event
        self._refusing = False
        self._rate = 0.0  # bytes a second to the server; 0 is no limit
        self.port = 0
        self.accepted = 0
        """Connections accepted since the start."""
        self.bytes_to_server = 0
        self.bytes_to_client = 0

    def __repr__(self) -> str:
        return (
            f"<Proxy 127.0.0.1:{self.port} -> {self._host}:{self._port}, {self.connections} open>"
        )

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._pairs)

    async def __aenter__(self) -> Self:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._listener.wait_closed()

    def lead_to(self, port: int) -> None:
        """Connect to another port from now on."""
        self._port = port

    def cut(self) -> int:
        """Reset every connection, as a crashed host or a firewall does; returns how many."""
        return self._each("reset")

    def fin(self) -> int:
        """Close every connection in order, as a stopping host does; returns how many."""
        return self._each("fin")

    def stall(self) -> None:
        """Keep connections open, but forward nothing in either direction."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward bytes again; none was lost."""
        self._flowing.set()

    def throttle(self, bytes_a_second: float) -> None:
        """Limit the bytes per second to the server, on each connection; 0 means no limit."""
        self._rate = bytes_a_second

    def refuse(self) -> None:
        """Reset new connections; existing ones are kept."""
        self._refusing = True

    def accept(self) -> None:
        """Accept new connections again."""
        self._refusing = False

    def _each(self, how: str) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            getattr(pair, how)()
        return len(pairs)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            server = await self._connect()
        except BaseException:
            writer.transport.abort()
            raise
        if server is None:
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            writer.transport.abort()
            return
        await self._join(_Pair((reader, writer), server))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        if self._refusing:
            return None
        try:
            return await asyncio.open_connection(self._host, self._port)
        except OSError:
            return None

    async def _join(self, pair: _Pair) -> None:
        self._pairs.add(pair)
        self.accepted += 1
        flows = [
            asyncio.create_task(self._flow(pair, to_server=True), name="proxy: to server"),
            asyncio.create_task(self._flow(pair, to_server=False), name="proxy: to client"),
        ]
        try:
            await asyncio.wait(flows)
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.wait(flows)
            self._pairs.discard(pair)
            for writer in pair.writers:
                writer.transport.abort()

    async def _flow(self, pair: _Pair, *, to_server: bool) -> None:
        (reader, _), (_, writer) = (
            (pair.client, pair.server) if to_server else (pair.server, pair.client)
        )
        try:
            while data := await reader.read(_SMALL_CHUNK_BYTES if self._rate else _CHUNK_BYTES):
                if to_server and self._rate:
                    await asyncio.sleep(len(data) / self._rate)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
                if to_server:
                    self.bytes_to_server += len(data)
                else:
                    self.bytes_to_client += len(data)
            await self._flowing.wait()  # a stalled network does not carry FIN, either
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        except OSError:  # either end may reset at any time, which is a reset for the other
            await self._flowing.wait()
            pair.reset()
