"""The built-in broker behind the transport seam: links to a node in this process.

Addresses: `embedded://` is a node private to one `EmbeddedNodes`; `embedded://NAME` is shared by
that name within the event loop, while a link to it is open or an `EmbeddedNodes` holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from broker_client.clock import Clock
from broker_client.core.dispatch import EngineSettings
from broker_client.errors import (
    BrokerClosedError,
    ChannelClosedError,
    ConnectFailedError,
    ConnectionLostError,
    ReplyError,
    StoreError,
    TransportError,
    UnsupportedError,
)
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.node import Node
from broker_client.transport.base import Arguments, Capabilities, ConsumerCallbacks, QueueState

_CAPABILITIES = Capabilities(touch=True, deferred_requeue=True)
_YIELD_EVERY = 200  # publishes: a loop that only publishes must still let consumers have a turn
_NO_ARGUMENTS: Arguments = {}


class EmbeddedChannel:
    """One channel of an embedded link; also the node's receiver for it."""

    __slots__ = (
        "_consumers",
        "_engine",
        "_id",
        "_link",
        "_node",
        "_publish_seq",
        "_published",
        "_reason",
        "on_close",
        "on_confirm",
        "on_return",
    )

    def __init__(self, link: EmbeddedLink, node: Node, connection: int, *, confirm: bool) -> None:
        self.on_confirm: Callable[[int, int, bool], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_close: Callable[[TransportError], None] | None = None
        self._link, self._node, self._engine = link, node, node.engine
        self._id = node.open_channel(connection, self, confirm=confirm)
        self._publish_seq = 1 if confirm else 0
        self._published = 0
        self._consumers: dict[str, ConsumerCallbacks] = {}
        self._reason: ChannelClosedError | None = None

    def __repr__(self) -> str:
        state = "open" if self._reason is None else f"closed ({self._reason})"
        return f"<EmbeddedChannel {self._id} {state} consumers={len(self._consumers)}>"

    @property
    def is_usable(self) -> bool:
        return self._reason is None

    @property
    def next_publish_seq(self) -> int:
        return self._publish_seq

    # ---------------------------------------------------------------- publishing

    async def publish(self, batch: Sequence[Outgoing]) -> None:
        """Hand all of `batch` to the broker, in order.

        As over the network, a refusal (404 for a missing exchange) is not raised here: it closes
        the channel, and what stood after it is not published.
        """
        self._check()
        publish, channel, now = self._engine.publish, self._id, self._node.now()
        step = 1 if self._publish_seq else 0
        try:
            for outgoing in batch:
                publish(channel, outgoing, now)
                self._publish_seq += step
        except ReplyError as refusal:
            self._refused(refusal)
        self._node.wake()
        self._published += len(batch)
        if self._published >= _YIELD_EVERY:
            self._published = 0
            await asyncio.sleep(0)

    # ---------------------------------------------------------------- topology

    async def declare_exchange(
        self,
        name: str,
        type: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        self._check()
        try:
            self._engine.declare_exchange(
                self._id,
                name,
                type,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            )
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()

    async def check_exchange(self, name: str) -> None:
        self._check()
        try:
            self._engine.check_exchange(self._id, name)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._check()
        try:
            self._engine.delete_exchange(self._id, name, if_unused=if_unused)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueState:
        self._check()
        try:
            declared = self._engine.declare_queue(
                self._id,
                name,
                self._node.now(),
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return QueueState(*declared)

    async def check_queue(self, name: str) -> QueueState:
        self._check()
        try:
            declared = self._engine.check_queue(self._id, name, self._node.now())
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return QueueState(*declared)

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        self._check()
        try:
            count = self._engine.delete_queue(
                self._id, name, if_unused=if_unused, if_empty=if_empty
            )
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return count

    async def purge_queue(self, name: str) -> int:
        self._check()
        try:
            count = self._engine.purge_queue(self._id, name)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return count

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        self._bind(self._engine.bind_queue, queue, exchange, binding_key, arguments)

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        self._bind(self._engine.unbind_queue, queue, exchange, binding_key, arguments)

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        self._bind(self._engine.bind_exchange, destination, source, binding_key, arguments)

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        self._bind(self._engine.unbind_exchange, destination, source, binding_key, arguments)

    def _bind(
        self,
        command: Callable[[int, str, str, str, Arguments], None],
        destination: str,
        source: str,
        binding_key: str,
        arguments: Arguments | None,
    ) -> None:
        self._check()
        try:
            command(self._id, destination, source, binding_key, arguments or _NO_ARGUMENTS)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()

    # ---------------------------------------------------------------- consuming

    async def qos(self, prefetch: int) -> None:
        self._check()
        self._engine.qos(self._id, prefetch)

    async def consume(
        self,
        queue: str,
        callbacks: ConsumerCallbacks,
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
    ) -> str:
        self._check()
        try:
            tag = self._engine.consume(
                self._id,
                queue,
                self._node.now(),
                consumer_tag=consumer_tag,
                no_ack=no_ack,
                exclusive=exclusive,
                arguments=arguments,
            )
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._consumers[tag] = callbacks
        self._node.wake()
        return tag

    async def cancel(self, consumer_tag: str) -> None:
        self._check()
        self._engine.cancel(self._id, consumer_tag, self._node.now())
        await self._node.settled()  # deliveries made before may still arrive; none after this
        self._consumers.pop(consumer_tag, None)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        self._check()
        try:
            got = self._engine.get(self._id, queue, self._node.now(), no_ack=no_ack)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return None if got is None else got[0]

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._check()
        try:
            self._engine.ack(self._id, delivery_tag, self._node.now(), multiple=multiple)
        except ReplyError as refusal:
            self._refused(refusal)
        self._node.wake()

    def nack(self, delivery_tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        self._nack(delivery_tag, requeue=requeue, multiple=multiple)

    def requeue_later(self, delivery_tag: int, delay: float) -> None:
        self._nack(delivery_tag, requeue=True, delay=delay)

    def _nack(
        self,
        delivery_tag: int,
        *,
        requeue: bool,
        multiple: bool = False,
        delay: float | None = None,
    ) -> None:
        self._check()
        now = self._node.now()
        try:
            self._engine.nack(
                self._id, delivery_tag, now, requeue=requeue, multiple=multiple, delay=delay
            )
        except ReplyError as refusal:
            self._refused(refusal)
        self._node.wake()

    def touch(self, delivery_tag: int) -> float:
        self._check()
        left = self._engine.touch(self._id, delivery_tag, self._node.now())
        self._node.wake()
        return left

    # ---------------------------------------------------------------- closing

    async def close(self) -> None:
        if self._reason is not None:
            return
        self._reason = ChannelClosedError(0, "closed by its owner")
        await self._node.settled()
        self._node.close_channel(self._id)
        self._link.forget(self)

    def abort(self) -> None:
        if self._reason is None:
            self._reason = ChannelClosedError(0, "aborted by its owner")
        self._node.close_channel(self._id)
        self._link.forget(self)

    def lose(self, reason: str) -> bool:
        """Become unusable with the link; True if the channel was usable, so wants its notice."""
        was_usable = self._reason is None
        if was_usable:
            self._reason = ChannelClosedError(0, reason)
        self._node.close_channel(self._id)
        return was_usable

    def _check(self) -> None:
        if self._reason is not None:
            raise ChannelClosedError(self._reason.reply_code, self._reason.reply_text)

    def _refused(self, refusal: ReplyError) -> ChannelClosedError:
        """Close what the refused command costs, the channel or the whole connection."""
        if refusal.scope == "connection":
            self._link.fail(str(refusal))
            return ChannelClosedError(refusal.reply_code, refusal.reply_text)
        error = ChannelClosedError(refusal.reply_code, refusal.reply_text)
        self._reason = error
        self._engine.close_channel(self._id, self._node.now())
        self._link.forget(self)
        self._node.call_after_effects(lambda: self._end(error))  # confirms made before come first
        return error

    def _end(self, error: ChannelClosedError) -> None:
        self._node.close_channel(self._id)
        if self.on_close is not None:
            self.on_close(error)

    # ---------------------------------------------------------------- from the node

    def deliver(self, delivery: Delivery) -> None:
        """A delivery for one of the channel's consumers."""
        callbacks = self._consumers.get(delivery.consumer_tag)
        if callbacks is not None and self._reason is None:
            callbacks.on_delivery(delivery)

    def confirm(self, first: int, last: int, acked: bool) -> None:
        """Publishes `first`..`last` are confirmed, or refused."""
        if self.on_confirm is not None:
            self.on_confirm(first, last, acked)

    def returned(self, returned: Returned) -> None:
        """An unroutable mandatory message."""
        if self.on_return is not None:
            self.on_return(returned)

    def cancelled(self, consumer_tag: str) -> None:
        """A consumer's queue is gone."""
        callbacks = self._consumers.pop(consumer_tag, None)
        if callbacks is not None and self._reason is None:
            callbacks.on_cancel(consumer_tag)

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        """A delivery was too long in flight."""
        callbacks = self._consumers.get(consumer_tag)
        if callbacks is not None and self._reason is None:
            callbacks.on_message_timeout(delivery_tag)

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel."""
        if self._reason is None:
            self._reason = ChannelClosedError(reply_code, reply_text)
            self._link.forget(self)
            if self.on_close is not None:
                self.on_close(self._reason)


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
            await self._node.settled()
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
        self, *, clock: Clock | None = None, settings: EngineSettings | None = None
    ) -> None:
        """
        Args:
            clock: time source of the nodes made here.
            settings: limits of the nodes made here.
        """
        self._clock, self._settings = clock, settings
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
        return Node(name, clock=self._clock, settings=self._settings)


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
            return EmbeddedLink(self._url, node, self._vhost, self._nodes.hold(self._name))
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
