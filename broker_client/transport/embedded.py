"""The built-in broker behind the transport seam: links to a node in this process.

Addresses: `embedded://` is a node private to one `EmbeddedNodes`; `embedded://NAME` is shared by
that name within the event loop, while a link to it is open or an `EmbeddedNodes` holds it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from broker_client.clock import Clock
from broker_client.config_node import EventLogConfig
from broker_client.core.settings import EngineSettings
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    ConnectionLostError,
    StoreError,
    TransportError,
    UnsupportedError,
)
from broker_client.eventlog import EventLog
from broker_client.node.node import Node
from broker_client.transport.base import Capabilities
from broker_client.transport.embedded_channel import EmbeddedChannel

_CAPABILITIES = Capabilities(touch=True, deferred_requeue=True)


class EmbeddedLink:
    """One connection to a node in this process."""

    def __init__(self, url: str, node: Node, vhost: str, released: Callable[[], None]) -> None:
        self.on_close: Callable[[TransportError], None] | None = None
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self._url, self._node, self._vhost = url, node, vhost
        self._released = released
        self._channels: dict[EmbeddedChannel, None] = {}
        self._connection = node.open_connection(vhost, self)
        self._is_open = True

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<EmbeddedLink {self._url} vhost={self._vhost!r} {state}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    async def open_channel(self, *, confirm: bool = False) -> EmbeddedChannel:
        if not self._is_open:
            raise ConnectionLostError(self._url, "the link is closed")
        channel = EmbeddedChannel(self, self._node, self._connection, confirm=confirm)
        self._channels[channel] = None
        return channel

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._node.settled()
            finally:
                self._drop("link closed by its owner")

    def abort(self) -> None:
        self._is_open = False
        self._drop("link aborted by its owner")

    def fail(self, reason: str) -> None:
        """End as a lost connection would: what was in flight is requeued at once, then the
        channels' and the link's `on_close` are called from the event loop."""
        if self._is_open:
            self._is_open = False
            self._notify_later(self._drop(reason), reason)

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection."""
        self.fail(f"{reply_code} {reply_text}")

    def forget(self, channel: EmbeddedChannel) -> None:
        """The channel has ended by itself."""
        self._channels.pop(channel, None)

    def _drop(self, reason: str) -> list[EmbeddedChannel]:
        """Requeue everything; returns the channels that were usable."""
        lost = [channel for channel in list(self._channels) if channel.lose(reason)]
        self._channels.clear()
        self._node.close_connection(self._connection)
        self._released()
        return lost

    def _notify_later(self, channels: list[EmbeddedChannel], reason: str) -> None:
        loop = asyncio.get_running_loop()
        error = ConnectionLostError(self._url, reason)
        for channel in channels:
            if channel.on_close is not None:
                loop.call_soon(channel.on_close, error)
        if self.on_close is not None:
            loop.call_soon(self.on_close, error)


class _SharedNode:
    """A node and who holds it; it is closed when the last holder lets go."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.holders = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _SharedNode]] = WeakKeyDictionary()


class EmbeddedNodes:
    """The nodes that one owner, usually a Broker, holds alive until `close`."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        event_log: EventLogConfig | None = None,
    ) -> None:
        """
        Args:
            clock: time source of the nodes made here.
            settings: limits of the nodes made here.
            event_log: where the nodes made here write what happens to each message.
        """
        self._clock, self._settings, self._event_log = clock, settings, event_log
        self._private: Node | None = None
        self._held: dict[str, _SharedNode] = {}
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<EmbeddedNodes {state} private={self._private!r} shared={sorted(self._held)}>"

    def connector(self, url: str, vhost: str) -> EmbeddedConnector:
        """A connector to the node that `url` names.

        Raises:
            UnsupportedError: the address asks for a durable store or for options.
        """
        return EmbeddedConnector(self, url, _node_name(url), vhost)

    def node(self, name: str = "") -> Node:
        """The node of that name, made when there is none; the empty name is the private one.

        Raises:
            BrokerClosedError: `close` was called.
        """
        if self._closed:
            raise BrokerClosedError("EmbeddedNodes")
        if not name:
            if self._private is None:
                self._private = self._new_node("")
            return self._private
        if name not in self._held:
            here = _shared.setdefault(asyncio.get_running_loop(), {})
            if name not in here:
                here[name] = _SharedNode(self._new_node(name))
            self._held[name] = here[name]
            here[name].holders += 1
        return self._held[name].node

    def hold(self, name: str) -> Callable[[], None]:
        """Count one more holder of a shared node; returns what lets go of it, once."""
        if not name:
            return lambda: None
        return _Hold(name, self._held[name])

    async def close(self) -> None:
        """Close the private node; let go of the shared ones, and close those nobody holds."""
        self._closed = True
        if self._private is not None:
            await self._private.close()
        held, self._held = self._held, {}
        for name, shared in held.items():
            shared.holders -= 1
            if not shared.holders:
                _forget_shared(name, shared)
                await shared.node.close()

    def _new_node(self, name: str) -> Node:
        return Node(
            name,
            clock=self._clock,
            settings=self._settings,
            event_log=None if self._event_log is None else _open_event_log(name, self._event_log),
        )


def _open_event_log(name: str, config: EventLogConfig) -> EventLog | None:
    if config.path is None:
        return None
    return EventLog(
        config.path,
        name or socket.gethostname(),
        max_bytes=config.max_bytes,
        max_age=config.max_age,
        buffer=config.buffer,
    )


class _Hold:
    """One holder's claim to a shared node."""

    def __init__(self, name: str, shared: _SharedNode) -> None:
        self._name, self._shared = name, shared
        self._held = True
        shared.holders += 1

    def __call__(self) -> None:
        if not self._held:
            return
        self._held = False
        self._shared.holders -= 1
        if not self._shared.holders:
            _forget_shared(self._name, self._shared)
            self._shared.node.stop()


def _forget_shared(name: str, shared: _SharedNode) -> None:
    here = _shared.get(asyncio.get_running_loop(), {})
    if here.get(name) is shared:
        del here[name]


class EmbeddedConnector:
    """Makes links to one node and vhost."""

    def __init__(self, nodes: EmbeddedNodes, url: str, name: str, vhost: str) -> None:
        self._nodes, self._url, self._name, self._vhost = nodes, url, name, vhost

    def __repr__(self) -> str:
        return f"<EmbeddedConnector {self._url} vhost={self._vhost!r}>"

    @property
    def url(self) -> str:
        return self._url

    async def connect(self, *, timeout: float) -> EmbeddedLink:
        """Open a link, at once; any vhost name comes into being with its first link."""
        try:
            node = self._nodes.node(self._name)
            release = self._nodes.hold(self._name)
            try:
                return EmbeddedLink(self._url, node, self._vhost, release)
            except BaseException:
                release()
                raise
        except (BrokerClosedError, StoreError) as error:
            raise ConnectFailedError(self._url, str(error)) from error


def _node_name(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "embedded":
        raise UnsupportedError(url, "an embedded address starts with embedded://")
    if parts.path:
        raise UnsupportedError(url, "a durable store is not part of this version; use embedded://")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UnsupportedError(url, "an embedded address is embedded:// or embedded://NAME")
    return parts.netloc
