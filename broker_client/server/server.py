"""The server: listeners in front of one node."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Sequence

from broker_client.config.listen import UNIX, ListenAddress
from broker_client.errors import ListenError
from broker_client.node.node import Node
from broker_client.server.session import Session

log = logging.getLogger("broker_client.server")


class Server:
    """Serves a node to the clients that connect to its addresses."""

    def __init__(self, node: Node, addresses: Sequence[ListenAddress]) -> None:
        """
        Args:
            node: is served; it is neither opened nor closed here.
            addresses: to listen on.
        """
        self._node, self._wanted = node, tuple(addresses)
        self._listeners: list[asyncio.Server] = []
        self._sessions: set[Session] = set()
        self.addresses: tuple[ListenAddress, ...] = ()
        """Where it listens, once it does, with the ports that the system has chosen."""

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.addresses)) or "not listening"
        return f"<Server {where} connections={len(self._sessions)}>"

    @property
    def connection_count(self) -> int:
        """Sockets of clients that are open."""
        return len(self._sessions)

    async def start(self) -> None:
        """Listen on every address, or on none.

        Raises:
            ListenError: an address cannot be listened on.
        """
        try:
            for address in self._wanted:
                self.addresses += tuple(await self._listen(address))
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, address: ListenAddress) -> list[ListenAddress]:
        loop = asyncio.get_running_loop()
        try:
            if address.scheme == UNIX:
                _remove_stale_socket(address.path)
                listener: asyncio.Server = await loop.create_unix_server(
                    self._new_session, address.path
                )
                self._listeners.append(listener)
                return [address]
            listener = await loop.create_server(self._new_session, address.host, address.port)
        except OSError as error:
            raise ListenError(str(address), _reason(error)) from error
        self._listeners.append(listener)
        ports = dict.fromkeys(socket.getsockname()[1] for socket in listener.sockets)
        return [address._replace(port=port) for port in ports]

    def _new_session(self) -> Session:
        return Session(self._node, self._sessions)

    async def close_connections(self) -> None:
        """Close every connection (320), and wait until their sockets are closed."""
        for session in list(self._sessions):
            session.closed(320, "CONNECTION_FORCED - broker forced connection closure")

    async def stop(self) -> None:
        """Stop listening, and close every connection (320). May be called more than once."""
        for listener in self._listeners:
            listener.close()
        for session in list(self._sessions):
            session.abort()
        self._listeners.clear()


def _remove_stale_socket(path: str) -> None:
    """Remove the socket that a server that is gone has left; one in use refuses the address."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    return os.strerror(error.errno) if error.errno else str(error)
