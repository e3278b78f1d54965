"""A fake transport that the test controls: no socket, no rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from broker_client.errors import (
    ChannelClosedError,
    ConnectionLostError,
    TransportError,
    UnsupportedError,
)
from broker_client.message import Delivery, Outgoing, Properties, Returned
from broker_client.transport.base import (
    Arguments,
    Capabilities,
    ConsumerCallbacks,
    QueueState,
)
from broker_client.transport.limits import NO_SIZE_LIMIT, SizeLimit

_PLAIN = Capabilities()


class FakeChannel:
    """A channel that records its calls; confirms, returns and ends on request.

    `before` is called with (operation, name) at every request and may raise.
    """

    def __init__(
        self,
        *,
        confirm: bool = True,
        capabilities: Capabilities = _PLAIN,
        before: Callable[[str, str], None] | None = None,
    ) -> None:
        self.on_confirm: Callable[[int, int, bool], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_close: Callable[[TransportError], None] | None = None
        self.confirms = confirm
        self.capabilities = capabilities
        self.before = before
        self.is_usable = True
        self.how_ended = ""
        self.seq = 0
        self.published: list[Outgoing] = []
        self.batches: list[int] = []
        self.asked: list[tuple[Any, ...]] = []
        self.settled: list[tuple[Any, ...]] = []
        self.consumers: dict[str, ConsumerCallbacks] = {}
        self.count_consumers: Callable[[], int] = lambda: len(self.consumers)
        self.prefetch = 0
        self.gate: asyncio.Event | None = None
        """While this is an unset event, `publish` waits as on a full socket."""
        self.auto_confirm = False
        self.size_limit: SizeLimit = NO_SIZE_LIMIT
        self.tags = 0

    # ------------------------------------------------------------------ as the broker

    @property
    def ids(self) -> list[str | None]:
        """Message ids in the order they were written."""
        return [message.properties.message_id for message in self.published]

    def confirm(self, first: int, last: int | None = None, *, acked: bool = True) -> None:
        assert self.on_confirm is not None, "nobody listens to confirms"
        self.on_confirm(first, first if last is None else last, acked)

    def confirm_all(self, *, acked: bool = True) -> None:
        self.confirm(1, self.seq, acked=acked)

    def give_back(self, seq: int, reply_code: int = 312, reply_text: str = "NO_ROUTE") -> None:
        message = self.published[seq - 1]
        assert self.on_return is not None
        self.on_return(
            Returned(
                reply_code,
                reply_text,
                message.exchange,
                message.routing_key,
                message.body,
                message.properties,
            )
        )

    def fail(self, error: TransportError | None = None) -> None:
        """End as lost: with its link, or closed by the broker with the code of `error`."""
        if self.is_usable:
            self.is_usable, self.how_ended = False, "failed"
            if self.on_close is not None:
                self.on_close(error or ChannelClosedError(0, "the link is gone"))

    def deliver(self, body: bytes = b"hello", **more: Any) -> int:
        """Hand a message to the only consumer; returns its delivery tag."""
        self.tags += 1
        [(tag, callbacks)] = self.consumers.items()
        fields = {"exchange": "orders", "routing_key": "placed", "redelivered": False, **more}
        attempts = fields.pop("attempts", None)
        redelivered, exchange = fields.pop("redelivered"), fields.pop("exchange")
        routing_key = fields.pop("routing_key")
        fields.setdefault("message_id", f"m{self.tags}")
        callbacks.on_delivery(
            Delivery(
                tag,
                self.tags,
                redelivered,
                exchange,
                routing_key,
                body,
                Properties(**fields),
                attempts,
            )
        )
        return self.tags

    def cancel_consumer(self) -> None:
        """Cancel the consumer, as when its queue is deleted."""
        tag, callbacks = self.consumers.popitem()
        callbacks.on_cancel(tag)

    def time_out(self, delivery_tag: int) -> None:
        [callbacks] = self.consumers.values()
        callbacks.on_message_timeout(delivery_tag)

    # ------------------------------------------------------------------ as a channel

    @property
    def next_publish_seq(self) -> int:
        return self.seq + 1 if self.confirms else 0

    async def publish(self, batch: Sequence[Outgoing]) -> None:
        self._check("publish", batch[0].routing_key)
        self.published += batch
        self.batches.append(len(batch))
        first = self.seq + 1
        self.seq += len(batch)
        if self.gate is not None:
            await self.gate.wait()
        if self.auto_confirm and self.confirms:
            last = self.seq
            asyncio.get_running_loop().call_soon(self._auto_confirm, first, last)

    def _auto_confirm(self, first: int, last: int) -> None:
        if self.is_usable and self.on_confirm is not None:
            self.on_confirm(first, last, True)

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
        await self._ask("declare_exchange", name, type)

    async def check_exchange(self, name: str) -> None:
        await self._ask("check_exchange", name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        await self._ask("delete_exchange", name)

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueState:
        await self._ask("declare_queue", name)
        return QueueState(name, 0, 0)

    async def check_queue(self, name: str) -> QueueState:
        await self._ask("check_queue", name)
        return QueueState(name, 0, self.count_consumers())

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        await self._ask("delete_queue", name)
        return 0

    async def purge_queue(self, name: str) -> int:
        await self._ask("purge_queue", name)
        return 3

    async def bind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._ask("bind_queue", queue, exchange, binding_key)

    async def unbind_queue(
        self, queue: str, exchange: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._ask("unbind_queue", queue, exchange, binding_key)

    async def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._ask("bind_exchange", destination, source, binding_key)

    async def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: Arguments | None = None
    ) -> None:
        await self._ask("unbind_exchange", destination, source, binding_key)

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        await self._ask("qos", prefetch, *(["shared"] if shared else []))
        if not shared:
            self.prefetch = prefetch

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
        await self._ask("consume", queue)
        tag = consumer_tag or f"ctag{len(self.consumers) + 1}"
        self.consumers[tag] = callbacks
        return tag

    async def cancel(self, consumer_tag: str) -> None:
        await self._ask("cancel", consumer_tag)
        self.consumers.pop(consumer_tag, None)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        await self._ask("get", queue)
        return None

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._check("ack", "")
        self.settled.append(("ack", delivery_tag, multiple))

    def nack(self, delivery_tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        self._check("nack", "")
        self.settled.append(("nack", delivery_tag, requeue, multiple))

    def release(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._check("release", "")
        self.settled.append(("nack", delivery_tag, True, multiple))

    def requeue_later(self, delivery_tag: int, delay: float) -> None:
        self._check("requeue_later", "")
        if not self.capabilities.deferred_requeue:
            raise UnsupportedError("deferred requeue", "a fake without it")
        self.settled.append(("requeue_later", delivery_tag, delay))

    def touch(self, delivery_tag: int) -> float:
        raise UnsupportedError("touch", "a fake")

    async def close(self) -> None:
        if self.is_usable:
            self.is_usable, self.how_ended = False, "closed"

    def abort(self) -> None:
        if self.is_usable:
            self.is_usable, self.how_ended = False, "aborted"

    async def _ask(self, operation: str, name: Any, *more: Any) -> None:
        self._check(operation, str(name))
        self.asked.append((operation, name, *more))
        await asyncio.sleep(0)
        if not self.is_usable:
            raise ChannelClosedError(0, "ended while the answer was awaited")

    def _check(self, operation: str, name: str) -> None:
        if not self.is_usable:
            raise ChannelClosedError(0, "the channel has ended")
        if self.before is not None:
            self.before(operation, name)


class FakeLink:
    """A link that keeps its channels for the test."""

    def __init__(
        self,
        url: str = "fake://a/",
        *,
        auto_confirm: bool = False,
        capabilities: Capabilities = _PLAIN,
    ) -> None:
        self.on_close: Callable[[TransportError], None] | None = None
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.used_at = float("-inf")
        self.url = url
        self.is_open = True
        self.how_ended = ""
        self.capabilities = capabilities
        self.auto_confirm = auto_confirm
        self.size_limit = NO_SIZE_LIMIT
        self.channels: list[FakeChannel] = []
        self.before: Callable[[str, str], None] | None = None

    def keep_header_types(self) -> None: ...

    async def open_channel(self, *, confirm: bool = False) -> FakeChannel:
        if not self.is_open:
            raise ConnectionLostError(self.url, self.how_ended)
        channel = FakeChannel(confirm=confirm, capabilities=self.capabilities, before=self.before)
        channel.auto_confirm = self.auto_confirm
        channel.size_limit = self.size_limit
        channel.count_consumers = self.count_consumers
        self.channels.append(channel)
        await asyncio.sleep(0)
        return channel

    def count_consumers(self) -> int:
        """Deliver like the only queue."""
        return sum(len(each.consumers) for each in self.channels if each.is_usable)

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        """The calls on all its channels."""
        return [question for channel in self.channels for question in channel.asked]

    def confirming(self) -> list[FakeChannel]:
        return [channel for channel in self.channels if channel.confirms]

    def consuming(self) -> FakeChannel:
        """The one channel with a consumer."""
        [channel] = [each for each in self.channels if each.consumers and each.is_usable]
        return channel

    def die_silently(self) -> None:
        """The socket is closed, without notice yet."""
        self.is_open = False

    def lose(self, reason: str = "cut") -> None:
        """End as a cut connection does: channels first, then the link."""
        self.is_open, self.how_ended = False, "lost"
        for channel in self.channels:
            channel.fail()
        if self.on_close is not None:
            self.on_close(ConnectionLostError(self.url, reason))

    async def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if self.is_open:
            self.is_open, self.how_ended = False, how
        for channel in self.channels:
            channel.fail()


class FakeConnector:
    """Connects fake links, or raises the errors in `failures` first."""

    def __init__(self, url: str = "fake://a/", **link_options: Any) -> None:
        self.url = url
        self.link_options = link_options
        self.failures: list[BaseException] = []
        self.always: BaseException | None = None
        self.links: list[FakeLink] = []
        self.attempts: list[float] = []
        """Loop time of each attempt."""
        self.gate: asyncio.Event | None = None
        self.prepared: Callable[[FakeLink], None] | None = None

    async def connect(self, *, timeout: float) -> FakeLink:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.always is not None:
            raise self.always
        link = FakeLink(self.url, **self.link_options)
        if self.prepared is not None:
            self.prepared(link)
        self.links.append(link)
        return link

    @property
    def link(self) -> FakeLink:
        """The newest."""
        return self.links[-1]
