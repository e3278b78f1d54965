"""One channel of a reading query: consumes, and closes segments by rows, bytes or age."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from broker_client.errors import BrokerClientError, ChannelClosedError, TransportError
from broker_client.message import Delivery
from broker_client.spark.reading.rows import Row, arrived
from broker_client.spark.reading.segment_store import SegmentStore
from broker_client.transport.base import Channel, ConsumerCallbacks

log: logging.Logger = logging.getLogger("broker_client.spark.source")


class ReadProgress:
    """How far a query has read, over all its sessions."""

    def __init__(self) -> None:
        self.started: threading.Event = threading.Event()
        """Set once a session consumes, or waits for room."""
        self.target: int | None = None
        """Rows after which the query ends; None is never."""
        self.taken: int = 0
        """Rows on their way into the spool or there, and redeliveries that were dropped."""
        self.dropped: int = 0
        """Redeliveries of messages that the spool had already."""
        self.is_waiting_for_room = False
        """The spool is full; nothing is consumed and nothing unacked."""
        self.room: asyncio.Event = asyncio.Event()
        """Set when segments were deleted."""

    @property
    def is_done(self) -> bool:
        """The target is reached."""
        return self.target is not None and self.taken >= self.target

    def note_dropped(self) -> None:
        """Count a redelivery that was left out."""
        self.dropped += 1
        self.taken += 1


class ConsumingSession:
    """One channel's worth of consuming: the buffer, and when it becomes a segment."""

    def __init__(self, channel: Channel, store: SegmentStore, progress: ReadProgress) -> None:
        self._channel = channel
        self._store = store
        self._progress = progress
        self._options = options = store.options
        self._spool = store.spool
        # A segment must be due before the prefetch is used up, or all wait for its age.
        self._segment_rows = min(options.segment_rows, max(1, options.prefetch // 2))
        self._rows: list[Row] = []
        self._bytes = 0
        self._tag = 0  # last delivery tag that is in `_rows`, or dropped
        self._acked_tag = 0
        self._due: float | None = None
        self._heard = 0.0
        self._wake = asyncio.Event()
        self._lost: TransportError | None = None
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        channel.on_close = self._closed

    # ------------------------------------------------------------------ callbacks

    def _closed(self, error: TransportError) -> None:
        self._lost = error
        self._wake.set()

    def _cancelled(self, consumer_tag: str) -> None:
        self._closed(ChannelClosedError(0, "the broker cancelled the consumer"))

    def _timed_out(self, delivery_tag: int) -> None:
        """A built-in broker took a delivery back; it will come again, as redelivered."""

    def _delivered(self, delivery: Delivery) -> None:
        self._heard = self._clock()
        if self._left() == 0:
            return  # beyond the target: stays unacked, and goes back when we leave
        self._tag = delivery.delivery_tag
        if self._store.is_known(delivery):
            self._progress.note_dropped()
        else:
            self._rows.append(arrived(delivery))
            self._bytes += len(delivery.body)
        if self._due is None:
            self._due = self._heard + self._options.segment_age
            self._wake.set()
        if self._is_big() or self._left() == 0:
            self._wake.set()

    def _left(self) -> int | None:
        progress = self._progress
        if progress.target is None:
            return None
        return max(0, progress.target - progress.taken - len(self._rows))

    def _is_big(self) -> bool:
        return len(self._rows) >= self._segment_rows or self._bytes >= self._options.segment_bytes

    # ------------------------------------------------------------------ the work

    async def run(self) -> None:
        """Consume; returns when the limit is reached, raises when the channel is lost."""
        while self._left() != 0:
            await self._wait_for_room()
            consumer = await self._channel.consume(
                self._store.queue,
                ConsumerCallbacks(self._delivered, self._cancelled, self._timed_out),
                exclusive=self._options.exclusive,
            )
            self._heard = self._clock()
            try:
                state = await self._channel.check_queue(self._store.queue)
                self._store.check_alone(state.consumer_count - 1)
                self._progress.started.set()
                is_done = await self._fill_until_done()
            except BaseException:
                # A channel that is lost meanwhile must not hide that we were told to end.
                with suppress(BrokerClientError):
                    await self._give_back(consumer)
                raise
            await self._give_back(consumer)
            if is_done:
                return

    async def _give_back(self, consumer: str) -> None:
        if not self._channel.is_usable:
            return
        await self._channel.cancel(consumer)
        # Delivery tag 0 with `multiple` is every unacked one (AMQP 0-9-1 §1.8.3.14).
        self._channel.nack(0, requeue=True, multiple=True)
        await self._channel.check_queue(self._store.queue)
        self._rows, self._bytes, self._due = [], 0, None

    async def _wait_for_room(self) -> None:
        progress = self._progress
        while not self._spool.has_room_for(0):
            progress.is_waiting_for_room = True
            progress.started.set()
            log.warning("%r is full; nothing is consumed until a batch ends", self._spool)
            progress.room.clear()
            if self._spool.has_room_for(0):
                break
            while not progress.room.is_set():
                self._check_alive()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await progress.room.wait()
        progress.is_waiting_for_room = False

    async def _fill_until_done(self) -> bool:
        """Write segments; True when nothing more is wanted, False when the spool is full."""
        while True:
            await self._sleep()
            self._check_alive()
            now = self._clock()
            left = self._left()
            idle = left is not None and now - self._heard >= self._options.drain_idle
            done = left == 0 or idle
            if self._is_big() or done or (self._due is not None and now >= self._due):
                if self._rows and not self._spool.has_room_for(self._bytes):
                    return False
                await self._close_segment()
            if done and not self._rows:
                if idle:
                    self._progress.target = self._progress.taken
                return True

    async def _sleep(self) -> None:
        """Wait until there is something to do."""
        moments = [self._due] if self._due is not None else []
        if self._left() is not None:
            moments.append(self._heard + self._options.drain_idle)
        if not self._is_big():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(moments, default=None)):
                    await self._wake.wait()
        self._wake.clear()

    async def _close_segment(self) -> None:
        most = self._segment_rows
        rows, self._rows = self._rows[:most], self._rows[most:]
        # Tags come in order, so those of the rows that stay are above that of the last one taken.
        tag = rows[-1].delivery.delivery_tag if self._rows else self._tag
        self._bytes = sum(len(row.delivery.body) for row in self._rows)
        if not self._rows:
            self._due = None
        self._progress.taken += len(rows)  # before any await: see `_left`
        if tag > self._acked_tag:
            await self._store.store(self._channel, rows, tag)
            self._acked_tag = tag

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost
