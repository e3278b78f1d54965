"""The deliveries a subscription has in hand, and what became of those it had.

Tags belong to one channel: when that is gone, all that is left here is lost, and the broker
delivers it again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from broker_client.ackornack import AckOrNack, Republisher
from broker_client.config import Nack, Strategy
from broker_client.connection.retry import growing
from broker_client.consuming.ack_deadline import DueWatch
from broker_client.consuming.setup import ConsumingSetup
from broker_client.errors import AlreadySettledError, BrokerClientError, RecoveryFailedError
from broker_client.message import Message
from broker_client.runtime.tasks import wait_in_thread
from broker_client.transport.base import Channel

log = logging.getLogger("broker_client.subscription")

_FAILURES_REMEMBERED = 10_000  # message ids whose failures the default recovery counts


class Emit(Protocol):
    """The subscription's own `emit`: False when nobody listens."""

    def __call__(self, event: str, *args: object) -> bool: ...


class DeliveryObserver(Protocol):
    """Told of every delivery of a subscription: as it comes, and how it ended (`Unsettled`)."""

    def delivered(self, settle: AckOrNack) -> None: ...
    def ended(self, settle: AckOrNack, how: str) -> None: ...


class Unsettled:
    """Keeps the unsettled deliveries of a subscription (`SettleOwner`)."""

    def __init__(
        self,
        setup: ConsumingSetup,
        republisher: Republisher,
        emit: Emit,
        observer: DeliveryObserver | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._setup = setup
        self._config = setup.config
        self._no_ack = setup.config.options.no_ack
        self._emit = emit
        self.republisher = republisher
        self.can_defer = False
        """True while the broker itself gives a message back later."""
        self.closing = asyncio.Event()
        """Set once the subscription ends: waits of recovery end with it."""
        self._observer = observer
        self.on_end: list[Callable[[AckOrNack, str], None]] = []
        """Told of each delivery that is in hand no more, and how it ended: a name of `counts`, or
        ``timed_out``. Not called without acks."""
        if observer is not None:
            self.on_end.append(observer.ended)
        self.counts = dict.fromkeys(
            (
                "delivered",
                "acked",
                "nacked",
                "republished",
                "forwarded",
                "released",
                "skipped",
                "errors",
                "lost",
            ),
            0,
        )
        self._by_tag: dict[int, AckOrNack] = {}
        limit = setup.settle_within
        self._watch = None if limit is None else DueWatch(limit, self._by_tag.values, self._due)
        self._touched: Channel | None = None  # the channel of `_touch`: one for all its deliveries
        self._touch: Callable[[int], float]
        self._all_settled = asyncio.Event()
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._deferred = 0  # recoveries that wait here, each in a place of the prefetch
        self._is_saturated = False

    def __len__(self) -> int:
        return len(self._by_tag)

    @property
    def dead_letter_exchange(self) -> str | None:
        return self._setup.dead_letter_exchange

    @property
    def max_hops(self) -> int | None:
        return self._config.max_hops

    def add(self, settle: AckOrNack) -> None:
        """`settle` has been delivered."""
        self.counts["delivered"] += 1
        if self._no_ack:
            settle.lose()  # the broker counted it as settled when it sent it
        else:
            self._by_tag[settle.message.delivery.delivery_tag] = settle
            if self._watch is not None:
                self._watch.begin(settle)
        if self._observer is not None:
            self._observer.delivered(settle)

    def lose_all(self) -> None:
        """The channel is gone."""
        lost = list(self._by_tag.values())
        self._by_tag.clear()
        if self._watch is not None:
            self._watch.stop()
        for settle in lost:
            settle.lose()
            self._ended(settle, "lost")
        self._all_settled.set()

    async def wait(self, is_usable: Callable[[], bool]) -> None:
        """Until nothing is in hand, or `is_usable` says that the channel is gone."""
        while self._by_tag and is_usable():
            self._all_settled.clear()
            await self._all_settled.wait()

    # ------------------------------------------------------------------ recovery

    async def pause(self, seconds: float) -> bool:
        """Wait with a delivery in hand; False as soon as the subscription ends."""
        self._deferred += 1
        self._look_for_room()
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return True
        finally:
            self._deferred -= 1
            self._look_for_room()
        return False

    def _look_for_room(self) -> None:
        """Say so, once, when every place of the prefetch is taken by a recovery that waits."""
        limits = [self._config.prefetch, self._config.channel_prefetch]
        limit = min((each for each in limits if each), default=None)
        was, self._is_saturated = self._is_saturated, limit is not None and self._deferred >= limit
        if self._is_saturated and not was and not self._emit("prefetch_saturated", self._deferred):
            log.warning(
                "subscription %s: %d messages wait for their defer, which is all of the prefetch; "
                "nothing else is delivered meanwhile",
                self._config.name,
                self._deferred,
            )

    def default_recovery(self, message: Message) -> tuple[Strategy, ...]:
        """The chain of the configuration; or requeue, later each time it fails again.

        The wait keeps a message that always fails from going round as fast as it can. A stream
        takes nothing back, so there the message is passed over.
        """
        if self._config.recovery is not None:
            return self._config.recovery
        return (self.another_try(message),)

    def another_try(self, message: Message) -> Nack:
        """Requeue, later each time that `message` comes to this; a stream takes nothing back."""
        if self._setup.is_stream:
            return Nack()
        key = message.message_id or f"{message.vhost}/{message.queue}/{hash(message.body)}"
        failures = self._failures.pop(key, 0)
        self._failures[key] = failures + 1
        while len(self._failures) > _FAILURES_REMEMBERED:
            self._failures.popitem(last=False)
        return Nack(requeue=True, defer=growing(self._config.requeue_defer, failures))

    # ------------------------------------------------------------------ reports of AckOrNack

    def settled(self, settle: AckOrNack, how: str) -> None:
        self._by_tag.pop(settle.message.delivery.delivery_tag, None)
        self.counts[how] += 1
        for tell in self.on_end:
            tell(settle, how)
        if self._failures:
            self._forget_failures(settle, how)
        if not self._by_tag:
            self._all_settled.set()

    def settled_through(self, settle: AckOrNack, how: str) -> None:
        tag = settle.message.delivery.delivery_tag
        done = [each for each in self._by_tag if each <= tag]
        for each in done:
            covered = self._by_tag.pop(each)
            if covered is not settle:
                covered.cover(settle)
            self._ended(covered, how)
        self.counts[how] += len(done)
        self._forget_failures(settle, how)
        if not self._by_tag:
            self._all_settled.set()

    def _forget_failures(self, settle: AckOrNack, how: str) -> None:
        if how not in ("nacked", "released") and settle.message.message_id:
            self._failures.pop(settle.message.message_id, None)

    def settle_lost(self, settle: AckOrNack, error: BrokerClientError) -> None:
        if self._no_ack:
            return  # nothing to settle
        self.counts["lost"] += 1
        if self._by_tag.get(settle.message.delivery.delivery_tag) is settle:
            self._drop(settle, "lost")
        if not self._emit("ack_lost", settle.message, error):
            log.warning("subscription %s: %s", self._config.name, error)

    def settled_twice(self, error: AlreadySettledError) -> None:
        if not self._emit("already_settled", error):
            log.warning("subscription %s: %s", self._config.name, error)

    def recovery_failed(self, error: RecoveryFailedError) -> None:
        if not self._emit("recovery_failed", error):
            log.warning("subscription %s: %s", self._config.name, error)

    def timed_out(self, delivery_tag: int) -> None:
        """The broker took a delivery back, its time being over."""
        settle = self._by_tag.get(delivery_tag)
        if settle is None:
            return
        settle.lose()
        self._drop(settle, "timed_out")
        if not self._emit("message_timeout", settle.message):
            log.warning(
                "subscription %s: message %s was not settled in time and went back to %s; each "
                "message needs its `await ack_or_nack()`, and touch() gives it more time",
                self._config.name,
                settle.message.message_id,
                self._setup.queue,
            )

    def touch_by(self, channel: Channel) -> Callable[[int], float]:
        """What extends the time of a delivery of `channel`."""
        if self._touched is not channel:
            self._touched, self._touch = channel, self._make_touch(channel)
        return self._touch

    def _make_touch(self, channel: Channel) -> Callable[[int], float]:
        watch, thread = self._watch, threading.get_ident()
        loop = asyncio.get_running_loop()

        def touch_here(delivery_tag: int) -> float:
            left = channel.touch(delivery_tag)
            settle = self._by_tag.get(delivery_tag)
            if watch is not None and settle is not None:
                watch.begin(settle, left)
            return left

        async def touch_there(delivery_tag: int) -> float:
            return touch_here(delivery_tag)

        def touch(delivery_tag: int) -> float:
            if threading.get_ident() == thread:
                return touch_here(delivery_tag)
            return wait_in_thread(loop, touch_there(delivery_tag))  # a plain function's handler

        return touch

    def _due(self, settle: AckOrNack, left: float) -> None:
        if not self._emit("ack_due", settle.message, left):
            log.warning(
                "subscription %s: message %s is unsettled, and its broker waits %.3g s more",
                self._config.name,
                settle.message.message_id,
                left,
            )

    def _drop(self, settle: AckOrNack, how: str) -> None:
        del self._by_tag[settle.message.delivery.delivery_tag]
        self._ended(settle, how)
        if not self._by_tag:
            self._all_settled.set()

    def _ended(self, settle: AckOrNack, how: str) -> None:
        for tell in self.on_end:
            tell(settle, how)
