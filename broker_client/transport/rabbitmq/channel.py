"""One AMQP channel of a network link: aiormq does requests with an answer, this does the rest."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import aiormq
import aiormq.abc
import aiormq.channel
import aiormq.exceptions
from pamqp.base import Frame

from broker_client.amqp.encode import (
    ack_frame,
    get_frame,
    nack_frame,
    publish_frames,
    reject_frame,
)
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    OperationTimeoutError,
    TransportError,
    UnsupportedError,
)
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.runtime.tasks import TaskGroup
from broker_client.runtime.tracebacks import without_cycles
from broker_client.transport.base import (
    Arguments,
    Capabilities,
    ConsumerCallbacks,
    no_shared_prefetch,
)
from broker_client.transport.limits import SizeLimit, size_limit_in
from broker_client.transport.method_arguments import check_names, check_prefetch
from broker_client.transport.rabbitmq.declare import TopologyMethods
from broker_client.transport.rabbitmq.errors import (
    FOREIGN_ERRORS,
    Cancellation,
    close_quietly,
    is_bare,
    translate,
)
from broker_client.transport.rabbitmq.methods import BasicConsume

log: logging.Logger = logging.getLogger("broker_client.transport")

_CLOSE_TIMEOUT = 2.0  # seconds; a dead socket never answers channel.close


class Owner(Protocol):
    """What a channel needs of its link."""

    @property
    def url(self) -> str: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def tasks(self) -> TaskGroup: ...

    @property
    def capabilities(self) -> Capabilities: ...

    size_limit: SizeLimit
    used_at: float

    @property
    def operation_timeout(self) -> float: ...
    @property
    def takes_more(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def lost_reason(self) -> TransportError | None: ...
    def forget(self, channel: NetworkChannel) -> None: ...


class NetworkChannel(TopologyMethods):
    """`transport.base.Channel` on a RabbitMQ."""

    def __init__(self, owner: Owner, channel: aiormq.channel.Channel, *, confirm: bool) -> None:
        self.on_confirm: Callable[[int, int, bool], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_close: Callable[[TransportError], None] | None = None
        self.number: int = channel.number
        self._owner = owner
        self._channel = channel
        self.is_usable: bool = True
        self._closed: TransportError | None = None
        self._next_seq = 1 if confirm else 0
        self._confirmed = 0  # every publish up to this one has its confirm
        self._confirmed_early: set[int] = set()  # confirmed ahead of an earlier one
        self._consumers: dict[str, ConsumerCallbacks] = {}
        self._no_ack: set[str] = set()
        self._tags_made = 0
        self._outstanding: dict[int, None] = {}  # delivered and not settled, in order
        self._gets: deque[asyncio.Future[Delivery | None]] = deque()
        self._acks: list[int] = []  # to be written at the end of this turn of the loop

    def __repr__(self) -> str:
        state = "usable" if self.is_usable else "closed"
        return (
            f"<NetworkChannel {self.number} of {self._owner.url}: {state}, "
            f"{len(self._outstanding)} unacked>"
        )

    @property
    def consumes(self) -> bool:
        """True while it has a consumer."""
        return bool(self._consumers)

    @property
    def next_publish_seq(self) -> int:
        return self._next_seq

    @property
    def size_limit(self) -> SizeLimit:
        return self._owner.size_limit

    # ------------------------------------------------------------------ publishing

    async def publish(self, batch: Sequence[Outgoing]) -> None:
        self._check_usable()
        number, frame_max = self.number, self._owner.frame_max
        data = b"".join([publish_frames(number, message, frame_max) for message in batch])
        if self._next_seq:
            self._next_seq += len(batch)
        self._owner.write(data)
        if not self._owner.takes_more:
            async with self._translated():
                await self._owner.drain()

    def confirmed(self, seq: int, multiple: bool, acked: bool) -> None:
        """RabbitMQ confirms out of order, one by one or all up to `seq` that are still open."""
        if seq >= self._next_seq:
            log.warning("%r: the broker confirms %d, which was never published", self, seq)
            seq = self._next_seq - 1  # no tag beyond what was published
        early = self._confirmed_early
        self._owner.used_at = asyncio.get_running_loop().time()
        if not multiple:
            if seq == self._confirmed + 1:
                self._advance(seq)
            else:
                early.add(seq)
            self._tell_confirmed(seq, seq, acked)
            return
        first = self._confirmed + 1
        for done in sorted(tag for tag in early if tag <= seq):
            early.discard(done)
            if first < done:
                self._tell_confirmed(first, done - 1, acked)
            first = done + 1
        if first <= seq:
            self._tell_confirmed(first, seq, acked)
        self._advance(max(seq, self._confirmed))

    def _advance(self, seq: int) -> None:
        early = self._confirmed_early
        while seq + 1 in early:
            seq += 1
            early.discard(seq)
        self._confirmed = seq

    def _tell_confirmed(self, first: int, last: int, acked: bool) -> None:
        if self.on_confirm is not None:
            self.on_confirm(first, last, acked)

    def message_returned(self, message: Returned) -> None:
        if self.on_return is not None:
            self.on_return(message)

    @property
    def _frame_max(self) -> int:
        return self._owner.frame_max

    async def _ask(self, frame: Frame) -> object:
        """Send `frame` and give back the broker's answer."""
        async with self._asking():
            return await self._channel.rpc(frame)

    # ------------------------------------------------------------------ consuming

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        check_prefetch(prefetch)
        if shared and not self._owner.capabilities.shared_prefetch:
            raise no_shared_prefetch("a prefetch shared by the consumers of a channel")
        async with self._asking():
            await self._channel.basic_qos(prefetch_count=prefetch, global_=shared)

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
        check_names(queue=queue, consumer_tag=consumer_tag)
        if not consumer_tag:
            # Known before the broker answers, since deliveries may come with its answer.
            self._tags_made += 1
            consumer_tag = f"ctag{self.number}.{self._tags_made}"
        async with self._asking():
            self._consumers[consumer_tag] = callbacks
            if no_ack:
                self._no_ack.add(consumer_tag)
            # aiormq must know the tag too: it answers the broker's own basic.cancel
            # (RabbitMQ 4.3) for consumers that it knows.
            self._channel.consumers[consumer_tag] = _never_called
            try:
                await self._channel.rpc(
                    BasicConsume(
                        queue=queue,
                        consumer_tag=consumer_tag,
                        no_ack=no_ack,
                        exclusive=exclusive,
                    ).with_arguments(arguments, self._frame_max)
                )
            except BaseException:
                self._consumers.pop(consumer_tag, None)
                raise
        return consumer_tag

    async def cancel(self, consumer_tag: str) -> None:
        check_names(consumer_tag=consumer_tag)
        async with self._asking():
            await self._channel.basic_cancel(consumer_tag)
        self._consumers.pop(consumer_tag, None)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        check_names(queue=queue)
        async with self._asking():
            waiter: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
            self._gets.append(waiter)  # answers come in the order of the questions
            self._owner.write(get_frame(self.number, queue, no_ack))
            delivery = await waiter
        if delivery is not None and not no_ack:
            self._outstanding[delivery.delivery_tag] = None
        return delivery

    def got(self, delivery: Delivery | None) -> None:
        """The answer to the oldest basic.get."""
        waiter = self._gets.popleft()
        if not waiter.done():
            waiter.set_result(delivery)

    def delivered(self, delivery: Delivery) -> None:
        callbacks = self._consumers.get(delivery.consumer_tag)
        if not self.is_usable:
            return  # it goes back when the channel closes
        if delivery.consumer_tag not in self._no_ack:
            self._outstanding[delivery.delivery_tag] = None  # no `multiple` may cover it
        if callbacks is not None:
            callbacks.on_delivery(delivery)

    def consumer_cancelled(self, consumer_tag: str) -> None:
        callbacks = self._consumers.pop(consumer_tag, None)
        if callbacks is not None:
            callbacks.on_cancel(consumer_tag)

    # ------------------------------------------------------------------ settling

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        if not self.is_usable:
            self._check_usable()
        if multiple:
            self.flush()
            self._settled_up_to(delivery_tag)
            self._owner.write(ack_frame(self.number, delivery_tag, multiple=True))
            return
        self._outstanding.pop(delivery_tag, None)
        if not self._acks:
            asyncio.get_running_loop().call_soon(self.flush)
        self._acks.append(delivery_tag)

    def nack(self, delivery_tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        self._check_usable()
        if multiple:
            self.flush()
            tags = self._settled_up_to(delivery_tag)
            if requeue:
                frames = [reject_frame(self.number, tag, requeue=True) for tag in tags]
                self._owner.write(b"".join(frames))
            else:
                self._owner.write(
                    nack_frame(self.number, delivery_tag, requeue=False, multiple=True)
                )
            return
        self._outstanding.pop(delivery_tag, None)
        # RabbitMQ 4.3: basic.reject counts as a failed attempt (x-delivery-count); basic.nack
        # with requeue does not, and basic.reject knows no `multiple`.
        self._owner.write(reject_frame(self.number, delivery_tag, requeue=requeue))

    def release(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._check_usable()
        if multiple:
            self.flush()
            self._settled_up_to(delivery_tag)
        else:
            self._outstanding.pop(delivery_tag, None)
        self._owner.write(nack_frame(self.number, delivery_tag, requeue=True, multiple=multiple))

    def requeue_later(self, delivery_tag: int, delay: float) -> None:
        if not self._owner.capabilities.delayed_retry:
            raise UnsupportedError(
                "deferred requeue", "RabbitMQ can only requeue a message at once"
            )
        self.nack(delivery_tag, requeue=True)  # and its queue holds it back

    def touch(self, delivery_tag: int) -> float:
        raise UnsupportedError("touch", "RabbitMQ cannot extend the time of one delivery")

    def _settled_up_to(self, delivery_tag: int) -> list[int]:
        """Forget the deliveries up to this one, 0 meaning all; returns their tags."""
        tags = [tag for tag in self._outstanding if tag <= delivery_tag or not delivery_tag]
        for tag in tags:
            del self._outstanding[tag]
        return tags

    def flush(self) -> None:
        """Write the acks of this turn: one frame for all below the oldest unsettled delivery.

        A delivery that was nacked has been written already, so `multiple` cannot catch it.
        """
        tags, self._acks = self._acks, []
        if not tags or not self.is_usable:
            return
        self._owner.used_at = asyncio.get_running_loop().time()
        oldest = next(iter(self._outstanding), None)
        covered = [tag for tag in tags if oldest is None or tag < oldest]
        frames = []
        if covered:
            frames.append(ack_frame(self.number, max(covered), multiple=len(covered) > 1))
        if oldest is not None:
            frames += [ack_frame(self.number, tag) for tag in tags if tag > oldest]
        self._owner.write(b"".join(frames))

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        if not self.is_usable:
            return
        self.flush()
        self._end(None)
        await self._close_underlay()

    def abort(self) -> None:
        if not self.is_usable:
            return
        self._end(None)
        self._owner.tasks.spawn(self._close_underlay(), f"close channel {self.number}")

    async def _close_underlay(self) -> None:
        # aiormq itself sends channel.close and waits for the answer; on a socket that is dead
        # there is none. Its number stays taken until the answer comes.
        cancellation = Cancellation()
        try:
            await close_quietly(self._channel.close(), self, _CLOSE_TIMEOUT, cancellation)
        finally:
            self._owner.forget(self)
        cancellation.reraise()  # aiormq may have kept it to itself

    def closed_by_broker(self, reply_code: int, reply_text: str) -> None:
        """The broker sent channel.close; aiormq answers it."""
        told = size_limit_in(reply_code, reply_text)
        if told is not None:
            self._owner.size_limit = told  # so that the next is refused before it is sent
        self.fail(ChannelClosedError(reply_code, reply_text))
        self._owner.forget(self)

    def fail(self, error: TransportError) -> None:
        """End the channel as lost and say so, once."""
        if self.is_usable:
            self._end(error)
            if self.on_close is not None:
                self.on_close(error)

    def _end(self, error: TransportError | None) -> None:
        self.is_usable = False
        self._closed = error
        self._consumers.clear()
        self._outstanding.clear()
        self._acks.clear()
        for waiter in self._gets:
            if not waiter.done():
                waiter.set_exception(self._why_closed())
        self._gets.clear()

    # ------------------------------------------------------------------ errors

    def _check_usable(self) -> None:
        if not self.is_usable:
            raise self._why_closed()

    def _why_closed(self) -> TransportError:
        error = self._closed
        if isinstance(error, ChannelClosedError):
            return ChannelClosedError(
                error.reply_code, error.reply_text, connection_code=error.connection_code
            )
        return ChannelClosedError(0, str(error) if error else "closed by us")

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Around a question to the broker: bounded in time, and with our errors only."""
        self._check_usable()
        self.flush()
        limit = self._owner.operation_timeout
        deadline = asyncio.timeout(limit)
        try:
            async with self._translated(deadline), deadline:
                yield
        except TimeoutError as error:
            self.abort()  # what the broker makes of the question is unknown now
            raise OperationTimeoutError(f"channel {self.number}", limit) from error

    @asynccontextmanager
    async def _translated(self, deadline: asyncio.Timeout | None = None) -> AsyncIterator[None]:
        cancellation = Cancellation()
        try:
            yield
        except BrokerClientError:
            raise
        except TimeoutError as error:
            if deadline is not None and deadline.expired():
                raise
            raise self._failure(error) from without_cycles(error)  # the socket's own
        except asyncio.CancelledError:
            cancellation.reraise()
            raise self._failure(None) from None  # aiormq cancels what waits on a closing link
        except FOREIGN_ERRORS as error:
            cancellation.reraise()
            raise self._failure(error) from without_cycles(error)
        except Exception as error:
            cancellation.reraise()
            if is_bare(error):
                raise self._failure(None) from None
            raise
        else:
            cancellation.reraise()

    def _failure(self, error: BaseException | None) -> TransportError:
        if self._closed is not None:
            return self._why_closed()
        lost = self._owner.lost_reason()
        if lost is not None:
            return ChannelClosedError(0, str(lost))
        if error is None:
            return ChannelClosedError(0, "the connection is closing")
        return translate(self._owner.url, error)


async def _never_called(message: aiormq.abc.DeliveredMessage) -> None:
    raise AssertionError("deliveries are taken before aiormq sees them")
