"""The server: listeners in front of one node."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import Any

from broker_client.config.listen import UNIX, ListenAddress
from broker_client.config.server import ServerConfig
from broker_client.errors import BrokerClosedError, ConfigError, Problem
from broker_client.node.node import Node
from broker_client.runtime.forks import leave_to_parent
from broker_client.runtime.version import package_version
from broker_client.server.admission import Admission
from broker_client.server.connection_info import ConnectionInfo, server_properties
from broker_client.server.event_lines import log_event
from broker_client.server.session import Session
from broker_client.server.sockets import ListeningSocket, inherited_sockets, open_sockets
from broker_client.server.tls import file_versions, server_context

_WITHIN_BUFFER = 8 * 1024
"""Of the sockets to a client in this process, in bytes (Linux takes twice as much): what is read
from them in one turn of the event loop holds up all others."""
_LOOK_INTERVAL = 2.0  # seconds between two looks at the disk and at the certificates
_KEEP_PATH: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""A listener that is closed for one with other certificates leaves the path of its socket."""
_SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure"


class Server:
    """Serves a node to the clients that connect to its addresses."""

    def __init__(
        self,
        node: Node,
        addresses: Sequence[ListenAddress],
        config: ServerConfig | None = None,
        *,
        data: str | None = None,
    ) -> None:
        """
        Args:
            node: is served; it is neither opened nor closed here.
            addresses: to listen on.
            config: limits, deadlines and certificates.
            data: file of the node, whose disk is watched; None for a node in memory.
        """
        self._node, self._wanted = node, tuple(addresses)
        self._config = config or ServerConfig()
        self._data_folder = None if data is None else os.path.dirname(os.path.abspath(data))
        self._admission = Admission(self._config)
        self._properties = server_properties(package_version())
        self._sessions: set[Session] = set()
        self._sockets: list[ListeningSocket] = []
        self._listeners: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None
        self._tls_files: tuple[object, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._disk_is_short = False
        self._is_stopping = False
        self._node_failed = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.addresses)) or "not listening"
        return f"<Server {where} connections={len(self._sessions)}>"

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """Where it listens, once it does, with the ports that the system has chosen."""
        return tuple(each.address for each in self._sockets)

    @property
    def socket_count(self) -> int:
        """Sockets of clients that are open, whether they have logged in or not."""
        return len(self._sessions)

    def connections(self) -> tuple[ConnectionInfo, ...]:
        """A snapshot of the connections with an open vhost."""
        found = [session.info() for session in self._sessions]
        return tuple(info for info in found if info is not None)

    def close_connection(self, name: str, reason: str) -> bool:
        """Close the connection of that name (320); False where there is none.

        Args:
            name: as in `ConnectionInfo`.
            reason: told to the client.
        """
        for session in self._sessions:
            info = session.info()
            if info is not None and info.name == name:
                session.closed(320, f"CONNECTION_FORCED - {reason}")
                return True
        return False

    async def connect_within(self) -> socket.socket:
        """Connect a client in this process, whatever addresses are listened on.

        Returns:
            Its end of a pair of sockets; it logs in as any other client does.

        Raises:
            BrokerClosedError: the server stops.
        """
        if self._is_stopping:
            raise BrokerClosedError("the server")
        own, theirs = socket.socketpair()
        for end in (own, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WITHIN_BUFFER)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._new_session, own)
        except BaseException:
            own.close()
            theirs.close()
            raise
        return theirs

    # ---------------------------------------------------------------- start

    async def start(self, *, inherited: bool = False) -> None:
        """Listen on every address, or on none.

        Args:
            inherited: listen on the sockets that systemd has passed on too; with some of them, no
                address is needed.

        Raises:
            ListenError: an address cannot be listened on.
            ConfigError: a certificate cannot be used, or is missing.
        """
        try:
            if inherited:
                self._sockets = inherited_sockets()
            for address in self._wanted:
                self._sockets += open_sockets(address)
            if any(each.address.scheme == "amqps" for each in self._sockets):
                self._load_certificates()
            await self._listen()
        except BaseException:
            await self.stop(0.0)
            raise
        self._look_around()

    async def _listen(self) -> None:
        """Serve connections of our sockets, until the listeners are closed."""
        loop = asyncio.get_running_loop()
        for listening, address, _ in self._sockets:
            # A listener closes its socket, and the next one, with other certificates, needs it.
            own = listening.dup()
            for each in (listening, own):
                leave_to_parent(each.fileno())
            if address.scheme == UNIX:
                listener = await loop.create_unix_server(
                    self._new_session, sock=own, start_serving=False, **_KEEP_PATH
                )
            elif address.scheme == "amqps":
                listener = await loop.create_server(
                    self._new_session,
                    sock=own,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._config.handshake_timeout,
                    ssl_shutdown_timeout=self._config.close_timeout,
                    start_serving=False,
                )
            else:
                listener = await loop.create_server(
                    self._new_session, sock=own, start_serving=False
                )
            self._listeners.append(listener)  # first, so that a stop meanwhile closes it too
            await listener.start_serving()

    def _new_session(self) -> Session:
        return Session(self._node, self._config, self._admission, self._sessions, self._properties)

    # ---------------------------------------------------------------- certificates

    async def reload(self) -> None:
        """Read the certificates again, for the connections from now on.

        Where they cannot be used, those from before stay, and a warning says why.
        """
        if self._tls is None:
            return
        try:
            self._load_certificates()
        except ConfigError as error:
            log_event(logging.WARNING, "certificates not reloaded", reason=error)
            return
        listeners, self._listeners = self._listeners, []
        try:
            await self._listen()
        finally:
            for listener in listeners:
                listener.close()
        log_event(logging.INFO, "certificates reloaded")

    def _load_certificates(self) -> None:
        config = self._config.tls
        if config is None:
            problem = "an amqps:// address needs certificates: certfile, and keyfile"
            raise ConfigError([Problem("server.tls", problem)])
        self._tls_files = file_versions(config)
        self._tls = server_context(config)

    # ---------------------------------------------------------------- what is looked after

    async def wait_failed(self) -> None:
        """Return when the node has failed: it serves nobody any more."""
        await self._node_failed.wait()

    def _look_around(self) -> None:
        if self._node.failure is not None:
            self._node_failed.set()
        self._look_at_disk()
        tls = self._config.tls
        if self._tls is not None and tls is not None and file_versions(tls) != self._tls_files:
            self._reloading = asyncio.create_task(self.reload(), name="server: reload")
        self._timer = asyncio.get_running_loop().call_later(_LOOK_INTERVAL, self._look_around)

    def _look_at_disk(self) -> None:
        if self._data_folder is None or not self._config.disk_free_limit:
            return
        try:
            found = os.statvfs(self._data_folder)
        except OSError:
            return  # the folder is gone; the store notices that itself
        free = found.f_bavail * found.f_frsize
        is_short = free < self._config.disk_free_limit
        if is_short != self._disk_is_short:
            self._disk_is_short = is_short
            event = "disk alarm" if is_short else "disk alarm over"
            log_event(logging.WARNING, event, free=free, limit=self._config.disk_free_limit)
            self._node.set_alarm("disk", is_short)

    # ---------------------------------------------------------------- stop

    def close_connections(self) -> None:
        """Close every connection (320)."""
        for session in list(self._sessions):
            session.closed(320, _SHUTDOWN)

    async def stop(self, timeout: float | None = None) -> None:
        """Stop listening, then close every connection in order. May be called more than once.

        Consumers are cancelled, confirms of what was published are sent, and connections are
        closed (320).

        Args:
            timeout: seconds until what is left is cut; `stop_timeout` when left out.
        """
        if timeout is None:
            timeout = self._config.stop_timeout
        self._is_stopping = True
        self._close_listeners()
        sessions = list(self._sessions)
        try:
            async with asyncio.timeout(timeout):
                for session in sessions:
                    session.cancel_consumers()
                if sessions:
                    await self._node.drain()
                self.close_connections()
                await _ended(self._sessions)
        except TimeoutError:
            pass
        self.abort()
        await _ended(self._sessions)

    def abort(self) -> None:
        """Stop listening and cut every connection, at once."""
        self._is_stopping = True
        self._close_listeners()
        for session in list(self._sessions):
            session.abort("the server stops")

    def _close_listeners(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reloading is not None:
            self._reloading.cancel()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for each in self._sockets:
            each.close()
        self._sockets.clear()


async def _ended(sessions: set[Session]) -> None:
    await asyncio.gather(*(session.wait_ended() for session in list(sessions)))
