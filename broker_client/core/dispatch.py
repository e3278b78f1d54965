"""What becomes of entries that are out: settled, given back, deferred, timed out.

How they got there is in `outward`, how they end otherwise in `deaths`.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_client.amqp import x_death
from broker_client.core.effects import (
    CancelConsumer,
    CloseChannel,
    MessageTimedOut,
)
from broker_client.core.latency import LatencyWindow
from broker_client.core.outward import Outward
from broker_client.core.queue import NEVER, ChannelState, Consumer, Entry, Queue
from broker_client.core.settings import EngineSettings
from broker_client.core.vhost import VHost
from broker_client.errors import StaleDeliveryError
from broker_client.events.delivery_event import (
    REASON_CONNECTION_LOST,
    REASON_REJECTED,
)


class Dispatcher(Outward):
    """Moves entries between ready, in flight, deferred and gone."""

    def __init__(self, settings: EngineSettings, vhosts: dict[str, VHost]) -> None:
        super().__init__(settings, vhosts)
        self.late_settles = 0
        """Settlements that came after their delivery had been taken back."""
        self._keeps_latency = settings.latency_window > 0

    # ---------------------------------------------------------------- back

    def ack(self, entry: Entry, now: float) -> None:
        """The delivery is done."""
        if self.observer is not None:
            self.observer.acked(entry, now)
        queue = entry.queue
        queue.acked += 1
        if entry.consumer is not None:
            entry.consumer.acked += 1
        if self._keeps_latency and entry.enqueued_at:
            if queue.latency is None:
                queue.latency = LatencyWindow(self.settings.latency_window)
            queue.latency.add(now - entry.enqueued_at, now)
        self.keeper.settled(entry)
        self._release(entry, now)

    def discard(self, entry: Entry, now: float) -> None:
        """Rejected without requeue: dead-lettered or dropped."""
        if self.observer is not None:
            self.observer.nacked(entry, now)
        if entry.consumer is not None:
            entry.consumer.rejected += 1
        self._die(entry, x_death.REJECTED, now)
        self._release(entry, now)

    def defer(self, entry: Entry, delay: float, now: float) -> None:
        """Back to ready after `delay` seconds, at the tail."""
        queue = entry.queue
        if self.observer is not None:
            self.observer.nacked(entry, now)
            self.observer.requeued(entry, REASON_REJECTED, now)
        if entry.consumer is not None:
            entry.consumer.requeued += 1
        if queue.deleted:
            self.keeper.settled(entry)
        else:
            queue.requeued += 1
            if not self._over_delivery_limit(entry, now):
                due = now + min(max(delay, 0.0), self.settings.max_requeue_timeout)
                queue.deferred.set(entry, due)
                self.keeper.moved(entry, due)
                self.schedule.note(queue, due)
        self._release(entry, now)

    def give_back(
        self, entries: Iterable[Entry], now: float, reason: str = REASON_CONNECTION_LOST
    ) -> None:
        """Requeue deliveries, each to where it was, to be redelivered."""
        queues: dict[Queue, None] = {}
        for entry in reversed(list(entries)):  # the last first, so that each becomes the head
            queue = entry.queue
            queue.requeued += 1
            if entry.consumer is not None:
                entry.consumer.requeued += 1
            if self.observer is not None:
                if reason == REASON_REJECTED:
                    self.observer.nacked(entry, now)
                self.observer.requeued(entry, reason, now)
            if (opened := self._free(entry)) is not None:
                self._open(opened, queues)
            if not queue.deleted:
                queues[queue] = None
                if not self._over_delivery_limit(entry, now):
                    queue.restore(entry)
            else:
                self.keeper.settled(entry)
        self._settle_down(queues, now)

    def take_back(self, entries: Iterable[Entry], now: float) -> int:
        """Drop deliveries that were revoked from their ledgers (purge); returns their number."""
        queues: dict[Queue, None] = {}
        revoked = list(entries)
        for entry in revoked:
            if (opened := self._free(entry)) is not None:
                self._open(opened, queues)
        count = self.drop_all(revoked)
        self._settle_down(queues, now)
        return count

    def _settle_down(self, queues: Iterable[Queue], now: float) -> None:
        for queue in queues:
            self._trim(queue, now)
            self.pump(queue, now)

    def _release(self, entry: Entry, now: float) -> None:
        opened = self._free(entry)
        queue = entry.queue
        if queue.ready or self._dead:
            self.pump(queue, now)
        if opened is not None:
            queues: dict[Queue, None] = {}
            self._open(opened, queues)
            self._settle_down(queues, now)

    def _free(self, entry: Entry) -> ChannelState | None:
        """Count the entry out of flight and its consumer's prefetch.

        Returns the channel, where that opens the window that its consumers share: `_open` it.
        """
        entry.out = False
        queue = entry.queue
        queue.in_flight -= 1
        consumer = entry.consumer
        if consumer is None:
            return None
        consumer.in_flight -= 1
        channel = consumer.channel
        opened = None
        if channel.window:
            channel.held -= 1
            opened = channel if channel.held + 1 == channel.window else None
        if not consumer.able and consumer.active:
            queue.offer(consumer)
        return opened

    def _open(self, channel: ChannelState, queues: dict[Queue, None]) -> None:
        for consumer in channel.consumers.values():
            consumer.queue.offer(consumer)
            queues[consumer.queue] = None

    # ---------------------------------------------------------------- consumers

    def add_consumer(self, consumer: Consumer, now: float) -> None:
        """Let a consumer take part."""
        if consumer.closes_on_timeout:
            consumer.channel.closes_on_timeout = True
        consumer.channel.consumers[consumer.tag] = consumer
        consumer.queue.join(consumer)
        self.pump(consumer.queue, now)

    def limit(self, channel: ChannelState, window: int, now: float) -> None:
        """Let all consumers of `channel` together hold `window` deliveries; 0 is no limit."""
        channel.window = window
        channel.held = sum(entry.consumer is not None for entry in channel.ledger.entries())
        queues: dict[Queue, None] = {}
        for consumer in channel.consumers.values():
            if not consumer.has_room:
                consumer.queue.withhold(consumer)
        self._open(channel, queues)
        self._settle_down(queues, now)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Take it out, its deliveries staying in flight."""
        del consumer.channel.consumers[consumer.tag]
        consumer.queue.leave(consumer)

    def retire_queue(self, queue: Queue) -> None:
        """Empty a queue that is being deleted, and tell its consumers."""
        queue.deleted = True
        self._unfinished.pop(queue, None)
        self.schedule.forget(queue)
        for consumer in list(queue.consumers):
            self.remove_consumer(consumer)
            self.effects.append(CancelConsumer(consumer.channel.id, consumer.tag))
        self.drop_all(queue.clear())
        self.drop_all(queue.deferred.clear())

    # ---------------------------------------------------------------- time

    def touch(self, channel: ChannelState, tag: int, now: float) -> float:
        """Extend a delivery's time; returns the seconds it has left.

        Raises:
            StaleDeliveryError: it is not in flight.
        """
        entry = channel.ledger.get(tag)
        if entry is None:
            raise StaleDeliveryError(tag, "")
        consumer = entry.consumer
        timeout = self.timeout_of(entry.queue) if consumer is None else consumer.timeout
        if not timeout:
            return NEVER
        at = min(now + timeout, entry.delivered_at + self.settings.max_message_timeout)
        at = max(at, channel.ledger.deadline(tag) or at)  # never an earlier one
        channel.ledger.move(tag, at)
        return max(0.0, at - now)

    def release_deferred(self, queue: Queue, now: float, limit: int | None = None) -> bool:
        """Put deferred messages whose time has come at the tail; False when there were none."""
        entries = queue.deferred.pop_due(now, limit)
        for entry in entries:
            self._push_behind(queue, entry)
        self._trim(queue, now)
        self.pump(queue, now)
        return bool(entries)

    def run_now(self, queue: Queue, entries: Iterable[Entry], now: float) -> None:
        """Put deferred messages at the tail before their time."""
        for entry in entries:
            queue.deferred.discard(entry)
            self._push_behind(queue, entry)
        self._trim(queue, now)
        self.pump(queue, now)

    def _push_behind(self, queue: Queue, entry: Entry) -> None:
        entry.position = queue.next_position()
        queue.push(entry)
        self.keeper.moved(entry)

    def must_close(self, channel: ChannelState, now: float) -> CloseChannel | None:
        """Why the channel must close, where x-consumer-timeout is over for one of its deliveries.

        RabbitMQ's way with a slow consumer; without that argument it is `time_out`.
        """
        if channel.closes_on_timeout:
            for entry in channel.ledger.overdue(now):
                queue, consumer = entry.queue, entry.consumer
                closes = (
                    queue.settings.consumer_timeout is not None
                    if consumer is None
                    else consumer.closes_on_timeout
                )
                if closes and not queue.deleted:
                    return _consumer_timed_out(channel, queue)
        return None

    def time_out(self, channel: ChannelState, now: float, limit: int | None = None) -> bool:
        """Give back, to the tail, what was in flight too long, and tell its consumer.

        Returns False when there was nothing.
        """
        queues: dict[Queue, None] = {}
        expired = channel.ledger.expire(now, limit)
        for tag, entry in expired:
            queue = entry.queue
            queue.timed_out += 1
            if self.observer is not None:
                self.observer.timed_out(entry, now)
            if (opened := self._free(entry)) is not None:
                self._open(opened, queues)
            if queue.deleted:
                self.keeper.settled(entry)
                continue
            queues[queue] = None
            if not self._over_delivery_limit(entry, now):
                self._push_behind(queue, entry)
            if entry.consumer is not None:
                entry.consumer.timed_out += 1
                self.effects.append(MessageTimedOut(channel.id, entry.consumer.tag, tag))
        self._settle_down(queues, now)
        return bool(expired)


def _consumer_timed_out(channel: ChannelState, queue: Queue) -> CloseChannel:
    timeout_ms = int((queue.settings.consumer_timeout or 0) * 1000)
    return CloseChannel(
        channel.id,
        406,
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel.id} timed out. "
        f"Timeout value used: {timeout_ms} ms. This timeout value can be configured, see "
        "consumers doc guide to learn more",
    )
