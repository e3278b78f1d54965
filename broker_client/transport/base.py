"""What the client needs from a broker: a link, its channels, and their notices.

Three rules hold for every transport, and the contract suite holds the transports to them:

* Whatever only writes is a plain method (`ack`, `nack`, ...); whatever waits for the broker is a
  coroutine. Callbacks are plain functions, called from the event loop, in the broker's order.
* A channel is one incarnation. Once `is_usable` is False it stays so, and every method raises
  `ChannelClosedError`; delivery tags and publish sequence numbers die with it.
* No foreign exception leaves a transport: all are of `broker_client.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from broker_client.errors import TransportError, UnsupportedError
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.runtime.slotted import slotted
from broker_client.transport.limits import SizeLimit

Arguments = Mapping[str, Any]


@slotted
class Capabilities:
    """What this broker can do beyond AMQP 0-9-1 with RabbitMQ's usual extensions."""

    touch: bool = False
    """`Channel.touch` extends the time a delivery may stay in flight."""
    deferred_requeue: bool = False
    """`Channel.requeue_later` gives a delivery back after a delay, without holding prefetch."""

    lasting_consumers: bool = False
    """No consumer ends without a notice: nothing can get lost on the way."""

    shared_prefetch: bool = True
    """`Channel.qos` with `shared` holds for all consumers of the channel together."""
    delayed_retry: bool = False
    """Quorum queues with `x-delayed-retry-type` hold back by themselves what is given back."""


def no_shared_prefetch(what: str) -> UnsupportedError:
    """The error of `what`, where `Capabilities.shared_prefetch` is False."""
    return UnsupportedError(
        what,
        "RabbitMQ treats it as the prefetch of each consumer from 4.3 on; write prefetch instead",
    )


class QueueState(NamedTuple):
    """What the broker answers to a queue declaration."""

    name: str
    message_count: int
    """Ready messages."""
    consumer_count: int


@slotted
class ConsumerCallbacks:
    """Where a consumer's deliveries and notices go."""

    on_delivery: Callable[[Delivery], None]
    on_cancel: Callable[[str], None]
    """The broker cancelled the consumer (queue deleted); the argument is the consumer tag."""
    on_message_timeout: Callable[[int], None]
    """A delivery's time in flight ran out and it was given back; the argument is its tag."""


class Channel(Protocol):
    """One AMQP channel. Assign the `on_...` callbacks before the first publish."""

    on_confirm: Callable[[int, int, bool], None] | None
    """(first, last, acked): publishes `first`..`last` were confirmed, or nacked when False."""
    on_return: Callable[[Returned], None] | None
    """A mandatory message came back; always called before its confirm."""
    on_close: Callable[[TransportError], None] | None
    """Called once, when the channel ends by anything but its own `close()` or `abort()`."""

    @property
    def is_usable(self) -> bool: ...

    @property
    def next_publish_seq(self) -> int:
        """Sequence number of the next publish; 1 at first, 0 on a channel without confirms."""
        ...

    @property
    def size_limit(self) -> SizeLimit:
        """The largest body that may be published, as far as it is known."""
        ...

    async def publish(self, batch: Sequence[Outgoing]) -> None:
        """Send all of `batch`, in order; returns once it is written (not confirmed).

        If it raises or is cancelled, how much went out is unknown: `abort()` the channel.
        """
        ...

    async def declare_exchange(
        self,
        name: str,
        type: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None: ...

    async def check_exchange(self, name: str) -> None:
        """Passive declaration; a missing exchange closes the channel with 404."""
        ...

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None: ...

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueState: ...

    async def check_queue(self, name: str) -> QueueState:
        """Passive declaration; a missing queue closes the channel with 404."""
        ...

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete; returns the number of ready messages that went with it."""
        ...

    async def purge_queue(self, name: str) -> int:
        """Drop the ready messages; returns their number."""
        ...

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None: ...

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None: ...

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None: ...

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None: ...

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        """Unsettled deliveries allowed to each consumer started after this; 0 is no limit.

        With `shared`, to all consumers of the channel together, and at once (RabbitMQ's meaning
        of basic.qos with global).

        Raises:
            UnsupportedError: `shared`, where `Capabilities.shared_prefetch` is False.
        """
        ...

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
        """Start a consumer and return its tag, ours or one the transport made."""
        ...

    async def cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. What it holds stays unsettled, and can still be settled."""
        ...

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Take one ready message, or None when there is none."""
        ...

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None: ...

    def nack(self, delivery_tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        """Refuse a delivery, or all up to it: handling it failed."""
        ...

    def release(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Give a delivery, or all up to it, back unhandled; it does not count as a failure.

        For thousands use `multiple`: RabbitMQ's classic queues take time for each delivery given
        back singly that grows with their number.
        """
        ...

    def requeue_later(self, delivery_tag: int, delay: float) -> None:
        """Give the delivery back to its queue after `delay` seconds.

        With `Capabilities.delayed_retry` it goes back at once, and its queue holds it back for as
        long as its arguments say.

        Raises:
            UnsupportedError: the broker has no deferred requeue.
        """
        ...

    def touch(self, delivery_tag: int) -> float:
        """Extend the delivery's time in flight; returns the seconds it now has left.

        Raises:
            UnsupportedError: the broker has no message time-out to extend.
            StaleDeliveryError: the delivery is not in flight any more.
        """
        ...

    async def close(self) -> None:
        """Close in order, after what was written before. May be called more than once."""
        ...

    def abort(self) -> None:
        """Drop the channel at once. The broker requeues what it had delivered here."""
        ...


class Link(Protocol):
    """One connection to one vhost of a broker."""

    on_close: Callable[[TransportError], None] | None
    """Called once, when the link ends by anything but `close()` or `abort()`; its channels'
    `on_close` have been called before."""
    on_blocked: Callable[[str], None] | None
    """The broker refuses publishes for now (connection.blocked); the argument says why."""
    on_unblocked: Callable[[], None] | None
    used_at: float
    """Loop time of the last confirm, or of the last ack written; at first far in the past."""

    @property
    def url(self) -> str:
        """Where it leads, with any password masked: fit to print."""
        ...

    @property
    def is_open(self) -> bool: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def keep_header_types(self) -> None:
        """Deliver headers encoded, as they are in the broker, where they can be read: a copy made
        with `amqp.tables.replaced` has every value in the type it was published with."""
        ...

    async def open_channel(self, *, confirm: bool = False) -> Channel: ...

    async def close(self) -> None:
        """Close in order, in bounded time. May be called more than once."""
        ...

    def abort(self) -> None:
        """Drop the connection at once."""
        ...


class Connector(Protocol):
    """Makes links to one address; what `transport/rabbitmq` and `transport/embedded` offer."""

    @property
    def url(self) -> str:
        """The address, masked."""
        ...

    async def connect(self, *, timeout: float) -> Link:
        """Open a link.

        Raises:
            ConnectFailedError: no address answered in time.
            AuthenticationRefusedError: the broker refused the login or the vhost.
        """
        ...
