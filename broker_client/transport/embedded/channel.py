"""A channel of the built-in broker: commands go straight to the engine, what they bring about
comes back from the node in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from broker_client.amqp.properties import encode_properties
from broker_client.amqp.tables import encode_arguments
from broker_client.errors import ChannelClosedError, ReplyError, TransportError
from broker_client.message import PERSISTENT, Delivery, Outgoing, Returned
from broker_client.node.node import Node
from broker_client.transport.base import Arguments, ConsumerCallbacks, QueueState
from broker_client.transport.limits import SizeLimit

P = ParamSpec("P")
T = TypeVar("T")

_YIELD_EVERY = 200  # publishes: a loop that only publishes must still let consumers have a turn
_NO_ARGUMENTS: Arguments = {}


class Owner(Protocol):
    """What a channel needs of its link."""

    def fail(self, reason: str) -> None:
        """End the link, and with it every channel."""
        ...

    def block(self) -> None:
        """Tell its owner to stop publishing until there is room in memory."""
        ...

    def forget(self, channel: EmbeddedChannel) -> None:
        """The channel has ended by itself."""
        ...


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
        "size_limit",
    )

    def __init__(self, link: Owner, node: Node, connection: int, *, confirm: bool) -> None:
        self.on_confirm: Callable[[int, int, bool], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_close: Callable[[TransportError], None] | None = None
        self._link, self._node, self._engine = link, node, node.engine
        self._id = node.open_channel(connection, self, confirm=confirm)
        self.size_limit = SizeLimit(node.engine.settings.max_message_size, "node.max_message_size")
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
        if self._node.keeps:
            for outgoing in batch:
                properties = outgoing.properties
                if properties.headers and properties.delivery_mode == PERSISTENT:
                    encode_properties(properties)  # what it refuses cannot be kept
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
        if self._engine.is_short_of_memory:
            self._link.block()
        if self._node.is_behind:
            await self._node.settled()
        elif self._published >= _YIELD_EVERY:
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
        await self._change(
            self._engine.declare_exchange,
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )

    async def check_exchange(self, name: str) -> None:
        self._do(self._engine.check_exchange, name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        await self._change(self._engine.delete_exchange, name, if_unused=if_unused)

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueState:
        declared = await self._change(
            self._engine.declare_queue,
            name,
            self._node.now(),
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
        )
        return QueueState(*declared)

    async def check_queue(self, name: str) -> QueueState:
        declared = self._do(self._engine.check_queue, name, self._node.now())
        return QueueState(*declared)

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        return await self._change(
            self._engine.delete_queue, name, if_unused=if_unused, if_empty=if_empty
        )

    async def purge_queue(self, name: str) -> int:
        return await self._change(self._engine.purge_queue, name)

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(self._engine.bind_queue, queue, exchange, binding_key, arguments)

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(self._engine.unbind_queue, queue, exchange, binding_key, arguments)

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(self._engine.bind_exchange, destination, source, binding_key, arguments)

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(self._engine.unbind_exchange, destination, source, binding_key, arguments)

    async def _bind(
        self,
        command: Callable[[int, str, str, str, Arguments], None],
        destination: str,
        source: str,
        binding_key: str,
        arguments: Arguments | None,
    ) -> None:
        await self._change(command, destination, source, binding_key, arguments or _NO_ARGUMENTS)

    async def _change(
        self, command: Callable[Concatenate[int, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Carry a command out; where there is a file, return once it is on the disk."""
        result = self._do(command, *args, **options)
        if self._node.keeps:
            await self._node.settled()
            self._check_store()
        return result

    # ---------------------------------------------------------------- consuming

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        self._check()
        self._engine.qos(self._id, prefetch, self._node.now(), shared=shared)
        self._node.wake()

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
        tag = self._do(
            self._engine.consume,
            queue,
            self._node.now(),
            consumer_tag=consumer_tag,
            no_ack=no_ack,
            exclusive=exclusive,
            arguments=arguments,
        )
        self._consumers[tag] = callbacks
        return tag

    async def cancel(self, consumer_tag: str) -> None:
        self._check()
        self._engine.cancel(self._id, consumer_tag, self._node.now())
        await self._node.settled()  # deliveries made before may still arrive; none after this
        self._consumers.pop(consumer_tag, None)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        got = self._do(self._engine.get, queue, self._node.now(), no_ack=no_ack)
        self._check_store()
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

    def release(self, delivery_tag: int) -> None:
        self._nack(delivery_tag, requeue=True)

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
        try:
            await self._node.settled()
        finally:
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

    def _do(
        self, command: Callable[Concatenate[int, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Carry a command out at once; a refusal closes the channel and is raised."""
        self._check()
        if self._node.keeps and (arguments := options.get("arguments")):
            encode_arguments(arguments)  # type: ignore[arg-type]  # what it refuses cannot be kept
        try:
            result = command(self._id, *args, **options)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal
        self._node.wake()
        return result

    def _check(self) -> None:
        if self._reason is not None:
            raise ChannelClosedError(self._reason.reply_code, self._reason.reply_text)

    def _check_store(self) -> None:
        if self._node.failure is not None:
            raise ChannelClosedError(541, f"INTERNAL_ERROR - {self._node.failure}")

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
