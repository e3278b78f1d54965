"""A consumer kept alive, on one channel after another, until it is closed.

One task, `_run`, holds the channel; calls that pause, resume or end the consumer take turns with
it. The state of a subscription, and its closing, are here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal

from broker_client.connection.retry import Backoff
from broker_client.connection.vhost import Vhost
from broker_client.consuming.delivery import UnackedDelivery
from broker_client.consuming.dispatcher import Dispatcher
from broker_client.consuming.iterator import DeliveryIterator
from broker_client.consuming.recovery import Recovery
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup, check_capabilities
from broker_client.consuming.stream_position import OFFSET
from broker_client.consuming.watchdog import Watchdog
from broker_client.errors import (
    AckTimeoutError,
    BrokerClientError,
    BrokerClosedError,
    ChannelClosedError,
    ConsumerCancelledError,
    ConsumerLostError,
)
from broker_client.runtime.tasks import TaskGroup, see_through
from broker_client.transport.base import Arguments, Channel, ConsumerCallbacks, Link

log: logging.Logger = logging.getLogger("broker_client.subscription")

CANCEL_TIMEOUT = 5.0
"""Seconds that the user's code has to end after a cancellation."""

_QUIET_TIMEOUT = 1.0  # seconds to wait until nothing is held

_NOT_FOUND, _PRECONDITION_FAILED = 404, 406

ConsumerState = Literal["idle", "subscribing", "subscribed", "paused", "cancelled"]


class Consumer:
    """The consumer of one subscription."""

    def __init__(
        self,
        setup: ConsumingSetup,
        vhost: Vhost,
        dispatcher: Dispatcher,
        recovery: Recovery,
        handlers: TaskGroup,
        reports: Reports,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            vhost: where it lives.
            dispatcher: takes deliveries.
            recovery: settles them, and knows those that are unacked.
            handlers: owner of the tasks that handlers run in.
            reports: notified of what happens to the consumer.
        """
        self._setup = setup
        self._config = setup.config
        self._vhost = vhost
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._unacked = recovery.unacked
        self._handlers = handlers
        self._reports = reports
        self.iterator: DeliveryIterator = DeliveryIterator(no_ack=setup.config.options.no_ack)
        """Deliveries that wait for an ``async for``."""
        self.state: ConsumerState = "idle"
        self.is_paused: bool = False
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._backoff = Backoff(setup.config.retry)
        self._operations = asyncio.Lock()  # one at a time on the channel
        self._channel: Channel | None = None
        self._channel_prefetch = setup.config.channel_prefetch
        self._qos = -1  # prefetch that was sent to the channel last
        self._held_before: set[UnackedDelivery] = set()  # by consumers before the present one
        self._refill: asyncio.Task[None] | None = None
        self.awaits_room: bool = False
        """True while its channel is there, and earlier deliveries hold all of the prefetch."""
        self._tasks: TaskGroup | None = None
        self._consumer_tag = ""
        self._consumers = 0  # started so far
        self._watchdog = Watchdog(setup)
        self._gone: asyncio.Future[BrokerClientError | None] | None = None

    @property
    def is_closing(self) -> bool:
        """True once closing has begun."""
        return self._closing.is_set()

    @property
    def is_closed(self) -> bool:
        """True once it has ended and all handlers have too."""
        return self._closed.is_set() and not len(self._handlers)

    def start(self, tasks: TaskGroup) -> None:
        """Begin to consume, in a task of `tasks`. May be called more than once."""
        if self._runner is None and not self.is_closing:
            self._tasks = tasks
            self._runner = tasks.spawn(self._run(), f"subscription {self._config.name}")

    # ------------------------------------------------------------------ keeping the consumer

    async def _run(self) -> None:
        """Consume, and start again whenever the consumer, its channel or the link is lost."""
        loop = asyncio.get_running_loop()
        try:
            while not self.is_closing:
                self.state = "subscribing"
                since = loop.time()
                link: Link | None = None
                try:
                    link = await self._vhost.wait_up()
                    await self._consume(link)
                except BrokerClosedError as error:
                    log.info("subscription %s: %s", self._config.name, error)
                    return
                except BrokerClientError as error:
                    if self.is_closing:
                        return
                    if _is_ack_timeout(error):
                        if not self._reports.emit("ack_timeout", error):
                            self._reports.emit("error", error)
                        if self._config.retry.enabled:
                            continue  # nothing is wrong with the queue, nor with the broker
                    elif link is None or link.is_open:
                        self._reports.emit(
                            "error", error
                        )  # the loss of a link is the broker's to report
                        await self._restore_missing(error)
                if link is not None and not link.is_open:
                    continue  # `wait_up` is all the waiting there is
                if not self._config.retry.enabled:
                    return
                if loop.time() - since >= self._config.retry.stable_after:
                    self._backoff.reset()
                await self._sleep_unless_closing(self._backoff.next())
        finally:
            self.state = "cancelled"
            self.iterator.end()

    async def _restore_missing(self, error: BrokerClientError) -> None:
        """Declare everything again if the queue is missing: nothing else would."""
        if isinstance(error, ChannelClosedError) and error.reply_code == _NOT_FOUND:
            try:
                await self._vhost.restore_topology()
            except BrokerClientError as failure:
                self._reports.emit("error", failure)

    async def _consume(self, link: Link) -> None:
        """Consume on a new channel until the channel or the consumer is lost."""
        check_capabilities(self._config, link.capabilities)
        channel = await link.open_channel()
        gone: asyncio.Future[BrokerClientError | None]
        gone = self._gone = asyncio.get_running_loop().create_future()
        channel.on_close = self._leave
        self._channel = channel
        can = link.capabilities
        self._recovery.can_defer = can.deferred_requeue or (
            can.delayed_retry and self._setup.has_delayed_retry
        )
        try:
            self._qos, self.awaits_room = -1, False
            async with self._operations:
                if self.is_paused:
                    self.state = "paused"
                    await self._set_prefetch(channel, self._config.prefetch)
                else:
                    await self._start_consumer(channel)
            error = await self._stay(link, gone)
        finally:
            if self.state in ("subscribed", "paused"):
                self.state = "subscribing"
            self._gone = None
            self._channel = None
            if self._refill is not None:
                self._refill.cancel()
                self._refill = None
            self._unacked.lose_all()
            self._dispatcher.take_waiting()  # dropped: it is no longer ours
            channel.abort()
        if isinstance(error, AckTimeoutError):
            raise error
        if isinstance(error, ConsumerCancelledError):
            if not self._reports.emit("cancelled", error) and not self._reports.emit(
                "cancel", error
            ):
                self._reports.emit("error", error)
            await self._vhost.restore_topology()
        elif error is not None:
            raise error

    async def _stay(
        self, link: Link, gone: asyncio.Future[BrokerClientError | None]
    ) -> BrokerClientError | None:
        """Wait until the channel or the consumer is lost, with or without a notification."""
        while True:
            await asyncio.wait([gone], timeout=self._watchdog.wait_for(link))
            if gone.done():
                return gone.result()
            asked_for = self._consumers
            if self.state != "subscribed" or self.is_closing:  # it may be stopped already
                continue
            if not await self._watchdog.is_lost(link):
                continue
            # The consumer was stopped or replaced meanwhile, and the reason is known there.
            if self.state == "subscribed" and asked_for == self._consumers and not self.is_closing:
                return ConsumerLostError(self._config.name, self._setup.queue)

    async def _set_prefetch(self, channel: Channel, prefetch: int) -> None:
        if prefetch == self._qos:
            return
        await channel.qos(prefetch)
        self._qos = prefetch
        if self._channel_prefetch is not None:  # RabbitMQ: the one before would take it back
            await channel.qos(self._channel_prefetch, shared=True)

    async def _start_consumer(self, channel: Channel, *, announce: bool = True) -> None:
        """Consume, as far as the prefetch has room.

        A broker counts the prefetch for each consumer again. What consumers before this one hold
        is taken off, and given back later, by `_refill_prefetch`.
        """
        prefetch, held = self._config.prefetch, self._unacked.held()
        self._held_before = held if prefetch else set()
        if self._held_before and self._refill is None and self._tasks is not None:
            self._refill = self._tasks.spawn(
                self._refill_prefetch(channel), f"prefetch of {self._config.name}"
            )
        if not prefetch:
            await self._set_prefetch(channel, 0)
        elif len(held) < prefetch:
            await self._set_prefetch(channel, prefetch - len(held))
        else:
            self.state, self.awaits_room = "subscribing", True
            return
        options = self._config.options
        self._consumer_tag = await channel.consume(
            self._setup.queue,
            ConsumerCallbacks(
                partial(self._dispatcher.deliver, channel),
                self._cancelled_by_broker,
                self._unacked.time_out,
            ),
            consumer_tag=options.consumer_tag,
            no_ack=options.no_ack,
            exclusive=options.exclusive,
            arguments=self._arguments(),
        )
        self._consumers += 1
        self.awaits_room = False
        self._watchdog.started()
        self.state = "subscribed"  # also when ending meanwhile: `_drain` is to stop this consumer
        if announce and not self.is_closing:
            self._reports.emit("subscribed")

    async def _refill_prefetch(self, channel: Channel) -> None:
        """Consume with the full prefetch again, once what was held before has been settled."""
        while self._held_before:
            await self._unacked.wait_until(self._has_room)
            async with self._operation():
                if not channel.is_usable or self.is_closing:
                    break
                if not self._has_room():
                    continue  # paused meanwhile
                if self.state == "subscribed":
                    self.state = "subscribing"
                    await self._stop_consumer(channel)
                    with suppress(TimeoutError):  # not much can be held when it begins again
                        async with asyncio.timeout(_QUIET_TIMEOUT):
                            await self._unacked.wait_until(lambda: not self._unacked.held())
                try:
                    await self._start_consumer(channel, announce=self.awaits_room)
                except BrokerClientError as error:
                    self._leave(error)  # the runner consumes on another
                    break
        self._refill = None

    def _has_room(self) -> bool:
        """True if a new consumer would get more: earlier deliveries hold less than before."""
        if self.awaits_room:
            return len(self._unacked.held()) < self._config.prefetch
        return self.state == "subscribed" and not any(
            self._unacked.holds(each) for each in self._held_before
        )

    def _arguments(self) -> Arguments:
        arguments = self._config.options.all_arguments
        position = self._unacked.position
        offset = None if position is None else position.resume_at()
        return arguments if offset is None else {**arguments, OFFSET: offset}

    def _leave(self, error: BrokerClientError | None = None) -> None:
        """Leave the channel: `_run` continues on a new one, unless the subscription ends."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(error)

    def _cancelled_by_broker(self, consumer_tag: str) -> None:
        # RabbitMQ gives no reason; it takes unsettled deliveries back if that is the reason.
        kind = AckTimeoutError if self._unacked.has_overdue else ConsumerCancelledError
        self._leave(kind(self._config.name, self._setup.queue))

    # ------------------------------------------------------------------ pausing, prefetch

    @asynccontextmanager
    async def _operation(self) -> AsyncIterator[None]:
        """A turn on the channel. If it is cancelled, the outcome at the broker is unknown:
        the runner goes on on another channel."""
        async with self._operations:
            try:
                yield
            except asyncio.CancelledError:
                self._leave()
                raise

    def hold(self) -> None:
        """Start no more handlers; `pause` follows."""
        if not self.is_closing:
            self._dispatcher.hold()

    async def pause(self) -> None:
        """See `Subscription.pause`."""
        async with self._operation():
            if self.is_paused or self.is_closing:
                return
            self.is_paused = True
            self._dispatcher.hold()
            channel = self._channel
            if channel is not None and self.state == "subscribed":
                self.state = "paused"
                await self._stop_consumer(channel)
            elif self.awaits_room:
                self.state, self.awaits_room = "paused", False
            self._release_waiting()

    async def resume(self) -> None:
        """See `Subscription.resume`."""
        async with self._operation():
            if not self.is_paused or self.is_closing:
                return
            self.is_paused = False
            self._dispatcher.resume()
            channel = self._channel
            if channel is not None and channel.is_usable and self.state == "paused":
                try:
                    await self._start_consumer(channel)
                except BrokerClientError as error:
                    self._leave(error)  # the runner consumes on another

    async def _stop_consumer(self, channel: Channel) -> None:
        try:
            await channel.cancel(self._consumer_tag)
        except BrokerClientError as error:  # the channel is gone, and the consumer with it
            log.info("subscription %s: while stopping: %s", self._config.name, error)

    async def set_channel_prefetch(self, prefetch: int) -> None:
        """See `Subscription.set_channel_prefetch`."""
        async with self._operation():
            before, self._channel_prefetch = self._channel_prefetch, prefetch
            channel = self._channel
            if channel is not None and channel.is_usable:
                try:
                    await channel.qos(prefetch, shared=True)
                except BrokerClientError:
                    self._channel_prefetch = before  # or the next channel would fail over it too
                    raise

    def _release_waiting(self) -> None:
        """Return messages that no handler has begun."""
        self._unacked.release_unhandled(self._dispatcher.take_waiting())
        self._unacked.release_unhandled(self.iterator.take_waiting())

    # ------------------------------------------------------------------ ending

    async def cancel(self, tasks: TaskGroup, caller: asyncio.Task[Any] | None) -> None:
        """End gracefully, in a task of `tasks`; see `Subscription.cancel`.

        Args:
            tasks: owner of the task that ends it.
            caller: on whose behalf; it may be one of our handlers.
        """
        if self.is_closing:
            if caller not in self._handlers:  # else the first call may be waiting for this one
                await self._closed.wait()
            return
        self._close()
        try:
            await self._drain(caller)
        finally:
            await self.end(tasks, caller)

    async def end(self, tasks: TaskGroup, caller: asyncio.Task[Any] | None) -> None:
        """End at once: what is unacked returns to its queue, handlers but `caller` are cancelled.

        May be called after `cancel`.
        """
        self._close()
        try:
            await see_through(tasks.spawn(self._stop(caller), f"end {self._config.name}"))
        finally:
            self.state = "cancelled"
            self.iterator.end()
            self._closed.set()

    def _close(self) -> None:
        """Start nothing new from now on."""
        self._closing.set()
        self._dispatcher.hold()
        self._recovery.close()

    async def _stop(self, caller: asyncio.Task[Any] | None) -> None:
        self._leave()
        self._dispatcher.end()
        runner = self._runner
        if runner is not None and runner is not caller:
            runner.cancel()
            await asyncio.wait([runner])
        if len(self._handlers):
            await asyncio.sleep(0)  # a task that never began leaves a coroutine never awaited
        await self._handlers.cancel(spare=caller, timeout=CANCEL_TIMEOUT)

    async def _drain(self, caller: asyncio.Task[Any] | None) -> None:
        """Stop the consumer, release what has not started, wait for the rest, close."""
        channel = self._channel
        try:
            async with asyncio.timeout(self._config.close_timeout):
                if channel is not None:
                    async with self._operations:
                        if channel.is_usable and self.state == "subscribed":
                            await channel.cancel(self._consumer_tag)
                # Behind the consumer's end, or the broker would deliver them to us again.
                self._release_waiting()
                self.iterator.end()
                if channel is not None:
                    await self._unacked.wait_until(
                        lambda: not len(self._unacked) or not channel.is_usable
                    )
                await asyncio.sleep(0)  # those behind `caller` in its task have their own now
                await self._handlers.wait(spare=caller)
        except TimeoutError:
            log.warning(
                "subscription %s: unsettled messages after %g s: %d; requeued in %s",
                self._config.name,
                self._config.close_timeout,
                len(self._unacked),
                self._setup.queue,
            )
        except BrokerClientError as error:
            log.info("subscription %s: while closing: %s", self._config.name, error)
        if channel is not None and channel.is_usable:
            self._unacked.release_all()  # the broker would count a closed channel as failures
            await channel.close()

    async def _sleep_unless_closing(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


def _is_ack_timeout(error: BrokerClientError) -> bool:
    """RabbitMQ closes a channel whose consumer keeps a delivery for too long with 406 and
    "delivery acknowledgement on channel 1 timed out"; no other 406 says so. From 4.3 on it
    cancels the consumer."""
    return isinstance(error, AckTimeoutError) or (
        isinstance(error, ChannelClosedError)
        and error.reply_code == _PRECONDITION_FAILED
        and "timed out" in error.reply_text
    )
