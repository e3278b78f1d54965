"""A consumer kept alive: subscribes, hands messages over, and subscribes again when it must."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

from broker_client import content
from broker_client.ackornack import Republisher
from broker_client.config import SubscriptionConfig
from broker_client.consuming import ConsumingSetup
from broker_client.emitter import Emitter, Listener
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    ChannelClosedError,
    ConsumerCancelledError,
)
from broker_client.handlers import Handler, listener_from
from broker_client.intake import Intake
from broker_client.message import Message, Outgoing, Properties
from broker_client.pulling import Deliveries
from broker_client.retry import Backoff
from broker_client.stats import SubscriptionStats
from broker_client.streams import OFFSET
from broker_client.tasks import TaskGroup
from broker_client.transport.base import Arguments, Channel, ConsumerCallbacks, Link
from broker_client.unsettled import Unsettled

log = logging.getLogger("broker_client.subscription")

_NOT_FOUND, _PRECONDITION_FAILED = 404, 406

H = TypeVar("H", bound=Handler)


class SubscriptionVhost(Protocol):
    """The vhost a subscription lives in."""

    async def wait_up(self) -> Link: ...
    async def restore_topology(self) -> None: ...


class Subscription(Emitter):
    """What `broker.subscribe` returns.

    The consumer starts with the first `message` listener, `handle` or ``async for``. Events:

    * ``message(message, content, ack_or_nack)``: a delivery. A listener that raises without
      having settled has its message recovered by the subscription's `recovery`.
    * ``invalid_content(error, message, ack_or_nack)``: the body cannot be decrypted or does not
      fit its content type; else ``invalid_message``; with no listener it is nacked without
      requeue and reported as `error`.
    * ``redeliveries_exceeded(error, message, ack_or_nack)``: it came again too often; else
      ``redeliveries_error``; with no listener it is nacked without requeue, as above.
      ``redeliveries_error(error, message, ack_or_nack)``: the counter failed; the other way round.
    * ``duplicate(message)``: it was handled before, and acked unhandled (`deduplicate`).
    * ``subscribed()``, ``cancelled(error)`` or ``cancel(error)`` (by the broker), ``error(error)``.
    * ``ack_lost(message, error)``: a settle came after the delivery had gone back.
    * ``ack_timeout(error)``: the broker closed the channel, a message being too long unsettled.
    * ``message_timeout(message)``: the broker took back this message alone.
    * ``already_settled(error)``, ``recovery_failed(error)``.
    * ``prefetch_saturated(count)``: every place of the prefetch is held by a message that waits
      for the `defer` of its recovery, so that nothing else is delivered meanwhile.
    * ``loop_blocked(seconds, name)``: a handler kept the event loop busy for longer than
      `loop_lag`.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset(
        {
            "message",
            "error",
            "subscribed",
            "cancelled",
            "cancel",
            "invalid_content",
            "invalid_message",
            "redeliveries_exceeded",
            "redeliveries_error",
            "duplicate",
            "ack_lost",
            "ack_timeout",
            "already_settled",
            "recovery_failed",
            "message_timeout",
            "prefetch_saturated",
            "loop_blocked",
        }
    )

    def __init__(
        self,
        config: SubscriptionConfig,
        vhost: SubscriptionVhost,
        republisher: Republisher,
        tasks: TaskGroup,
        *,
        setup: ConsumingSetup | None = None,
    ) -> None:
        """
        Args:
            config: what was declared.
            vhost: where it lives.
            republisher: publishes the copies of recovery, and answers.
            tasks: owner of the tasks that keep it alive and call its listeners.
            setup: what the whole configuration says of it; by default it stands alone.
        """
        super().__init__(tasks)
        self.config = config
        self._setup = setup or ConsumingSetup.plain(config)
        self._vhost = vhost
        self._republisher = republisher
        self._backoff = Backoff(config.retry)
        self._handlers = TaskGroup(f"subscription {config.name}")
        self._in_hand = Unsettled(self._setup, republisher, self.emit)
        self._intake = Intake(
            self._setup, self._in_hand, self._handlers, self.emit, self._listeners_of
        )
        self._deliveries = Deliveries(no_ack=config.options.no_ack)
        self._is_pulled = False
        self._runner: asyncio.Task[None] | None = None
        self._state = "idle"
        self._is_paused = False
        self._operations = asyncio.Lock()  # one at a time on the channel
        self._stopping = self._in_hand.closing
        self._stopped = asyncio.Event()
        self._channel: Channel | None = None
        self._channel_prefetch = config.channel_prefetch
        self._consumer_tag = ""
        self._gone: asyncio.Future[BrokerClientError | None] | None = None

    def __repr__(self) -> str:
        return f"<Subscription {self.config.name}: {self._state}, {len(self._in_hand)} unsettled>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def queue(self) -> str:
        """Name of the queue on the broker."""
        return self._setup.queue

    @property
    def is_subscribed(self) -> bool:
        """True while the broker has our consumer."""
        return self._state == "subscribed"

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._is_paused

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._stopping.is_set()

    def stats(self) -> SubscriptionStats:
        """A snapshot."""
        counts = self._in_hand.counts
        return SubscriptionStats(
            name=self.config.name,
            queue=self._setup.queue,
            state=self._state,
            unsettled=len(self._in_hand),
            delivered=counts["delivered"],
            acked=counts["acked"],
            nacked=counts["nacked"],
            republished=counts["republished"],
            forwarded=counts["forwarded"],
            handler_errors=counts["errors"],
            lost_settles=counts["lost"],
            waiting=len(self._intake) + len(self._deliveries),
            given_back=counts["released"],
            duplicates=counts["skipped"],
        )

    # ------------------------------------------------------------------ listening

    def handle(self, handler: H) -> H:
        """Have `handler` take the messages: ``handler(content)`` or ``handler(content, message)``.

        A decorator. Returning acks, raising recovers, and what it returns answers a message that
        has a `reply_to`; see `broker_client.handlers`.

        Raises:
            InvalidHandlerError: it takes another number of arguments.
        """
        self.on("message", listener_from(handler, self._answer, self._intake.reject))
        return handler

    def __aiter__(self) -> Deliveries:
        """``async for message, content, ack_or_nack in subscription``.

        At most `prefetch` messages wait here for the loop, which ends when the subscription is
        cancelled. Settle each message; one that is left unsettled keeps its place in the prefetch.
        """
        if not self._is_pulled:
            self._is_pulled = True
            self.on("message", self._deliveries.put)
        if self.is_cancelled:
            self._deliveries.end()
        return self._deliveries

    def _add(self, event: str, listener: Listener) -> None:
        super()._add(event, listener)
        if event == "message" and self._runner is None and not self.is_cancelled:
            self._runner = self._tasks.spawn(self._run(), f"subscription {self.config.name}")

    def _listeners_of(self, event: str) -> list[Listener]:
        return (self._listeners or {}).get(event, [])

    async def _answer(self, message: Message, result: Any) -> None:
        """Send what a handler returned to whoever asked; nobody is told when he has gone."""
        body, content_type = content.encode(result)
        asked = message.properties
        properties = Properties(
            content_type=content_type,
            correlation_id=asked.correlation_id or asked.message_id,
            message_id=uuid4().hex,
        )
        answer = Outgoing("", asked.reply_to or "", body, properties)
        await self._republisher.republish(message.vhost, answer)

    # ------------------------------------------------------------------ keeping the consumer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self.is_cancelled:
                self._state = "subscribing"
                since = loop.time()
                link: Link | None = None
                try:
                    link = await self._vhost.wait_up()
                    await self._consume(link)
                except BrokerClosedError as error:
                    log.info("subscription %s: %s", self.config.name, error)
                    return
                except BrokerClientError as error:
                    if self.is_cancelled:
                        return
                    if _is_ack_timeout(error):
                        if not self.emit("ack_timeout", error):
                            self.emit("error", error)
                        continue  # nothing is wrong with the queue, nor with the broker
                    if link is None or link.is_open:
                        self.emit("error", error)  # the loss of a link is the broker's to report
                        await self._restore_missing(error)
                if link is not None and not link.is_open:
                    continue  # `wait_up` is all the waiting there is
                if not self.config.retry.enabled:
                    return
                if loop.time() - since >= self.config.retry.stable_after:
                    self._backoff.reset()
                await self._sleep_unless_stopping(self._backoff.next())
        finally:
            self._state = "cancelled"
            self._deliveries.end()

    async def _restore_missing(self, error: BrokerClientError) -> None:
        """Declare everything again when the queue is not there: nobody else would."""
        if isinstance(error, ChannelClosedError) and error.reply_code == _NOT_FOUND:
            try:
                await self._vhost.restore_topology()
            except BrokerClientError as failure:
                self.emit("error", failure)

    async def _consume(self, link: Link) -> None:
        """Subscribe on a new channel and stay until it, or the consumer, is gone."""
        channel = await link.open_channel()
        gone: asyncio.Future[BrokerClientError | None]
        gone = self._gone = asyncio.get_running_loop().create_future()
        channel.on_close = self._end_of_channel
        self._channel = channel
        self._in_hand.can_defer = link.capabilities.deferred_requeue
        try:
            await channel.qos(self.config.prefetch)
            if self._channel_prefetch is not None:
                await channel.qos(self._channel_prefetch, shared=True)
            async with self._operations:
                if self._is_paused:
                    self._state = "paused"
                else:
                    await self._start_consumer(channel)
            error = await gone
        finally:
            if self._state in ("subscribed", "paused"):
                self._state = "subscribing"
            self._gone = None
            self._channel = None
            self._in_hand.lose_all()
            self._intake.give_back()  # drops what waits: it is not ours any more
            channel.abort()
        if isinstance(error, ConsumerCancelledError):
            if not self.emit("cancelled", error) and not self.emit("cancel", error):
                self.emit("error", error)
            await self._vhost.restore_topology()
        elif error is not None:
            raise error

    async def _start_consumer(self, channel: Channel) -> None:
        options = self.config.options
        self._consumer_tag = await channel.consume(
            self._setup.queue,
            ConsumerCallbacks(
                lambda delivery: self._intake.deliver(channel, delivery),
                self._cancelled_by_broker,
                self._in_hand.timed_out,
            ),
            consumer_tag=options.consumer_tag,
            no_ack=options.no_ack,
            exclusive=options.exclusive,
            arguments=self._arguments(),
        )
        if not self.is_cancelled:
            self._state = "subscribed"
            self.emit("subscribed")

    def _arguments(self) -> Arguments:
        arguments = self.config.options.all_arguments
        position = self._intake.position
        offset = None if position is None else position.resume_at()
        return arguments if offset is None else {**arguments, OFFSET: offset}

    def _end_of_channel(self, error: BrokerClientError | None) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(error)

    def _cancelled_by_broker(self, consumer_tag: str) -> None:
        self._end_of_channel(ConsumerCancelledError(self.config.name, self._setup.queue))

    # ------------------------------------------------------------------ pausing, prefetch

    async def pause(self) -> None:
        """Have nothing more delivered until `resume`.

        What no handler has begun goes back to the queue at once; handlers that run may finish and
        settle. Harmless twice. It outlives reconnects.
        """
        async with self._operations:
            if self._is_paused or self.is_cancelled:
                return
            self._is_paused = True
            self._intake.hold()
            channel = self._channel
            if channel is not None and self._state == "subscribed":
                self._state = "paused"
                await self._stop_consumer(channel)
            self._intake.give_back()
            self._deliveries.give_back()

    async def resume(self) -> None:
        """Consume again after `pause`, on the same channel where it is still there."""
        async with self._operations:
            if not self._is_paused or self.is_cancelled:
                return
            self._is_paused = False
            self._intake.go_on()
            channel = self._channel
            if channel is not None and channel.is_usable and self._state == "paused":
                try:
                    await self._start_consumer(channel)
                except BrokerClientError as error:
                    self._end_of_channel(error)  # the runner consumes on another

    async def _stop_consumer(self, channel: Channel) -> None:
        try:
            await channel.cancel(self._consumer_tag)
        except BrokerClientError as error:  # the channel is gone, and the consumer with it
            log.info("subscription %s: while stopping: %s", self.config.name, error)

    async def set_channel_prefetch(self, prefetch: int) -> None:
        """Limit the unsettled messages of the whole channel, from now on and after reconnects.

        Args:
            prefetch: messages; 0 is no limit.

        Raises:
            TransportError: the broker refused (RabbitMQ 4.3 does, unless told otherwise), or the
                channel failed; the subscription then consumes on another.
        """
        async with self._operations:
            self._channel_prefetch = prefetch
            channel = self._channel
            if channel is not None and channel.is_usable:
                await channel.qos(prefetch, shared=True)

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Stop in order: no new deliveries, those that no handler has begun go back, wait for
        the rest to be settled, close the channel.

        Waits `close_timeout` at most; what is unsettled then goes back to its queue, and handlers
        that still run are cancelled. Recovery that waits for a `defer` gives back at once.
        A handler may call it: it is not waited for, nor cancelled. Harmless twice.
        """
        await self.cancel_for(asyncio.current_task())

    async def cancel_for(self, caller: asyncio.Task[Any] | None) -> None:
        """`cancel`, on behalf of the task `caller`, which may be one of our handlers."""
        if self.is_cancelled:
            if not self.is_handled_by(caller):  # else the first call may be waiting for this one
                await self._stopped.wait()
            return
        self._stopping.set()
        self._intake.hold()
        try:
            try:
                await self._drain(caller)
            finally:
                await self._end(caller)
        finally:
            self._state = "cancelled"
            self._deliveries.end()
            self._stopped.set()

    def is_handled_by(self, task: asyncio.Task[Any] | None) -> bool:
        """True when `task` is one of our running handlers."""
        return task in self._handlers

    async def _end(self, caller: asyncio.Task[Any] | None) -> None:
        self._end_of_channel(None)
        runner = self._runner
        if runner is not None and runner is not caller:
            runner.cancel()
            await asyncio.wait([runner])
        if len(self._handlers):
            await asyncio.sleep(0)  # a task that never began leaves a coroutine never awaited
        await self._handlers.cancel(spare=caller)

    async def _drain(self, caller: asyncio.Task[Any] | None) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            async with asyncio.timeout(self.config.close_timeout):
                async with self._operations:
                    if channel.is_usable and self._state == "subscribed":
                        await channel.cancel(self._consumer_tag)
                # Behind the consumer's end, or the broker would deliver them to us again.
                self._intake.give_back()
                self._deliveries.give_back()
                self._deliveries.end()
                await self._in_hand.wait(lambda: channel.is_usable)
                await self._handlers.wait(spare=caller)
        except TimeoutError:
            log.warning(
                "subscription %s: %d messages unsettled after %g s go back to %s",
                self.config.name,
                len(self._in_hand),
                self.config.close_timeout,
                self._setup.queue,
            )
        except BrokerClientError as error:
            log.info("subscription %s: while closing: %s", self.config.name, error)
        if channel.is_usable:
            await channel.close()

    async def _sleep_unless_stopping(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


def _is_ack_timeout(error: BrokerClientError) -> bool:
    """RabbitMQ closes a channel whose consumer keeps a delivery for too long with 406 and
    "delivery acknowledgement on channel 1 timed out"; no other 406 says so."""
    return (
        isinstance(error, ChannelClosedError)
        and error.reply_code == _PRECONDITION_FAILED
        and "timed out" in error.reply_text
    )
