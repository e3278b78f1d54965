"""A connection to a node in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_client.errors import ConnectionLostError, TransportError
from broker_client.node.node import Node
from broker_client.transport.base import Capabilities
from broker_client.transport.embedded.channel import EmbeddedChannel

_CAPABILITIES = Capabilities(touch=True, deferred_requeue=True, lasting_consumers=True)


class EmbeddedLink:
    """One connection to a node in this process."""

    def __init__(
        self,
        url: str,
        node: Node,
        vhost: str,
        released: Callable[[], None],
        *,
        consumer_timeout: float | None = None,
    ) -> None:
        """
        Args:
            url: to be shown.
            node: that is connected to.
            vhost: of it.
            released: called when the link has ended.
            consumer_timeout: seconds that a delivery may be in flight, instead of the node's
                message time-out.
        """
        self.on_close: Callable[[TransportError], None] | None = None
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.used_at: float = float("-inf")  # nothing depends on it: a node is there, or it is not
        self._url, self._node, self._vhost = url, node, vhost
        self._released, self._consumer_timeout = released, consumer_timeout
        self._channels: list[EmbeddedChannel] = []
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

    def keep_header_types(self) -> None: ...

    async def open_channel(self, *, confirm: bool = False) -> EmbeddedChannel:
        if not self._is_open:
            raise ConnectionLostError(self._url, "the link is closed")
        channel = EmbeddedChannel(
            self._node, self._connection, confirm=confirm, consumer_timeout=self._consumer_timeout
        )
        self._channels = [each for each in self._channels if each.is_usable]
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._node.drain()
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
            self._drop(reason)
            if self.on_close is not None:
                error = ConnectionLostError(self._url, reason)
                asyncio.get_running_loop().call_soon(self.on_close, error)

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection."""
        self.fail(f"{reply_code} {reply_text}")

    def blocked(self, reason: str) -> None:
        """The node is short of memory."""
        if self.on_blocked is not None:
            asyncio.get_running_loop().call_soon(self.on_blocked, reason)

    def unblocked(self) -> None:
        """There is room again."""
        if self._is_open and self.on_unblocked is not None:
            self.on_unblocked()

    def _drop(self, reason: str) -> None:
        """Requeue everything, and notify the channels, from the event loop, of their end.

        They are also notified when we end the link: what was opened on it meanwhile must not wait
        for deliveries that never come.
        """
        loop = asyncio.get_running_loop()
        for channel in self._channels:
            if channel.lose(reason) and channel.on_close is not None:
                loop.call_soon(channel.on_close, ConnectionLostError(self._url, reason))
        self._channels.clear()
        self._node.close_connection(self._connection)
        self._released()
