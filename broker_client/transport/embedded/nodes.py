"""Maps embedded addresses to nodes, and owns these.

Addresses: `embedded://` is a node private to one `EmbeddedNodes`; `embedded://NAME` is shared by
that name within the event loop, while a link to it is open or an `EmbeddedNodes` holds it. A node
with a file, `embedded:///path/to.db` or `embedded://./to.db`, is shared by its file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from broker_client.config.node import NodeConfig
from broker_client.config.url import parse_url
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    StoreError,
    UnknownNameError,
    UnsupportedError,
)
from broker_client.runtime.clock import Clock

if TYPE_CHECKING:  # so that programs with another broker do not load this one
    from broker_client.core.settings import EngineSettings
    from broker_client.node.node import Node
    from broker_client.store.base import Store
    from broker_client.transport.embedded.link import EmbeddedLink


class _SharedNode:
    """A node and its holders; it is closed when the last holder releases it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.holders = 0
        self.opening: asyncio.Task[None] | None = None
        """Brings back what its file holds; None where there is no file."""


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _SharedNode]] = WeakKeyDictionary()
_leaving: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, Store]] = (
    WeakKeyDictionary()
)
"""Stores of nodes without links, kept until each has closed its file."""


_NONE: WeakValueDictionary[str, Store] = WeakValueDictionary()


class NodeAddress(NamedTuple):
    """Which node: one of a file, one of a name in the event loop, or a private one."""

    name: str
    path: str = ""

    @property
    def key(self) -> str:
        """What two addresses of one node have in common; "" for a private one."""
        return f"file:{os.path.realpath(self.path)}" if self.path else self.name


class EmbeddedNodes:
    """The nodes that one owner, usually a Broker, holds alive until `close`."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        config: NodeConfig | None = None,
    ) -> None:
        """
        Args:
            clock: time source of the nodes made here.
            settings: limits of the nodes made here.
            config: of the scan loop, the event log, and the limits that are not given.
        """
        self._clock, self._settings = clock, settings
        self._config = config
        self._private: Node | None = None
        self._held: dict[str, _SharedNode] = {}
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<EmbeddedNodes {state} private={self._private!r} shared={sorted(self._held)}>"

    def connector(self, url: str, vhost: str) -> EmbeddedConnector:
        """A connector to the node that `url` names.

        Raises:
            UnsupportedError: it is not an address of the built-in broker.
        """
        return EmbeddedConnector(self, url, _address(url), vhost)

    def node(self, name: str = "") -> Node:
        """The node with this name, created if necessary.

        Args:
            name: of ``embedded://NAME``; or the address of a file that is open. By default, the
                node behind ``embedded://``, else the only open one.

        Raises:
            UnknownNameError: the file is not open.
            BrokerClosedError: `close` was called.
        """
        if "://" in name:
            return self._opened(name)
        if not name and self._private is None and len(self._held) == 1:
            [shared] = self._held.values()
            return shared.node
        return self._named(name)

    def has(self, url: str) -> bool:
        """True while the node of the file that `url` names is open."""
        return _address(url).key in self._held

    def all(self) -> tuple[Node, ...]:
        held = tuple(shared.node for shared in self._held.values())
        return held if self._private is None else (self._private, *held)

    @property
    def have_failed(self) -> bool:
        """True once the store of a node has failed; the node then accepts no connections."""
        nodes = [shared.node for shared in self._held.values()]
        return any(node.failure is not None for node in nodes)

    def _opened(self, url: str) -> Node:
        address = _address(url)
        if not address.path:
            return self._named(address.name)
        if address.key not in self._held:
            files = [shared.node.name for shared in self._held.values() if shared.opening]
            raise UnknownNameError("built-in broker", address.path, files)
        return self._held[address.key].node

    def _named(self, name: str) -> Node:
        if self._closed:
            raise BrokerClosedError("EmbeddedNodes")
        if name:
            return self._share(name, lambda: self._new_node(name)).node
        if self._private is None:
            self._private = self._new_node("")
        return self._private

    async def open(self, address: NodeAddress) -> Node:
        """The node of `address`, with what its file holds.

        Several may wait for one node to open; to be cancelled does not stop it.

        Raises:
            BrokerClosedError: `close` was called.
            StoreError: the file cannot be used.
        """
        if not address.path:
            return self._named(address.name)
        key = address.key
        before = _leaving.get(asyncio.get_running_loop(), _NONE).get(key)
        if before is not None:
            await before.close()
        if self._closed:
            raise BrokerClosedError("EmbeddedNodes")
        shared = self._share(key, lambda: self._new_node(address.path, durable=True))
        if shared.opening is None:
            shared.opening = asyncio.create_task(shared.node.recover(), name=f"open {address.path}")
        try:
            await asyncio.shield(shared.opening)
        except StoreError:
            _forget_shared(key, shared)
            if self._held.get(key) is shared:
                del self._held[key]
            shared.node.stop()
            raise
        return shared.node

    def _share(self, key: str, make: Callable[[], Node]) -> _SharedNode:
        if key not in self._held:
            here = _shared.setdefault(asyncio.get_running_loop(), {})
            if key not in here:
                here[key] = _SharedNode(make())
            self._held[key] = here[key]
            here[key].holders += 1
        return self._held[key]

    def hold(self, key: str) -> Callable[[], None]:
        """Add a holder of a shared node; returns a function that releases it, once."""
        if not key:
            return lambda: None
        return _Hold(key, self._held[key])

    async def close(self) -> None:
        """Close the private node; release the shared ones, and close those without holders."""
        self._closed = True
        if self._private is not None:
            await self._private.close()
        held, self._held = self._held, {}
        for key, shared in held.items():
            shared.holders -= 1
            if not shared.holders:
                if shared.opening is not None:
                    await asyncio.wait([shared.opening])
                _leave(key, shared)
                await shared.node.close()

    def _new_node(self, name: str, *, durable: bool = False) -> Node:
        from broker_client.node.making import engine_settings, make_node, scan_settings

        if self._config is None:
            return make_node(name, durable=durable, clock=self._clock, settings=self._settings)
        return make_node(
            name,
            durable=durable,
            clock=self._clock,
            settings=self._settings or engine_settings(self._config),
            scan=scan_settings(self._config),
            event_log=self._config.event_log,
        )


class _Hold:
    """One holder's claim to a shared node."""

    def __init__(self, key: str, shared: _SharedNode) -> None:
        self._key, self._shared = key, shared
        self._held = True
        shared.holders += 1

    def __call__(self) -> None:
        if not self._held:
            return
        self._held = False
        self._shared.holders -= 1
        if not self._shared.holders:
            _leave(self._key, self._shared)
            self._shared.node.stop()


def _leave(key: str, shared: _SharedNode) -> None:
    """The last holder is gone: the next one of its file waits until the node has closed it."""
    _forget_shared(key, shared)
    if shared.node.keeps:
        leaving = _leaving.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        leaving[key] = shared.node.store


def _forget_shared(key: str, shared: _SharedNode) -> None:
    here = _shared.get(asyncio.get_running_loop(), {})
    if here.get(key) is shared:
        del here[key]


class EmbeddedConnector:
    """Makes links to one node and vhost."""

    def __init__(self, nodes: EmbeddedNodes, url: str, address: NodeAddress, vhost: str) -> None:
        self._nodes, self._url, self._address, self._vhost = nodes, url, address, vhost

    def __repr__(self) -> str:
        return f"<EmbeddedConnector {self._url} vhost={self._vhost!r}>"

    @property
    def url(self) -> str:
        return self._url

    async def connect(self, *, timeout: float) -> EmbeddedLink:
        """Open a link; a vhost is created with its first link.

        At once, but for the first link to a file, which waits until the file has been read.
        """
        from broker_client.transport.embedded.link import EmbeddedLink

        try:
            node = await self._nodes.open(self._address)
            release = self._nodes.hold(self._address.key)
            try:
                return EmbeddedLink(self._url, node, self._vhost, release)
            except BaseException:
                release()
                raise
        except (BrokerClosedError, StoreError) as error:
            raise ConnectFailedError(self._url, str(error)) from error


def file_url(path: str) -> str:
    """The address of the node with the file at `path`."""
    return f"embedded://{os.path.abspath(path)}"


def _address(url: str) -> NodeAddress:
    if not url.lower().startswith("embedded://"):
        raise UnsupportedError(url, "an embedded address starts with embedded://")
    try:
        parts = parse_url(url)
    except ValueError as error:
        raise UnsupportedError(url, str(error)) from None
    return NodeAddress(parts.hostname, parts.path)
