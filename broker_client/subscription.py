"""A consumer kept alive: subscribes, hands messages over, and subscribes again when it must."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from broker_client.ackornack import Republisher
from broker_client.codec import content
from broker_client.config import SubscriptionConfig
from broker_client.consuming.consumer import Session, SubscriptionVhost
from broker_client.consuming.dispatcher import Intake
from broker_client.consuming.handlers import Handler, check_listener, listener_from
from broker_client.consuming.iterator import Deliveries
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.unacked import DeliveryObserver, Unsettled
from broker_client.events.stats import SubscriptionStats
from broker_client.message import Message, Outgoing, Properties
from broker_client.runtime.emitter import Emitter, Listener
from broker_client.runtime.tasks import TaskGroup, see_through

H = TypeVar("H", bound=Handler)

CANCEL_TIMEOUT = 5.0
"""Seconds that code of the user's has to end once it is cancelled."""


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
        vhost: SubscriptionVhost,
        republisher: Republisher,
        tasks: TaskGroup,
        *,
        setup: ConsumingSetup | None = None,
        observer: DeliveryObserver | None = None,
    ) -> None:
        """
        Args:
            config: what was declared.
            vhost: where it lives.
            republisher: publishes the copies of recovery, and answers.
            tasks: owner of the tasks that keep it alive and call its listeners.
            setup: what the whole configuration says of it; by default it stands alone.
            observer: told of every delivery, and how it ended.
        """
        super().__init__(tasks)
        self.config = config
        self._setup = setup or ConsumingSetup.plain(config)
        self._republisher = republisher
        self._handlers = TaskGroup(f"subscription {config.name}")
        self._in_hand = Unsettled(self._setup, republisher, self.emit, observer)
        self._intake = Intake(
            self._setup, self._in_hand, self._handlers, self.emit, self._listeners_of
        )
        self._deliveries = Deliveries(no_ack=config.options.no_ack)
        self._is_pulled = False
        self._session = Session(
            self._setup, vhost, self._in_hand, self._intake, self._deliveries, self.emit
        )
        self._runner: asyncio.Task[None] | None = None
        self._stopping = self._in_hand.closing
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        unsettled = len(self._in_hand)
        return f"<Subscription {self.config.name}: {self._session.state}, {unsettled} unsettled>"

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
        return self._session.state == "subscribed"

    @property
    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._session.is_paused

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._stopping.is_set()

    @property
    def is_ended(self) -> bool:
        """True once it is cancelled and none of its handlers runs any more."""
        return self._stopped.is_set() and not len(self._handlers)

    def stats(self) -> SubscriptionStats:
        """A snapshot."""
        counts = self._in_hand.counts
        return SubscriptionStats(
            name=self.config.name,
            queue=self._setup.queue,
            state=self._session.state,
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
        has a `reply_to`; see `broker_client.consuming.handlers`.

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
        if event == "message" and callable(listener):
            check_listener(listener)
        super()._add(event, listener)
        if event == "message" and self._runner is None and not self.is_cancelled:
            self._runner = self._tasks.spawn(
                self._session.run(), f"subscription {self.config.name}"
            )

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

    # ------------------------------------------------------------------ pausing, prefetch

    async def pause(self) -> None:
        """Have nothing more delivered until `resume`.

        What no handler has begun goes back to the queue at once; handlers that run may finish and
        settle. Harmless twice. It outlives reconnects.
        """
        await self._session.pause()

    async def resume(self) -> None:
        """Consume again after `pause`, on the same channel where it is still there."""
        await self._session.resume()

    async def set_channel_prefetch(self, prefetch: int) -> None:
        """Limit the unsettled messages of the whole channel, from now on and after reconnects.

        Args:
            prefetch: messages; 0 is no limit.

        Raises:
            TransportError: the broker refused (RabbitMQ 4.3 does, unless told otherwise), or the
                channel failed; the subscription then consumes on another.
        """
        await self._session.set_channel_prefetch(prefetch)

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Stop in order: no new deliveries, those that no handler has begun go back, wait for
        the rest to be settled, close the channel.

        Waits `close_timeout` at most; what is unsettled then goes back to its queue, and handlers
        that still run are cancelled; those that do not end by that within 5 s are left alone.
        Recovery that waits for a `defer` gives back at once.
        A handler may call it, and settle its own message before or after: then it returns at once,
        and the rest happens beside the handler, which is not cancelled. Harmless twice.
        """
        caller = asyncio.current_task()
        if self.is_handled_by(caller) and not self.is_cancelled:
            self._tasks.spawn(self.cancel_for(caller), f"cancel {self.config.name}")
            await asyncio.sleep(0)  # it has begun: nothing more is handed over
            return
        await self.cancel_for(caller)

    async def cancel_for(self, caller: asyncio.Task[Any] | None) -> None:
        """`cancel`, on behalf of the task `caller`, which may be one of our handlers."""
        if self.is_cancelled:
            if not self.is_handled_by(caller):  # else the first call may be waiting for this one
                await self._stopped.wait()
            return
        self._stopping.set()
        self._intake.hold()
        try:
            await self._session.drain(self._handlers, caller)
        finally:
            await self.end(caller)

    async def end(self, caller: asyncio.Task[Any] | None) -> None:
        """Stop at once: what is unsettled goes back, handlers that run are cancelled.

        Not `caller`. Harmless after `cancel`.
        """
        self._stopping.set()
        try:
            await see_through(self._tasks.spawn(self._stop(caller), f"end {self.config.name}"))
        finally:
            self._session.state = "cancelled"
            self._deliveries.end()
            self._stopped.set()

    def is_handled_by(self, task: asyncio.Task[Any] | None) -> bool:
        """True when `task` is one of our running handlers."""
        return task in self._handlers

    async def _stop(self, caller: asyncio.Task[Any] | None) -> None:
        self._session.end()
        runner = self._runner
        if runner is not None and runner is not caller:
            runner.cancel()
            await asyncio.wait([runner])
        if len(self._handlers):
            await asyncio.sleep(0)  # a task that never began leaves a coroutine never awaited
        await self._handlers.cancel(spare=caller, timeout=CANCEL_TIMEOUT)
