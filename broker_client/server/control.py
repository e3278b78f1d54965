"""The local socket beside the file of a node, by which commands reach the node of an application.

It is in the file system only while the node has the file open, with mode 0600, and lets in the user
of the process (and root) without a password. What connects speaks AMQP, or asks in lines of JSON
for what AMQP cannot do. Listening costs a file descriptor; the rest is loaded when somebody
connects. Nothing here fails the application: where the socket cannot be made, the log says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from broker_client.runtime.forks import leave_connection_to_parent, leave_to_parent

if TYPE_CHECKING:  # else everything of a server would be loaded with it
    from broker_client.node.node import Node
    from broker_client.server.admission import Admission
    from broker_client.server.session import Session

log: logging.Logger = logging.getLogger("broker_client.server")

_SUFFIX = ".sock"
_MAX_ADDRESS = 100  # bytes; the system takes 107 (unix(7)), elsewhere 103
_MAX_NAME = 60
_MAX_LINE = 65_536
_BACKLOG = 16
_ROOT = 0
_CLOSE_TIMEOUT = 1.0
_KEEP_PATH: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: SO_PEERCRED of unix(7)


def control_path(data: str) -> str:
    """Where the control socket of the file `data` is."""
    folder, name = os.path.split(os.path.realpath(data))
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return os.path.join(folder, name + _SUFFIX)


@contextlib.contextmanager
def short_address(path: str) -> Iterator[str]:
    """What to bind or connect to for the socket `path`, however long that is.

    A longer one goes by the folder's file descriptor (proc(5), so on Linux only).

    Raises:
        OSError: there is no such folder.
    """
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connected_socket(data: str) -> socket.socket | None:
    """A connection to the control socket of the file `data`; None without a listener."""
    try:
        with short_address(control_path(data)) as address:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                found.connect(address)
            except BaseException:
                found.close()
                raise
            return found
    except OSError:
        return None


_open: WeakKeyDictionary[Node, ControlSocket] = WeakKeyDictionary()


async def open_control(node: Node, data: str) -> ControlSocket | None:
    """Listen beside the file of `node`, until `ControlSocket.close`; None where that cannot be.

    Several may ask for one node: it listens until the last of them has closed.
    """
    control = _open.get(node)
    if control is None:
        control = ControlSocket(node, control_path(data))
        try:
            await control.start()
        except (OSError, NotImplementedError, AttributeError) as error:
            log.info("%s: no control socket: %s", control.path, error)
            return None
        _open[node] = control
    control.holders += 1
    return control


class ControlSocket:
    """Listens for commands to one node."""

    def __init__(self, node: Node, path: str) -> None:
        """
        Args:
            node: to be reached.
            path: of the socket.
        """
        self.node: Node = node
        self.path: str = path
        self.holders: int = 0
        self.sessions: set[Session] = set()
        self.transports: set[asyncio.Transport] = set()
        self._own: socket.socket
        self._listener: asyncio.Server | None = None
        self._release: weakref.finalize[[socket.socket, str, tuple[int, int, int]], ControlSocket]
        self._admission: Admission | None = None

    def __repr__(self) -> str:
        return f"<ControlSocket {self.path} connections={len(self.transports)}>"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: it cannot be made.
        """
        self._own = own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.setblocking(False)
            # The path gets the mode of the socket: at no time is it open to others.
            os.fchmod(own.fileno(), 0o600)
            with short_address(self.path) as address:
                self._remove_left_behind()
                own.bind(address)
                os.chmod(self.path, 0o600)  # where the system does not go by the socket's mode
                found = os.stat(self.path)
                # Also where the application ends without closing its Broker.
                made = (found.st_dev, found.st_ino, os.getpid())
                self._release = weakref.finalize(self, _remove, own, self.path, made)
            own.listen(_BACKLOG)
            leave_to_parent(own.fileno())
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_unix_server(
                lambda: _FirstWords(self), sock=own, **_KEEP_PATH
            )
        except BaseException:
            own.close()
            raise

    def _remove_left_behind(self) -> None:
        # Who has the file's lock has the socket, too: whatever is there is of a process that died.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise FileExistsError(f"{self.path} is not a socket")
            os.unlink(self.path)

    async def close(self) -> None:
        """Release it; the last holder closes the connections (320) and removes the socket."""
        self.holders -= 1
        if self.holders > 0 or self._listener is None:
            return
        if _open.get(self.node) is self:
            del _open[self.node]
        self._listener.close()
        self._listener = None
        self._release()
        for transport in list(self.transports):
            transport.abort()
        sessions = list(self.sessions)
        for session in sessions:
            session.closed(320, "CONNECTION_FORCED - the application closes the broker")
        if sessions:
            ended = [asyncio.create_task(each.wait_ended()) for each in sessions]
            await asyncio.wait(ended, timeout=_CLOSE_TIMEOUT)
            for session in list(self.sessions):
                session.abort("the application closes the broker")
            await asyncio.wait(ended)

    def session(self, user: str) -> Session:
        """The protocol of a new AMQP connection."""
        from broker_client.config.server import ServerConfig
        from broker_client.runtime.version import package_version
        from broker_client.server.admission import Admission
        from broker_client.server.connection_info import server_properties
        from broker_client.server.session import Session

        config = ServerConfig()
        if self._admission is None:
            self._admission = Admission(config)
        properties = server_properties(package_version())
        return Session(self.node, config, self._admission, self.sessions, properties, owner=user)


def _remove(own: socket.socket, path: str, made: tuple[int, int, int]) -> None:
    """Close a listening socket, and remove its path unless that is another's.

    Args:
        own: the socket.
        path: of it.
        made: its device and inode, and the process that made it: not a child of that.
    """
    own.close()
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino, os.getpid()) == made:
            os.unlink(path)


class _FirstWords(asyncio.Protocol):
    """One connection, until its first bytes tell what it speaks; then its lines of JSON."""

    def __init__(self, control: ControlSocket) -> None:
        self._control = control
        self._transport: asyncio.Transport
        self._received = b""
        self._user = ""
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        leave_connection_to_parent(transport)
        user = _peer(self._transport.get_extra_info("socket"))
        if user not in (os.geteuid(), _ROOT):
            log.warning("%s: refused the user %s", self._control.path, user)
            self._transport.abort()
            return
        self._user = f"uid {user}"
        self._control.transports.add(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.startswith(b"AMQP"):
            self._become_session()
        elif not self._received.startswith(b"{") or len(self._received) > _MAX_LINE:
            self._transport.abort()
        elif b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            self._answering = asyncio.create_task(self._answer(line), name="control: answer")

    def _become_session(self) -> None:
        session = self._control.session(self._user)
        self._control.transports.discard(self._transport)  # it is among the sessions from now on
        self._transport.set_protocol(session)
        session.connection_made(self._transport)
        session.data_received(self._received)

    async def _answer(self, line: bytes) -> None:
        from broker_client.server.control_commands import answer

        answered = await answer(self._control.node, line)
        if not self._transport.is_closing():
            self._transport.write(answered + b"\n")
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._control.transports.discard(self._transport)


def _peer(connection: socket.socket) -> int:
    """The user at the other end; -1 where the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[1])
    return os.geteuid()  # the mode of the path has let it in
