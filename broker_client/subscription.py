"""A consumer kept alive: subscribes, hands messages over, and subscribes again when it must."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

from broker_client import content
from broker_client.ackornack import AckOrNack, Republisher
from broker_client.config import Nack, Strategy, SubscriptionConfig
from broker_client.emitter import Emitter, Listener
from broker_client.errors import (
    AlreadySettledError,
    BrokerClientError,
    BrokerClosedError,
    ChannelClosedError,
    ConsumerCancelledError,
    HandlerError,
    InvalidContentError,
    RecoveryFailedError,
)
from broker_client.message import Delivery, Message
from broker_client.retry import Backoff, growing
from broker_client.stats import SubscriptionStats
from broker_client.tasks import TaskGroup
from broker_client.transport.base import Channel, ConsumerCallbacks, Link

log = logging.getLogger("broker_client.subscription")

_NOT_FOUND = 404
_FAILURES_REMEMBERED = 10_000  # message ids whose failures the default recovery counts


class SubscriptionVhost(Protocol):
    """The vhost a subscription lives in."""

    async def wait_up(self) -> Link: ...
    async def restore_topology(self) -> None: ...


class Subscription(Emitter):
    """What `broker.subscribe` returns.

    The consumer starts with the first `message` listener. Events:

    * ``message(message, content, ack_or_nack)``: a delivery. A listener that raises without
      having settled has its message recovered by the subscription's `recovery`.
    * ``invalid_content(error, message, ack_or_nack)``: the body does not fit its content type;
      with no listener it is nacked without requeue and reported as `error`.
    * ``subscribed()``, ``cancelled(error)`` (by the broker), ``error(error)``.
    * ``ack_lost(message, error)``: a settle came after the delivery had gone back.
    * ``already_settled(error)``, ``recovery_failed(error)``, ``message_timeout(message)``.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset(
        {
            "message",
            "error",
            "subscribed",
            "cancelled",
            "invalid_content",
            "ack_lost",
            "already_settled",
            "recovery_failed",
            "message_timeout",
        }
    )

    def __init__(
        self,
        config: SubscriptionConfig,
        vhost: SubscriptionVhost,
        republisher: Republisher,
        tasks: TaskGroup,
    ) -> None:
        super().__init__(tasks)
        self.config = config
        self.republisher = republisher
        self._vhost = vhost
        self._backoff = Backoff(config.retry)
        self._handlers = TaskGroup(f"subscription {config.name}")
        self._runner: asyncio.Task[None] | None = None
        self._state = "idle"
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._channel: Channel | None = None
        self._consumer_tag = ""
        self._can_defer = False
        self._gone: asyncio.Future[BrokerClientError | None] | None = None
        self._unsettled: dict[int, AckOrNack] = {}  # by delivery tag of the present channel
        self._all_settled = asyncio.Event()
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._counts = dict.fromkeys(
            ("delivered", "acked", "nacked", "republished", "forwarded", "errors", "lost"), 0
        )

    def __repr__(self) -> str:
        return f"<Subscription {self.config.name}: {self._state}, {len(self._unsettled)} unsettled>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_subscribed(self) -> bool:
        """True while the broker has our consumer."""
        return self._state == "subscribed"

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._stopping.is_set()

    def stats(self) -> SubscriptionStats:
        """A snapshot."""
        counts = self._counts
        return SubscriptionStats(
            self.config.name,
            self.config.queue,
            self._state,
            len(self._unsettled),
            counts["delivered"],
            counts["acked"],
            counts["nacked"],
            counts["republished"],
            counts["forwarded"],
            counts["errors"],
            counts["lost"],
        )

    def _add(self, event: str, listener: Listener) -> None:
        super()._add(event, listener)
        if event == "message" and self._runner is None and not self.is_cancelled:
            self._runner = self._tasks.spawn(self._run(), f"subscription {self.config.name}")

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

    async def _restore_missing(self, error: BrokerClientError) -> None:
        """Declare everything again when the queue is not there: nobody else would."""
        if isinstance(error, ChannelClosedError) and error.reply_code == _NOT_FOUND:
            try:
                await self._vhost.restore_topology()
            except BrokerClientError as failure:
                self.emit("error", failure)

    async def _consume(self, link: Link) -> None:
        """Subscribe on a new channel and stay until it, or the consumer, is gone."""
        config = self.config
        channel = await link.open_channel()
        gone: asyncio.Future[BrokerClientError | None]
        gone = self._gone = asyncio.get_running_loop().create_future()
        channel.on_close = self._end_of_channel
        self._channel = channel
        self._can_defer = link.capabilities.deferred_requeue
        try:
            await channel.qos(config.prefetch)
            self._consumer_tag = await channel.consume(
                config.queue,
                ConsumerCallbacks(
                    lambda delivery: self._deliver(channel, delivery),
                    self._cancelled_by_broker,
                    self._timed_out,
                ),
                consumer_tag=config.options.consumer_tag,
                no_ack=config.options.no_ack,
                exclusive=config.options.exclusive,
                arguments=config.options.all_arguments,
            )
            if not self.is_cancelled:
                self._state = "subscribed"
                self.emit("subscribed")
            error = await gone
        finally:
            if self._state == "subscribed":
                self._state = "subscribing"
            self._gone = None
            self._channel = None
            self._lose_unsettled()
            channel.abort()
        if isinstance(error, ConsumerCancelledError):
            if not self.emit("cancelled", error):
                self.emit("error", error)
            await self._vhost.restore_topology()
        elif error is not None:
            raise error

    def _end_of_channel(self, error: BrokerClientError | None) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(error)

    def _cancelled_by_broker(self, consumer_tag: str) -> None:
        self._end_of_channel(ConsumerCancelledError(self.config.name, self.config.queue))

    def _lose_unsettled(self) -> None:
        for settle in self._unsettled.values():
            settle.lose()
        self._unsettled.clear()
        self._all_settled.set()

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Stop in order: no new deliveries, wait for the unsettled, close the channel.

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
        try:
            try:
                await self._drain(caller)
            finally:
                await self._end(caller)
        finally:
            self._state = "cancelled"
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
        await self._handlers.cancel(spare=caller)

    async def _drain(self, caller: asyncio.Task[Any] | None) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            async with asyncio.timeout(self.config.close_timeout):
                if channel.is_usable and self._state == "subscribed":
                    await channel.cancel(self._consumer_tag)
                while self._unsettled and channel.is_usable:
                    self._all_settled.clear()
                    await self._all_settled.wait()
                await self._handlers.wait(spare=caller)
        except TimeoutError:
            log.warning(
                "subscription %s: %d messages unsettled after %g s go back to %s",
                self.config.name,
                len(self._unsettled),
                self.config.close_timeout,
                self.config.queue,
            )
        except BrokerClientError as error:
            log.info("subscription %s: while closing: %s", self.config.name, error)
        if channel.is_usable:
            await channel.close()

    async def pause(self, seconds: float) -> bool:
        """Wait; False as soon as the subscription is being cancelled."""
        return not await self._sleep_unless_stopping(seconds)

    async def _sleep_unless_stopping(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------ deliveries

    def _deliver(self, channel: Channel, delivery: Delivery) -> None:
        config = self.config
        self._counts["delivered"] += 1
        message = Message(delivery, queue=config.queue, vhost=config.vhost, touch=channel.touch)
        settle = AckOrNack(self, channel, message)
        if config.options.no_ack:
            settle.lose()
        else:
            self._unsettled[delivery.delivery_tag] = settle
        try:
            value = content.decode(
                delivery.body, config.content_type or delivery.properties.content_type
            )
        except InvalidContentError as error:
            if self.has_listener("invalid_content"):
                self._hand_over("invalid_content", settle, error, message, settle)
            else:
                self.emit("error", error)
                self._handlers.spawn(settle(error, Nack()), "nack invalid content")
            return
        self._hand_over("message", settle, message, value, settle)

    def _hand_over(self, event: str, settle: AckOrNack, *args: Any) -> None:
        """Call the handlers: listeners whose failure means that the message needs recovery."""
        message = settle.message
        for listener in tuple((self._listeners or {}).get(event, ())):
            try:
                result = listener(*args)
            except Exception as error:  # noqa: BLE001 - user code behind a fence
                self._handler_failed(message, settle, error)
            else:
                if inspect.isawaitable(result):
                    self._handlers.spawn(self._await_handler(result, message, settle), "handler")

    async def _await_handler(
        self, result: Awaitable[Any], message: Message, settle: AckOrNack
    ) -> None:
        try:
            await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._handler_failed(message, settle, error)  # something it waited for was cancelled
        except Exception as error:  # noqa: BLE001 - user code behind a fence
            self._handler_failed(message, settle, error)

    def _handler_failed(self, message: Message, settle: AckOrNack, cause: BaseException) -> None:
        self._counts["errors"] += 1
        error = HandlerError(self.config.name, message.message_id, _described(cause))
        error.__cause__ = cause
        self.emit("error", error)
        if not settle.is_begun:
            self._handlers.spawn(settle(cause), "recovery")

    # ------------------------------------------------------------------ settling

    @property
    def can_defer(self) -> bool:
        return self._can_defer

    def default_recovery(self, message: Message) -> tuple[Strategy, ...]:
        """The chain of the configuration; or requeue, later each time it fails again.

        The wait keeps a message that always fails from going round as fast as it can.
        """
        if self.config.recovery is not None:
            return self.config.recovery
        key = message.message_id or f"{message.vhost}/{message.queue}/{hash(message.body)}"
        failures = self._failures.pop(key, 0)
        self._failures[key] = failures + 1
        while len(self._failures) > _FAILURES_REMEMBERED:
            self._failures.popitem(last=False)
        return (Nack(requeue=True, defer=growing(self.config.requeue_defer, failures)),)

    def settled(self, settle: AckOrNack, how: str) -> None:
        tag = settle.message.delivery.delivery_tag
        done = [tag]
        if how.endswith(" all"):
            how = how.removesuffix(" all")
            done = [each for each in self._unsettled if each <= tag]
        for each in done:
            covered = self._unsettled.pop(each, None)
            if covered is not None and covered is not settle:
                covered.cover()
        self._counts[how] += len(done)
        if self._failures and how != "nacked" and settle.message.message_id:
            self._failures.pop(settle.message.message_id, None)
        if not self._unsettled:
            self._all_settled.set()

    def settle_lost(self, settle: AckOrNack, error: BrokerClientError) -> None:
        if self.config.options.no_ack:
            return  # nothing to settle: the broker counted it as settled when it sent it
        self._counts["lost"] += 1
        if self._unsettled.get(settle.message.delivery.delivery_tag) is settle:
            del self._unsettled[settle.message.delivery.delivery_tag]
            if not self._unsettled:
                self._all_settled.set()
        if not self.emit("ack_lost", settle.message, error):
            log.warning("subscription %s: %s", self.config.name, error)

    def settled_twice(self, error: AlreadySettledError) -> None:
        if not self.emit("already_settled", error):
            log.warning("subscription %s: %s", self.config.name, error)

    def recovery_failed(self, error: RecoveryFailedError) -> None:
        if not self.emit("recovery_failed", error):
            log.warning("subscription %s: %s", self.config.name, error)

    def _timed_out(self, delivery_tag: int) -> None:
        settle = self._unsettled.pop(delivery_tag, None)
        if settle is None:
            return
        settle.lose()
        if not self._unsettled:
            self._all_settled.set()
        if not self.emit("message_timeout", settle.message):
            log.warning(
                "subscription %s: message %s was not settled in time and went back to %s",
                self.config.name,
                settle.message.message_id,
                self.config.queue,
            )


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
