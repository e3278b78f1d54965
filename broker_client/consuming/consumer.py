"""Keeping a consumer: on one channel after another, until it is told to end.

There is one task, `run`; whoever pauses, resumes or ends the consumer takes turns with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

from broker_client.connection.retry import Backoff
from broker_client.consuming.dispatcher import Intake
from broker_client.consuming.iterator import Deliveries
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.stream_position import OFFSET
from broker_client.consuming.unacked import Emit, Unsettled
from broker_client.consuming.watchdog import Watchdog
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    ChannelClosedError,
    ConsumerCancelledError,
    ConsumerLostError,
)
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Arguments, Channel, ConsumerCallbacks, Link

log = logging.getLogger("broker_client.subscription")

_NOT_FOUND, _PRECONDITION_FAILED = 404, 406


class SubscriptionVhost(Protocol):
    """The vhost a subscription lives in."""

    async def wait_up(self) -> Link: ...
    async def restore_topology(self) -> None: ...


class Session:
    """The consumer of one subscription."""

    def __init__(
        self,
        setup: ConsumingSetup,
        vhost: SubscriptionVhost,
        in_hand: Unsettled,
        intake: Intake,
        deliveries: Deliveries,
        emit: Emit,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            vhost: where it lives.
            in_hand: what has been delivered and not settled; its `closing` ends the waits here.
            intake: takes deliveries.
            deliveries: those that wait for an ``async for``.
            emit: where events go.
        """
        self._setup = setup
        self._config = setup.config
        self._vhost = vhost
        self._in_hand = in_hand
        self._intake = intake
        self._deliveries = deliveries
        self._emit = emit
        self.state = "idle"
        """idle, subscribing, subscribed, paused, cancelled."""
        self.is_paused = False
        self._backoff = Backoff(setup.config.retry)
        self._operations = asyncio.Lock()  # one at a time on the channel
        self._channel: Channel | None = None
        self._channel_prefetch = setup.config.channel_prefetch
        self._consumer_tag = ""
        self._consumers = 0  # started so far
        self._watchdog = Watchdog(setup)
        self._gone: asyncio.Future[BrokerClientError | None] | None = None

    @property
    def _is_ending(self) -> bool:
        return self._in_hand.closing.is_set()

    # ------------------------------------------------------------------ keeping the consumer

    async def run(self) -> None:
        """Consume, and consume again whenever the consumer, its channel or the link is gone."""
        loop = asyncio.get_running_loop()
        try:
            while not self._is_ending:
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
                    if self._is_ending:
                        return
                    if _is_ack_timeout(error):
                        if not self._emit("ack_timeout", error):
                            self._emit("error", error)
                        if self._config.retry.enabled:
                            continue  # nothing is wrong with the queue, nor with the broker
                    elif link is None or link.is_open:
                        self._emit("error", error)  # the loss of a link is the broker's to report
                        await self._restore_missing(error)
                if link is not None and not link.is_open:
                    continue  # `wait_up` is all the waiting there is
                if not self._config.retry.enabled:
                    return
                if loop.time() - since >= self._config.retry.stable_after:
                    self._backoff.reset()
                await self._sleep_unless_stopping(self._backoff.next())
        finally:
            self.state = "cancelled"
            self._deliveries.end()

    async def _restore_missing(self, error: BrokerClientError) -> None:
        """Declare everything again when the queue is not there: nobody else would."""
        if isinstance(error, ChannelClosedError) and error.reply_code == _NOT_FOUND:
            try:
                await self._vhost.restore_topology()
            except BrokerClientError as failure:
                self._emit("error", failure)

    async def _consume(self, link: Link) -> None:
        """Subscribe on a new channel and stay until it, or the consumer, is gone."""
        channel = await link.open_channel()
        gone: asyncio.Future[BrokerClientError | None]
        gone = self._gone = asyncio.get_running_loop().create_future()
        channel.on_close = self.end
        self._channel = channel
        self._in_hand.can_defer = link.capabilities.deferred_requeue
        try:
            await channel.qos(self._config.prefetch)
            if self._channel_prefetch is not None:  # RabbitMQ: the one before would take it back
                await channel.qos(self._channel_prefetch, shared=True)
            async with self._operations:
                if self.is_paused:
                    self.state = "paused"
                else:
                    await self._start_consumer(channel)
            error = await self._stay(link, gone)
        finally:
            if self.state in ("subscribed", "paused"):
                self.state = "subscribing"
            self._gone = None
            self._channel = None
            self._in_hand.lose_all()
            self._intake.give_back()  # drops what waits: it is not ours any more
            channel.abort()
        if isinstance(error, ConsumerCancelledError):
            if not self._emit("cancelled", error) and not self._emit("cancel", error):
                self._emit("error", error)
            await self._vhost.restore_topology()
        elif error is not None:
            raise error

    async def _stay(
        self, link: Link, gone: asyncio.Future[BrokerClientError | None]
    ) -> BrokerClientError | None:
        """Wait until the channel or the consumer is gone, said or unsaid."""
        while True:
            await asyncio.wait([gone], timeout=self._watchdog.wait_for(link))
            if gone.done():
                return gone.result()
            asked_for = self._consumers
            if self.state != "subscribed" or not await self._watchdog.is_lost(link):
                continue
            # Whoever stopped or replaced the consumer meanwhile knows why there was none.
            if self.state == "subscribed" and asked_for == self._consumers and not self._is_ending:
                return ConsumerLostError(self._config.name, self._setup.queue)

    async def _start_consumer(self, channel: Channel) -> None:
        options = self._config.options
        self._consumer_tag = await channel.consume(
            self._setup.queue,
            ConsumerCallbacks(
                partial(self._intake.deliver, channel),
                self._cancelled_by_broker,
                self._in_hand.timed_out,
            ),
            consumer_tag=options.consumer_tag,
            no_ack=options.no_ack,
            exclusive=options.exclusive,
            arguments=self._arguments(),
        )
        self._consumers += 1
        self._watchdog.started()
        self.state = "subscribed"  # also when ending meanwhile: `drain` is to stop this consumer
        if not self._is_ending:
            self._emit("subscribed")

    def _arguments(self) -> Arguments:
        arguments = self._config.options.all_arguments
        position = self._intake.position
        offset = None if position is None else position.resume_at()
        return arguments if offset is None else {**arguments, OFFSET: offset}

    def end(self, error: BrokerClientError | None = None) -> None:
        """Leave the channel: `run` goes on to the next, unless the subscription ends."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(error)

    def _cancelled_by_broker(self, consumer_tag: str) -> None:
        self.end(ConsumerCancelledError(self._config.name, self._setup.queue))

    # ------------------------------------------------------------------ pausing, prefetch

    @asynccontextmanager
    async def _operation(self) -> AsyncIterator[None]:
        """A turn on the channel. Where it is cancelled, nobody knows what the broker made of it:
        the runner goes on on another channel."""
        async with self._operations:
            try:
                yield
            except asyncio.CancelledError:
                self.end()
                raise

    async def pause(self) -> None:
        """See `Subscription.pause`."""
        async with self._operation():
            if self.is_paused or self._is_ending:
                return
            self.is_paused = True
            self._intake.hold()
            channel = self._channel
            if channel is not None and self.state == "subscribed":
                self.state = "paused"
                await self._stop_consumer(channel)
            self._intake.give_back()
            self._deliveries.give_back()

    async def resume(self) -> None:
        """See `Subscription.resume`."""
        async with self._operation():
            if not self.is_paused or self._is_ending:
                return
            self.is_paused = False
            self._intake.go_on()
            channel = self._channel
            if channel is not None and channel.is_usable and self.state == "paused":
                try:
                    await self._start_consumer(channel)
                except BrokerClientError as error:
                    self.end(error)  # the runner consumes on another

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

    # ------------------------------------------------------------------ ending

    async def drain(self, handlers: TaskGroup, caller: asyncio.Task[Any] | None) -> None:
        """Stop the consumer, give back what has not started, wait for the rest, close."""
        channel = self._channel
        try:
            async with asyncio.timeout(self._config.close_timeout):
                if channel is not None:
                    async with self._operations:
                        if channel.is_usable and self.state == "subscribed":
                            await channel.cancel(self._consumer_tag)
                # Behind the consumer's end, or the broker would deliver them to us again.
                self._intake.give_back()
                self._deliveries.give_back()
                self._deliveries.end()
                await self._in_hand.wait(lambda: channel is not None and channel.is_usable)
                await handlers.wait(spare=caller)
        except TimeoutError:
            log.warning(
                "subscription %s: unsettled messages after %g s: %d; they go back to %s",
                self._config.name,
                self._config.close_timeout,
                len(self._in_hand),
                self._setup.queue,
            )
        except BrokerClientError as error:
            log.info("subscription %s: while closing: %s", self._config.name, error)
        if channel is not None and channel.is_usable:
            await channel.close()

    async def _sleep_unless_stopping(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._in_hand.closing.wait()
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
