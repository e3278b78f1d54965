"""The socket of a link, made before aiormq gets it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiormq.connection import TransportFactory
from yarl import URL

from broker_client.runtime.forks import leave_connection_to_parent
from broker_client.transport.rabbitmq.reader import FrameReader, LinkReceiver
from broker_client.transport.rabbitmq.rewritten_frames import Limits


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """Tells the link at once when the socket is gone."""

    def __init__(self, reader: FrameReader, link: LinkReceiver) -> None:
        super().__init__(reader, loop=asyncio.get_running_loop())
        self._link = link
        self.is_full: bool = False
        """True while the transport's buffer is full."""

    def pause_writing(self) -> None:
        self.is_full = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.is_full = False
        super().resume_writing()

    def eof_received(self) -> bool | None:
        self._link.socket_lost(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.socket_lost(exc)
        super().connection_lost(exc)


class Streams(TransportFactory):
    """The socket that aiormq gets; we have access to both of its ends."""

    def __init__(self, link: LinkReceiver, limits: Limits) -> None:
        self._link = link
        self._limits = limits
        self.reader: FrameReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self._protocol: _StreamProtocol | None = None

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Connect, with TLS when there is a `context`.

        Before aiormq comes in: it logs an error for each address where nothing listens.
        """
        loop = asyncio.get_running_loop()
        reader = FrameReader(self._link, self._limits)
        protocol = _StreamProtocol(reader, self._link)
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=context)
        self._opened(reader, protocol, transport)

    async def open_local(self, connected: socket.socket) -> None:
        """Take a Unix domain socket that is connected."""
        loop = asyncio.get_running_loop()
        reader = FrameReader(self._link, self._limits)
        protocol = _StreamProtocol(reader, self._link)
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=connected)
        self._opened(reader, protocol, transport)

    def _opened(
        self, reader: FrameReader, protocol: _StreamProtocol, transport: asyncio.Transport
    ) -> None:
        leave_connection_to_parent(transport)
        loop = asyncio.get_running_loop()
        self.reader, self._protocol = reader, protocol
        self.writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.reader is not None, "`open` comes first"
        assert self.writer is not None
        return self.reader, self.writer

    @property
    def has_heard(self) -> bool:
        """True once there were bytes from the broker."""
        return self.reader is not None and self.reader.has_heard

    @property
    def takes_more(self) -> bool:
        """False while too much of what was written waits for the socket, and once that is lost."""
        protocol, writer = self._protocol, self.writer
        if protocol is None or writer is None or protocol.is_full:
            return False
        return not writer.transport.is_closing()

    def abort(self) -> None:
        """Drop the socket, if there is one."""
        if self.reader is not None:
            self.reader.abandon()
        if self.writer is not None:
            self.writer.transport.abort()
