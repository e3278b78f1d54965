"""`Subscription`: a consumer that restarts after failures, and its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from broker_client.config import SubscriptionConfig
from broker_client.connection.vhost import Vhost
from broker_client.consuming.batches import Batches, Run
from broker_client.consuming.breaker import Breaker
from broker_client.consuming.checks import Checks
from broker_client.consuming.consumer import Consumer
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.delivery_log import DeliveryLog
from broker_client.consuming.dispatcher import Dispatcher
from broker_client.consuming.handle_call import HandleMiddleware, HandlerChain
from broker_client.consuming.handler_signature import Handler
from broker_client.consuming.handler_switch import Condition, HandlerSwitch, Listen
from broker_client.consuming.handlers import Onward, check_listener, listener_from
from broker_client.consuming.iterator import DeliveryIterator
from broker_client.consuming.pauses import Pauses
from broker_client.consuming.recovery import Recovery
from broker_client.consuming.reports import Reports
from broker_client.consuming.settlements import Settlements
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.threads import HandlerThreads
from broker_client.consuming.unacked import Unacked
from broker_client.errors import InvalidHandlerError
from broker_client.events.stats import SubscriptionStats
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter, Listener
from broker_client.runtime.tasks import TaskGroup

H = TypeVar("H", bound=Handler)


class Subscription(Emitter):
    """What `broker.subscribe` returns.

    The consumer starts with the first `message` listener, `handle` or ``async for``. Events:

    * ``message(message, content, ack_or_nack)``: a delivery. If a listener raises before it
      settles the message, the subscription's `recovery` runs.
    * ``invalid_content(error, message, ack_or_nack)``: the body cannot be decrypted or decoded.
      Without a listener, ``invalid_message`` is emitted; without a listener for that either, the
      message is nacked without requeue and an `error` emitted.
    * ``redeliveries_exceeded(error, message, ack_or_nack)``: more redeliveries than allowed.
      Without a listener, ``redeliveries_error`` is emitted; without a listener for that either,
      as above.
    * ``redeliveries_error(error, message, ack_or_nack)``: the counter failed. Without a listener,
      an `error` is emitted and the message is handled.
    * ``duplicate(message)``: the message was handled before, and is acked without a handler
      (`deduplicate`).
    * ``subscribed()``: consuming has started. ``cancelled(error)``, or ``cancel(error)`` without
      a listener for it: the broker cancelled the consumer, which starts again.
    * ``error(error)``: a handler raised, or the consumer was lost for a while.
    * ``ack_lost(message, error)``: the message was settled after the broker had taken it back.
    * ``ack_due(message, seconds)``: 80 % of a time-out that the configuration states has passed;
      `seconds` are left.
    * ``ack_timeout(error)``: the broker closed the channel, or cancelled the consumer, because a
      message was unsettled for too long.
    * ``message_timeout(message)``: the broker took this message back because it was unsettled for
      too long.
    * ``already_settled(error)``: `ack_or_nack` was called twice.
    * ``recovery_failed(error)``: a recovery strategy failed, and the next one was tried.
    * ``dead_lettered(message, error)``: recovery refused the message without requeue; also logged.
    * ``prefetch_saturated(count)``: messages that wait for the `defer` of their recovery fill the
      prefetch, so nothing else is delivered.
    * ``tripped(failures, calls)``: `failures` of `calls` messages failed, and the `breaker` pauses
      the subscription. ``restored()``: the pause has ended, and a message was handled.
    * ``loop_blocked(seconds, name)``: a handler blocked the event loop for longer than `loop_lag`.
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
            "dead_lettered",
            "message_timeout",
            "prefetch_saturated",
            "loop_blocked",
            "tripped",
            "restored",
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
        middleware: Sequence[HandleMiddleware] = (),
    ) -> None:
        """
        Args:
            config: the declaration.
            vhost: the vhost of its queue.
            publisher: publishes copies for recovery, and answers.
            tasks: owner of the tasks that keep it alive and call its listeners.
            setup: settings that depend on the whole configuration; by default, none.
            log: delivery-event log, which records every delivery and its outcome.
            middleware: runs around its handlers, the first one outermost.
        """
        super().__init__(tasks)
        self.config = config
        self._setup = setup = setup or ConsumingSetup.plain(config)
        self._publisher = publisher
        self._handlers = handlers = TaskGroup(f"subscription {config.name}")
        reports = Reports(config.name, self)
        checks = Checks(setup, reports)
        is_observed = bool(middleware) or config.breaker is not None
        settlements = Settlements(log) if is_observed else None
        observer = log if settlements is None else settlements
        self._unacked = Unacked(setup, checks, handlers, reports, observer)
        self._recovery = recovery = Recovery(setup, publisher, self._unacked, handlers, reports)
        self._dispatcher = Dispatcher(setup, checks, recovery, handlers, reports)
        self._consumer = Consumer(setup, vhost, self._dispatcher, recovery, handlers, reports)
        self._pauses = Pauses(self._consumer)
        self._breaker: Breaker | None = None
        if config.breaker is not None:
            self._breaker = Breaker(config.breaker, self._pauses, reports, tasks)
            middleware = [self._breaker.around, *middleware]
        self._chain: HandlerChain | None = None
        if settlements is not None:
            self._chain = HandlerChain(config.name, middleware, settlements)
        self._batches: list[Batches] = []
        self._threads = HandlerThreads(config)
        self._switch: HandlerSwitch | None = None  # between handlers with conditions
        self._has_plain_handler = False
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
        """True while the broker has its consumer."""
        return self._consumer.state == "subscribed"

    @property
    def awaits_room(self) -> bool:
        """True while it is connected but consumes nothing, because unsettled messages from
        before a pause or a lost connection still fill its `prefetch`."""
        return self._consumer.awaits_room

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._consumer.is_paused

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._consumer.is_closing

    @property
    def has_conditions(self) -> bool:
        """True once a function of `handle` has a `type` or `headers`."""
        return self._switch is not None

    @property
    def is_ended(self) -> bool:
        """True once it is cancelled and all of its handlers have ended."""
        return self._consumer.is_closed

    def stats(self) -> SubscriptionStats:
        """Return a snapshot of its counters."""
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
            lost=counts[DeliveryOutcome.LOST],
            timed_out=counts[DeliveryOutcome.TIMED_OUT],
        )

    # ------------------------------------------------------------------ listening

    def handle(
        self,
        handler: H,
        *,
        type: str | None = None,
        headers: Mapping[str, Any] | None = None,
        publish: str | None = None,
    ) -> H:
        """Add a handler that is acked when it returns: a function of the content, the `Message`, or
        both.

        Usable as a decorator. When it returns, the message is acked; when it raises, recovery runs;
        its result answers a message with a `reply_to`. See `broker_client.consuming.handlers`. If
        the function can have attributes, it gets an attribute `subscription`.

        Args:
            handler: the function.
            type: the function is for messages with this `type` property.
            headers: the function is for messages with these headers. Each message goes to the first
                function that matches; a function without `type` and `headers`, added last, gets the
                rest.
            publish: name of the publication that a result, unless it is None, is published
                through; its confirm comes before the ack.

        Raises:
            InvalidHandlerError: its parameters are ambiguous or unsupported; or it would never get
                a message.
            UnknownNameError: no such publication.
        """
        onward = None if publish is None else Onward(self._publisher, publish, self.config.name)
        replies = self.config.replies
        listener = listener_from(
            handler,
            self._publisher,
            self._threads,
            replies,
            self._chain,
            None if self.config.batch is None else self._collector,
            onward,
        )
        condition = Condition(type, headers or {})
        self._recovery.answers_failures = replies == "all"
        with suppress(AttributeError, TypeError):
            handler.subscription = self  # type: ignore[attr-defined] # as functions may have any
        if not condition.is_any or self._switch is not None:
            self._add_case(handler, condition, listener)
        else:
            self._has_plain_handler = True
            self._listen(listener)
        return handler

    def _add_case(self, handler: Handler, condition: Condition, listener: Listen) -> None:
        name = getattr(handler, "__qualname__", repr(handler))
        if self._switch is not None:
            self._switch.add(name, condition, listener)
            return
        if self._has_plain_handler:
            raise InvalidHandlerError(
                name, f"subscription {self.name!r} has a handler for all messages; add that last"
            )
        self._switch = HandlerSwitch(self.name)
        self._switch.add(name, condition, listener)
        self._listen(self._switch)

    def __aiter__(self) -> DeliveryIterator:
        """``async for message, content, ack_or_nack in subscription``.

        At most `prefetch` messages wait for the loop, which ends when the subscription is
        cancelled. Settle each message: an unsettled one keeps its place in the prefetch.
        """
        self._tasks.check_loop("a Subscription")
        if not self._is_iterated:
            self._is_iterated = True
            self._listen(self._consumer.iterator.put)
        if self.is_cancelled:
            self._consumer.iterator.end()
        return self._consumer.iterator

    def _add(self, event: str, listener: Listener) -> None:
        if event != "message" or not callable(listener):
            super()._add(event, listener)
            return
        check_listener(listener)
        self._listen(listener if self._chain is None else self._chain.around_listener(listener))

    def _listen(self, listener: Listener) -> None:
        self._tasks.check_loop("a Subscription")
        super()._add("message", listener)
        self._consumer.start(self._tasks)

    # ------------------------------------------------------------------ pausing, prefetch

    async def pause(self) -> None:
        """Stop deliveries until `resume`.

        Messages that no handler has started are requeued at once; running handlers may finish
        and settle theirs. The pause lasts over reconnects. May be called more than once.
        """
        self._tasks.check_loop("a Subscription")
        self._flush()
        await self._pauses.pause("caller")

    async def resume(self) -> None:
        """Consume again after `pause`, on the same channel if it is still open."""
        self._tasks.check_loop("a Subscription")
        await self._consumer.resume()

    async def set_channel_prefetch(self, prefetch: int) -> None:
        """Limit the unsettled messages of the whole channel, now and after reconnects.

        Args:
            prefetch: number of messages; 0 means no limit.

        Raises:
            TransportError: the broker refused (RabbitMQ 4.3 does by default), or the channel
                failed; the subscription then consumes on another.
        """
        self._tasks.check_loop("a Subscription")
        await self._consumer.set_channel_prefetch(prefetch)

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Stop consuming, wait for running handlers, and close the channel.

        Messages that no handler has started, or that wait for a `defer`, are requeued at once.
        After `close_timeout`, unsettled messages are requeued and running handlers are
        cancelled; a handler that does not end within 5 s is abandoned. A handler may call this,
        and settle its own message before or after. The call then returns at once, and the
        handler is not cancelled. May be called more than once.
        """
        self._tasks.check_loop("a Subscription")
        caller = asyncio.current_task()
        if self.is_handled_by(caller) and not self.is_cancelled:
            self._tasks.spawn(self.cancel_for(caller), f"cancel {self.config.name}")
            await asyncio.sleep(0)  # it has begun: nothing more is handed over
            return
        await self.cancel_for(caller)

    async def cancel_for(self, caller: asyncio.Task[Any] | None) -> None:
        """`cancel`, on behalf of the task `caller`, which may be one of our handlers."""
        self._stop_collecting()
        try:
            await self._consumer.cancel(self._tasks, caller)
        finally:
            self._threads.close()

    async def end(self, caller: asyncio.Task[Any] | None) -> None:
        """Stop at once: requeue unsettled messages and cancel running handlers.

        `caller` is not cancelled. May be called after `cancel`.
        """
        self._stop_collecting()
        try:
            await self._consumer.end(self._tasks, caller)
        finally:
            self._threads.close()

    def _flush(self) -> None:
        for batches in self._batches:
            batches.flush()

    def _stop_collecting(self) -> None:
        for batches in self._batches:
            batches.end()
        if self._breaker is not None:
            self._breaker.close()

    def _collector(self, run: Run) -> Batches:
        assert self.config.batch is not None
        self._batches.append(Batches(self.config.batch, run, self._handlers, self.config.name))
        return self._batches[-1]

    def is_handled_by(self, task: asyncio.Task[Any] | None) -> bool:
        """True when `task` is one of its running handlers."""
        return task in self._handlers
