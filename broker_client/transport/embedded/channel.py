"""A channel of the built-in broker: commands go straight to the node, and what they bring about
comes back from it in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar, Unpack

from broker_client.amqp.encode import as_received
from broker_client.amqp.properties import ReceivedProperties, plain_properties
from broker_client.amqp.table_decoding import decode_arguments
from broker_client.core.commands.consume import BasicConsumeArguments
from broker_client.core.commands.topology import ExchangeDeclareArguments, QueueDeclareArguments
from broker_client.core.exchange import Destination
from broker_client.core.settle_results import Done
from broker_client.core.state import CHANNEL_IS_GONE
from broker_client.errors import (
    ChannelClosedError,
    ReplyError,
    StaleDeliveryError,
    TransportError,
)
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.node.node import Node
from broker_client.transport.base import (
    Arguments,
    ConsumerCallbacks,
    QueueState,
)
from broker_client.transport.limits import SizeLimit
from broker_client.transport.method_arguments import check_names, check_prefetch, encoded_arguments

P = ParamSpec("P")
T = TypeVar("T")

_YIELD_EVERY = 200  # publishes: a loop that only publishes must still let consumers have a turn
_FRAME_MAX = 131_072  # bytes, as RabbitMQ has it by default: headers must fit into one frame


class EmbeddedChannel:
    """One channel of an embedded link; also the node's receiver for it."""

    __slots__ = (
        "_acks",
        "_commands",
        "_consumers",
        "_id",
        "_is_refused",
        "_node",
        "_publish_seq",
        "_published",
        "_reason",
        "is_usable",
        "on_close",
        "on_confirm",
        "on_return",
        "size_limit",
    )

    def __init__(
        self, node: Node, connection: int, *, confirm: bool, consumer_timeout: float | None = None
    ) -> None:
        self.on_confirm: Callable[[int, int, bool], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_close: Callable[[TransportError], None] | None = None
        self._node, self._commands = node, node.commands
        self._id = node.open_channel(
            connection, self, confirm=confirm, consumer_timeout=consumer_timeout
        )
        self.size_limit: SizeLimit = SizeLimit(node.max_message_size, "node.max_message_size")
        self._publish_seq = 1 if confirm else 0
        self._published = 0
        self._consumers: dict[str, ConsumerCallbacks] = {}
        self._acks: dict[int, None] = {}
        """Delivery tags acked in this turn of the loop: the node gets them together, before the
        next command of this channel at the latest."""
        self.is_usable: bool = True
        self._reason: ChannelClosedError | None = None
        """Why it is not usable."""
        self._is_refused = False
        """The node refused a command, and will tell so after what came before."""

    def __repr__(self) -> str:
        state = "open" if self._reason is None else f"closed ({self._reason})"
        return f"<EmbeddedChannel {self._id} {state} consumers={len(self._consumers)}>"

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
        node = self._node
        messages = [as_received(message, _FRAME_MAX) for message in batch]
        try:
            self._commands.publish(self._id, messages)
        except ReplyError as refusal:
            self._refused(refusal)
        if self._publish_seq:
            self._publish_seq += len(batch)
        self._published += len(batch)
        if node.is_behind:
            await node.drain()
        elif self._published >= _YIELD_EVERY:
            self._published = 0
            await asyncio.sleep(0)

    # ---------------------------------------------------------------- topology

    async def declare_exchange(
        self, name: str, type: str = "topic", **options: Unpack[ExchangeDeclareArguments]
    ) -> None:
        check_names(exchange=name, exchange_type=type)
        options["arguments"] = _as_received(options.get("arguments"))
        await self._change(self._commands.declare_exchange, name, type, **options)

    async def check_exchange(self, name: str) -> None:
        check_names(exchange=name)
        self._do(self._commands.check_exchange, name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        check_names(exchange=name)
        await self._change(self._commands.delete_exchange, name, if_unused=if_unused)

    async def declare_queue(
        self, name: str, **options: Unpack[QueueDeclareArguments]
    ) -> QueueState:
        check_names(queue=name)
        options["arguments"] = _as_received(options.get("arguments"))
        return QueueState(*await self._change(self._commands.declare_queue, name, **options))

    async def check_queue(self, name: str) -> QueueState:
        check_names(queue=name)
        return QueueState(*self._do(self._commands.check_queue, name))

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        check_names(queue=name)
        return await self._change(
            self._commands.delete_queue, name, if_unused=if_unused, if_empty=if_empty
        )

    async def purge_queue(self, name: str) -> int:
        check_names(queue=name)
        return await self._change(self._commands.purge_queue, name)

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(Destination("queue", queue), exchange, binding_key, arguments)

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._unbind(Destination("queue", queue), exchange, binding_key, arguments)

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._bind(Destination("exchange", destination), source, binding_key, arguments)

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._unbind(Destination("exchange", destination), source, binding_key, arguments)

    async def _bind(
        self, destination: Destination, source: str, key: str, arguments: Arguments | None
    ) -> None:
        check_names(**{destination.kind: destination.name}, source=source, binding_key=key)
        await self._change(self._commands.bind, destination, source, key, _as_received(arguments))

    async def _unbind(
        self, destination: Destination, source: str, key: str, arguments: Arguments | None
    ) -> None:
        check_names(**{destination.kind: destination.name}, source=source, binding_key=key)
        await self._change(self._commands.unbind, destination, source, key, _as_received(arguments))

    async def _change(
        self, command: Callable[Concatenate[int, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Give a command; where there is a file, return once it is on the disk."""
        result = self._do(command, *args, **options)
        if self._node.keeps:
            await self._node.drain()
            self._check_store()
        return result

    # ---------------------------------------------------------------- consuming

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        check_prefetch(prefetch)
        self._do(self._commands.qos, prefetch, shared=shared)

    async def consume(
        self, queue: str, callbacks: ConsumerCallbacks, **options: Unpack[BasicConsumeArguments]
    ) -> str:
        check_names(queue=queue, consumer_tag=options.get("consumer_tag", ""))
        options["arguments"] = _as_received(options.get("arguments"))
        tag = self._do(self._commands.consume, queue, **options)
        self._consumers[tag] = callbacks
        return tag

    async def cancel(self, consumer_tag: str) -> None:
        check_names(consumer_tag=consumer_tag)
        self._do(self._commands.cancel, consumer_tag)
        await self._node.drain()  # deliveries made before may still arrive; none after this
        self._consumers.pop(consumer_tag, None)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        check_names(queue=queue)
        got = self._do(self._commands.get, queue, no_ack=no_ack)
        self._check_store()
        return None if got is None else _plain(got[0])

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        if not self.is_usable:
            self._check()
        if multiple:
            self._settle(self._commands.ack, delivery_tag, multiple=True)
            return
        if delivery_tag in self._acks:
            self._send_acks()  # and then the second ack, to be refused
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._send_acks)
        self._acks[delivery_tag] = None

    def _send_acks(self) -> None:
        if not self._acks:
            return
        tags, self._acks = self._acks, {}
        try:
            self._commands.ack_each(self._id, list(tags))
        except ReplyError as refusal:
            self._refused(refusal)

    def nack(self, delivery_tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        self._settle(self._commands.nack, delivery_tag, requeue=requeue, multiple=multiple)

    def release(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._settle(self._commands.release, delivery_tag, multiple=multiple)

    def requeue_later(self, delivery_tag: int, delay: float) -> None:
        self._settle(self._commands.nack, delivery_tag, requeue=True, delay=delay)

    def _settle(
        self, command: Callable[Concatenate[int, P], None], *args: P.args, **options: P.kwargs
    ) -> None:
        """Give a command whose refusal is not raised, as over a network, but closes the channel."""
        self._check()
        try:
            command(self._id, *args, **options)
        except ReplyError as refusal:
            self._refused(refusal)

    def touch(self, delivery_tag: int) -> float:
        if delivery_tag in self._acks or not self.is_usable:
            self._check()
        result = self._node.touch(self._id, delivery_tag)
        if isinstance(result, Done) and result.seconds_left is not None:
            return result.seconds_left
        raise StaleDeliveryError(delivery_tag, "")

    # ---------------------------------------------------------------- closing

    async def close(self) -> None:
        if not self.is_usable:
            return
        self._send_acks()
        self._end(ChannelClosedError(0, "closed by its owner"))
        try:
            await self._node.drain()
        finally:
            self._node.close_channel(self._id)

    def abort(self) -> None:
        self.lose("aborted by its owner")

    def lose(self, reason: str) -> bool:
        """Become unusable with the link; True if the channel was usable, so wants its notice."""
        self._send_acks()
        was_usable = self.is_usable
        if was_usable:
            self._end(ChannelClosedError(0, reason))
        self._node.close_channel(self._id)
        return was_usable

    def _do(
        self, command: Callable[Concatenate[int, P], T], *args: P.args, **options: P.kwargs
    ) -> T:
        """Give a command; a refusal, which has closed the channel, is raised as such."""
        self._check()
        try:
            return command(self._id, *args, **options)
        except ReplyError as refusal:
            raise self._refused(refusal) from refusal

    def _check(self) -> None:
        if self._acks:
            self._send_acks()
        if self._reason is not None:
            raise ChannelClosedError(self._reason.reply_code, self._reason.reply_text)

    def _check_store(self) -> None:
        if self._node.failure is not None:
            raise ChannelClosedError(541, f"INTERNAL_ERROR - {self._node.failure}")

    def _refused(self, refusal: ReplyError) -> ChannelClosedError:
        error = ChannelClosedError(refusal.reply_code, refusal.reply_text)
        if refusal.reply_code == CHANNEL_IS_GONE:
            return error  # the node has closed it before, and will tell why
        if self.is_usable:  # else it was lost with its connection
            self._end(error)
            self._is_refused = True
        return error

    def _end(self, reason: ChannelClosedError) -> None:
        self.is_usable, self._reason = False, reason

    # ---------------------------------------------------------------- from the node

    def deliver(self, delivery: Delivery) -> None:
        """A delivery for one of the channel's consumers."""
        callbacks = self._consumers.get(delivery.consumer_tag)
        if callbacks is not None and self.is_usable:
            if type(delivery.properties) is ReceivedProperties:
                delivery = _plain(delivery)
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
        if callbacks is not None and self.is_usable:
            callbacks.on_cancel(consumer_tag)

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None:
        """A delivery was too long in flight."""
        callbacks = self._consumers.get(consumer_tag)
        if callbacks is not None and self.is_usable:
            callbacks.on_message_timeout(delivery_tag)

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the channel."""
        if self.is_usable:
            self._end(ChannelClosedError(reply_code, reply_text))
        elif not self._is_refused:
            return
        if self.on_close is not None and self._reason is not None:
            self.on_close(self._reason)


def _as_received(arguments: Arguments | None) -> Arguments:
    return decode_arguments(encoded_arguments(arguments, _FRAME_MAX)) if arguments else {}


def _plain(delivery: Delivery) -> Delivery:
    """A delivery of what a client on a port has published, as an application here sees it."""
    properties = plain_properties(delivery.properties)
    return (
        delivery if properties is delivery.properties else delivery._replace(properties=properties)
    )
