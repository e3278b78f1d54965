"""The unacked deliveries of a subscription: each is added once and removed once.

Delivery tags belong to one channel. When it ends, what is unacked on it is lost to us, and the
broker delivers it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from broker_client.consuming.ack_deadlines import AckDeadlines
from broker_client.consuming.checks import Checks
from broker_client.consuming.delivery import DeliveryOutcome, UnackedDelivery
from broker_client.consuming.delivery_log import DeliveryLog
from broker_client.consuming.reports import Reports
from broker_client.consuming.settlements import Settlements
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.stream_position import StreamPosition
from broker_client.errors import (
    AlreadySettledError,
    BrokerClientError,
    ChannelClosedError,
    StaleDeliveryError,
)
from broker_client.runtime.tasks import TaskGroup, wait_in_thread
from broker_client.transport.base import Channel


class Unacked:
    """Keeps the unacked deliveries of a subscription, and settles them with the broker."""

    def __init__(
        self,
        setup: ConsumingSetup,
        checks: Checks,
        tasks: TaskGroup,
        reports: Reports,
        log: DeliveryLog | Settlements | None = None,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            checks: notified how each delivery ended.
            tasks: owner of the tasks in which stores are written.
            reports: notified of what went wrong.
            log: writes down every delivery and how it ended.
        """
        self._setup = setup
        self._no_ack = setup.config.options.no_ack
        self._checks = checks if checks.are_needed else None
        self._tasks = tasks
        self._reports = reports
        self._log = log
        self.position: StreamPosition | None = StreamPosition() if setup.is_stream else None
        """How far a stream was read; None where the queue is not a stream."""
        self.counts: dict[DeliveryOutcome, int] = dict.fromkeys(DeliveryOutcome, 0)
        self.delivered: int = 0
        self.lost_settles: int = 0
        self._by_tag: dict[int, UnackedDelivery] = {}
        limit = setup.settle_within
        self._deadlines = (
            None if limit is None else AckDeadlines(limit, self._by_tag.values(), reports)
        )
        self._touched: Channel | None = None  # the channel of `_touch`: one for all its deliveries
        self._touch: Callable[[int], float]
        self.stale: set[UnackedDelivery] = set()
        """Deliveries that the broker took back while their handlers still run."""
        self._changed: asyncio.Future[None] | None = None  # while a caller waits for a change

    def __len__(self) -> int:
        return len(self._by_tag)

    @property
    def has_overdue(self) -> bool:
        """True while the time of a delivery is nearly over, as far as that time is known."""
        return self._deadlines is not None and self._deadlines.has_overdue

    def held(self) -> set[UnackedDelivery]:
        """Number of deliveries that count towards the prefetch: unacked, or stale."""
        return {*self._by_tag.values(), *self.stale}

    def holds(self, entry: UnackedDelivery) -> bool:
        """True while `entry` is unacked or stale."""
        return entry in self.stale or (
            self._by_tag.get(entry.message.delivery.delivery_tag) is entry
        )

    # ------------------------------------------------------------------ in

    def add(self, entry: UnackedDelivery) -> None:
        self.delivered += 1
        if self._no_ack:
            entry.is_lost = True  # the broker counted it as settled when it sent it
        else:
            self._by_tag[entry.message.delivery.delivery_tag] = entry
            if self._deadlines is not None:
                self._deadlines.start(entry)
        if self._log is not None:
            self._log.delivered(entry.message)

    # ------------------------------------------------------------------ out

    def ack(
        self,
        entry: UnackedDelivery,
        outcome: DeliveryOutcome = DeliveryOutcome.ACKED,
        *,
        all: bool = False,
    ) -> None:
        """Ack `entry`; with `all`, every delivery of its channel up to it, too."""
        channel = entry.channel
        if all:
            self._settle(entry, outcome, lambda tag: channel.ack(tag, multiple=True), all)
            return
        tag = entry.message.delivery.delivery_tag
        if (
            entry.is_lost or self._by_tag.get(tag) is not entry or not channel.is_usable
        ) and not self.is_ours(entry):
            return
        try:
            channel.ack(tag)
        except (ChannelClosedError, StaleDeliveryError) as error:
            self._settle_lost(entry, error)
            return
        self._out(entry, outcome)

    def nack(self, entry: UnackedDelivery, *, requeue: bool, all: bool = False) -> None:
        """Refuse `entry`: handling it failed."""
        entry.requeues = requeue
        channel = entry.channel
        self._settle(
            entry,
            DeliveryOutcome.NACKED,
            lambda tag: channel.nack(tag, requeue=requeue, multiple=all),
            all,
        )

    def requeue_later(self, entry: UnackedDelivery, delay: float) -> None:
        """Return `entry` to its queue after `delay` seconds, by the broker itself."""
        entry.requeues = True
        channel = entry.channel
        self._settle(entry, DeliveryOutcome.NACKED, lambda tag: channel.requeue_later(tag, delay))

    def release(self, entry: UnackedDelivery) -> None:
        """Return `entry` to its queue without counting a failure."""
        entry.requeues = True
        self._settle(entry, DeliveryOutcome.RELEASED, entry.channel.release)

    def release_unhandled(self, entries: Iterable[UnackedDelivery]) -> None:
        """Release those of `entries` that are unsettled and still ours."""
        for entry in entries:
            if entry.is_begun:
                continue
            entry.is_begun = True
            if not entry.is_lost and entry.channel.is_usable:
                self.release(entry)

    def release_all(self) -> None:
        """Release everything, as before an end in order: nothing of it has failed."""
        for entry in list(self._by_tag.values()):
            self.release(entry)
            entry.is_lost = True

    def skip(self, entry: UnackedDelivery) -> None:
        """Ack `entry` without a handler: it was handled before."""
        if not entry.is_begun:
            entry.is_begun = True
            self.ack(entry, DeliveryOutcome.DUPLICATE)

    def time_out(self, delivery_tag: int) -> None:
        """The broker took a delivery back because it timed out."""
        entry = self._by_tag.get(delivery_tag)
        if entry is None:
            return
        self._lose(entry, DeliveryOutcome.TIMED_OUT)
        self._reports.warn(
            "message_timeout",
            entry.message,
            text="message %s was not settled in time and went back to %s; each message needs "
            "its `await ack_or_nack()`, and touch() gives it more time",
            values=(entry.message.message_id, self._setup.queue),
        )

    def lose_all(self) -> None:
        """The channel is gone."""
        if self._deadlines is not None:
            self._deadlines.stop()
        for entry in list(self._by_tag.values()):
            self._lose(entry, DeliveryOutcome.LOST)
        self._wake()

    def _lose(self, entry: UnackedDelivery, outcome: DeliveryOutcome) -> None:
        entry.is_lost = True
        if entry.handlers:
            self.stale.add(entry)
        self._out(entry, outcome)

    def handlers_ended(self, entry: UnackedDelivery) -> None:
        """No handler of `entry` runs any more."""
        if self.stale:
            self.stale.discard(entry)
            self._wake()

    def is_ours(self, entry: UnackedDelivery) -> bool:
        """True if `entry` can still be settled; otherwise reported.

        A tag means nothing on another channel, so a late settle is never sent; the broker
        delivers the message again.
        """
        delivery = entry.message.delivery
        if not entry.is_lost and entry.channel.is_usable:
            if self._by_tag.get(delivery.delivery_tag) is entry:
                return True
            self.report_second_settle(entry)  # RabbitMQ: a tag settled twice closes the channel
            return False
        self._settle_lost(entry, StaleDeliveryError(delivery.delivery_tag, delivery.consumer_tag))
        return False

    def report_second_settle(self, entry: UnackedDelivery) -> None:
        """`entry` was settled before: nothing is sent."""
        delivery = entry.message.delivery
        error = AlreadySettledError(delivery.delivery_tag, delivery.consumer_tag)
        self._reports.warn("already_settled", error, text="%s", values=(error,))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; checked whenever a delivery leaves."""
        while not condition():
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)

    def _wake(self) -> None:
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)

    def _settle(
        self,
        entry: UnackedDelivery,
        outcome: DeliveryOutcome,
        send: Callable[[int], None],
        all: bool = False,
    ) -> None:
        tag = entry.message.delivery.delivery_tag
        if (
            entry.is_lost or self._by_tag.get(tag) is not entry or not entry.channel.is_usable
        ) and not self.is_ours(entry):
            return
        try:
            send(tag)
        except (ChannelClosedError, StaleDeliveryError) as error:
            self._settle_lost(entry, error)
            return
        if all:
            for covered in [self._by_tag[each] for each in self._by_tag if each < tag]:
                covered.is_begun = True
                covered.error, covered.requeues = entry.error, entry.requeues
                self._out(covered, outcome)
        self._out(entry, outcome)

    def _settle_lost(self, entry: UnackedDelivery, error: BrokerClientError) -> None:
        if self._no_ack:
            return  # nothing to settle
        self.lost_settles += 1
        if self._by_tag.get(entry.message.delivery.delivery_tag) is entry:
            self._out(entry, DeliveryOutcome.LOST)
        self._reports.warn("ack_lost", entry.message, error, text="%s", values=(error,))

    def _out(self, entry: UnackedDelivery, outcome: DeliveryOutcome) -> None:
        """Remove `entry`: the only way out."""
        del self._by_tag[entry.message.delivery.delivery_tag]
        self.counts[outcome] += 1
        entry.outcome = outcome
        if self.position is not None:
            self.position.ended(entry.message.delivery, outcome)
        if self._checks is not None:
            writing = self._checks.ended(entry, outcome)
            if writing is not None:
                self._tasks.spawn(writing, "remember")
        if self._log is not None:
            self._log.ended(entry.message, outcome, entry.error, requeues=entry.requeues)
        if self._changed is not None:
            self._wake()

    # ------------------------------------------------------------------ more time

    def touch_on(self, channel: Channel) -> Callable[[int], float]:
        """A function that extends the time-out of a delivery of `channel`."""
        if self._touched is not channel:
            self._touched, self._touch = channel, self._make_touch(channel)
        return self._touch

    def _make_touch(self, channel: Channel) -> Callable[[int], float]:
        deadlines, thread = self._deadlines, threading.get_ident()
        loop = asyncio.get_running_loop()

        def touch_here(delivery_tag: int) -> float:
            left = channel.touch(delivery_tag)
            entry = self._by_tag.get(delivery_tag)
            if deadlines is not None and entry is not None:
                deadlines.start(entry, left)
            return left

        async def touch_there(delivery_tag: int) -> float:
            return touch_here(delivery_tag)

        def touch(delivery_tag: int) -> float:
            if threading.get_ident() == thread:
                return touch_here(delivery_tag)
            return wait_in_thread(loop, touch_there(delivery_tag))  # a plain function's handler

        return touch
