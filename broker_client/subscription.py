"""A consumer kept alive: subscribes, hands messages over, and subscribes again when it must."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, TypeVar

from broker_client.config import SubscriptionConfig
from broker_client.connection.vhost import Vhost
from broker_client.consuming.checks import Checks
from broker_client.consuming.consumer import Consumer
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.delivery_log import DeliveryLog
from broker_client.consuming.dispatcher import Dispatcher
from broker_client.consuming.handlers import Handler, check_listener, listener_from
from broker_client.consuming.iterator import DeliveryIterator
from broker_client.consuming.recovery import Recovery
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.threads import HandlerThreads
from broker_client.consuming.unacked import Unacked
from broker_client.events.stats import SubscriptionStats
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter, Listener
from broker_client.runtime.tasks import TaskGroup

H = TypeVar("H", bound=Handler)


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
      ``redeliveries_error(error, message, ack_or_nack)``: the counter failed; with no listener
      that is reported as `error`, and the message is handled.
    * ``duplicate(message)``: it was handled before, and acked unhandled (`deduplicate`).
    * ``subscribed()``, ``cancelled(error)`` or ``cancel(error)`` (by the broker), ``error(error)``.
    * ``ack_lost(message, error)``: a settle came after the delivery had gone back.
    * ``ack_due(message, seconds)``: 80 % of the time it may stay unsettled are over, and so many
      seconds left; where the configuration tells of a time-out.
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
            "ack_due",
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
        vhost: Vhost,
        publisher: Publisher,
        tasks: TaskGroup,
        *,
        setup: ConsumingSetup | None = None,
        log: DeliveryLog | None = None,
    ) -> None:
        """
        Args:
            config: what was declared.
            vhost: where it lives.
            publisher: publishes the copies of recovery, and answers.
            tasks: owner of the tasks that keep it alive and call its listeners.
            setup: what the whole configuration says of it; by default it stands alone.
            log: writes down every delivery, and how it ended.
        """
        super().__init__(tasks)
        self.config = config
        self._setup = setup = setup or ConsumingSetup.plain(config)
        self._publisher = publisher
        self._handlers = handlers = TaskGroup(f"subscription {config.name}")
        reports = Reports(config.name, self)
        checks = Checks(setup, reports)
        self._unacked = Unacked(setup, checks, handlers, reports, log)
        recovery = Recovery(setup, publisher, self._unacked, handlers, reports)
        self._dispatcher = Dispatcher(setup, checks, recovery, handlers, reports)
        self._consumer = Consumer(setup, vhost, self._dispatcher, recovery, handlers, reports)
        self._threads = HandlerThreads(config)
        self._is_iterated = False

    def __repr__(self) -> str:
        unsettled = len(self._unacked)
        return f"<Subscription {self.config.name}: {self._consumer.state}, {unsettled} unsettled>"

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
        return self._consumer.state == "subscribed"

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._consumer.is_paused

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._consumer.is_closing

    @property
    def is_ended(self) -> bool:
        """True once it is cancelled and none of its handlers runs any more."""
        return self._consumer.is_closed

    def stats(self) -> SubscriptionStats:
        """A snapshot."""
        unacked, counts = self._unacked, self._unacked.counts
        return SubscriptionStats(
            name=self.config.name,
            queue=self._setup.queue,
            state=self._consumer.state,
            unsettled=len(unacked),
            delivered=unacked.delivered,
            acked=counts[DeliveryOutcome.ACKED],
            nacked=counts[DeliveryOutcome.NACKED],
            republished=counts[DeliveryOutcome.REPUBLISHED],
            forwarded=counts[DeliveryOutcome.FORWARDED],
            handler_errors=self._dispatcher.handler_errors,
            lost_settles=unacked.lost_settles,
            waiting=len(self._dispatcher) + len(self._consumer.iterator),
            given_back=counts[DeliveryOutcome.RELEASED],
            duplicates=counts[DeliveryOutcome.DUPLICATE],
        )

    # ------------------------------------------------------------------ listening

    def handle(self, handler: H) -> H:
        """Have `handler` take the messages: ``handler(content)`` or ``handler(content, message)``.

        A decorator. Returning acks, raising recovers, and what it returns answers a message that
        has a `reply_to`; see `broker_client.consuming.handlers`.

        Raises:
            InvalidHandlerError: it takes another number of arguments.
        """
        self.on("message", listener_from(handler, self._publisher, self._threads))
        return handler

    def __aiter__(self) -> DeliveryIterator:
        """``async for message, content, ack_or_nack in subscription``.

        At most `prefetch` messages wait here for the loop, which ends when the subscription is
        cancelled. Settle each message; one that is left unsettled keeps its place in the prefetch.
        """
        if not self._is_iterated:
            self._is_iterated = True
            self.on("message", self._consumer.iterator.put)
        if self.is_cancelled:
            self._consumer.iterator.end()
        return self._consumer.iterator

    def _add(self, event: str, listener: Listener) -> None:
        if event == "message" and callable(listener):
            check_listener(listener)
        super()._add(event, listener)
        if event == "message":
            self._consumer.start(self._tasks)

    # ------------------------------------------------------------------ pausing, prefetch

    async def pause(self) -> None:
        """Have nothing more delivered until `resume`.

        What no handler has begun returns to the queue at once; handlers that run may finish and
        settle. It outlives reconnects, and may be called more than once.
        """
        await self._consumer.pause()

    async def resume(self) -> None:
        """Consume again after `pause`, on the same channel where it is still there."""
        await self._consumer.resume()

    async def set_channel_prefetch(self, prefetch: int) -> None:
        """Limit the unsettled messages of the whole channel, from now on and after reconnects.

        Args:
            prefetch: messages; 0 is no limit.

        Raises:
            TransportError: the broker refused (RabbitMQ 4.3 does, unless told otherwise), or the
                channel failed; the subscription then consumes on another.
        """
        await self._consumer.set_channel_prefetch(prefetch)

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Stop in order: no new deliveries, those that no handler has begun return to the queue,
        wait for the rest to be settled, close the channel.

        Waits `close_timeout` at most; what is unsettled then goes back to its queue, and handlers
        that still run are cancelled; those that do not end by that within 5 s are left alone.
        Recovery that waits for a `defer` returns its message at once.
        A handler may call it, and settle its own message before or after: then it returns at once,
        and the rest happens beside the handler, which is not cancelled. May be called more than
        once.
        """
        caller = asyncio.current_task()
        if self.is_handled_by(caller) and not self.is_cancelled:
            self._tasks.spawn(self.cancel_for(caller), f"cancel {self.config.name}")
            await asyncio.sleep(0)  # it has begun: nothing more is handed over
            return
        await self.cancel_for(caller)

    async def cancel_for(self, caller: asyncio.Task[Any] | None) -> None:
        """`cancel`, on behalf of the task `caller`, which may be one of our handlers."""
        try:
            await self._consumer.cancel(self._tasks, caller)
        finally:
            self._threads.close()

    async def end(self, caller: asyncio.Task[Any] | None) -> None:
        """Stop at once: what is unsettled returns to its queue, handlers that run are cancelled.

        Not `caller`. May be called after `cancel`.
        """
        try:
            await self._consumer.end(self._tasks, caller)
        finally:
            self._threads.close()

    def is_handled_by(self, task: asyncio.Task[Any] | None) -> bool:
        """True when `task` is one of our running handlers."""
        return task in self._handlers
