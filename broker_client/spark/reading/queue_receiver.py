"""The consumer behind the streaming source: from the queue into the spool, then the ack.

One connection on a loop of its own, since Spark's calls come from outside of any loop and may stay
away for minutes. Deliveries are buffered until a segment is due, by rows, bytes or age; then the
segment is written and synced, and only then the messages are acked, with a question behind the
ack whose answer proves that the broker has it. So at any instant a message is unacked at the
broker, or in the spool, or both.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from broker_client.errors import BrokerClientError, ChannelClosedError, TransportError
from broker_client.message import Delivery
from broker_client.spark.endpoints import connect_any
from broker_client.spark.errors import SourceError, SpoolError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.options import SourceOptions
from broker_client.spark.reading.rows import Row, arrived, to_batch
from broker_client.spark.reading.spool import Segment, Spool, read_segment
from broker_client.transport.base import Channel, Connector, ConsumerCallbacks, Link

log: logging.Logger = logging.getLogger("broker_client.spark.source")

_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION = 403, 404, 405, 406
_RETRY_PAUSE = 0.2  # seconds between two sessions
_UNSURE_KEPT = 8  # segments whose ack is in doubt, and whose messages are remembered

Fingerprint = tuple[str, bytes]


def fingerprint(message_id: str, body: bytes) -> Fingerprint:
    """Identifies the message of a redelivery."""
    return message_id, hashlib.blake2b(body, digest_size=16).digest()


class QueueReceiver:
    """Consumes one queue into a spool.

    Args:
        spool: an open spool.
        brokers: where the queue is.
        queue: its name on the broker.
        options: limits and sizes.
        limit: stop after the messages that are there at the start, and so many at most; None goes
            on forever.
    """

    def __init__(
        self,
        spool: Spool,
        brokers: list[Connector],
        queue: str,
        options: SourceOptions,
        *,
        limit: int | None = None,
    ) -> None:
        self.spool = spool
        self._brokers = brokers
        self.queue = queue
        self.options = options
        self._limit = limit
        # A segment must be due before the prefetch is used up, or all wait for its age.
        self.segment_rows: int = min(options.segment_rows, max(1, options.prefetch // 2))
        self._thread: LoopThread | None = None
        self.started: threading.Event = threading.Event()
        self._finished = threading.Event()
        self._failure: BrokerClientError | None = None
        self._unsure: deque[set[Fingerprint]] = deque(maxlen=_UNSURE_KEPT)
        self.target: int | None = None
        self._shared_since: float | None = None  # when acks began to find other consumers
        self.taken: int = 0  # rows on their way into the spool or there, and redeliveries dropped
        self.dropped: int = 0
        """Redeliveries of messages that the spool had already."""
        self.is_waiting_for_room = False
        """The spool is full; nothing is consumed and nothing unacked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue!r}: {self.taken} taken>"

    # ------------------------------------------------------------------ for the planner's thread

    def start(self) -> None:
        """Begin to consume.

        Raises:
            SourceError: the queue cannot be consumed.
            TransportError: no broker answered in time.
        """
        for segment in self.spool.unacked():
            self._doubt(segment)
        self._thread = LoopThread(f"broker source {self.queue}")
        self._thread.start(self._run())
        self.started.wait()
        self.check()

    def check(self) -> None:
        """Raise what made the consumer give up."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_finished(self) -> bool:
        """It has a limit and reached it."""
        return self._finished.is_set()

    def wait(self, timeout: float) -> None:
        """Wait for the end, `timeout` seconds at most."""
        self._finished.wait(timeout)

    def room_made(self) -> None:
        """Segments were deleted."""
        if self._thread is not None and self._thread.is_running and self.is_waiting_for_room:
            self._thread.loop.call_soon_threadsafe(self.room.set)

    def stop(self) -> None:
        """Release everything at once; unacked messages return to the queue."""
        if self._thread is not None:
            self._thread.stop()

    # ------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        self.room: asyncio.Event = asyncio.Event()
        refused_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while not self._finished.is_set():
                try:
                    await self._session()
                except ChannelClosedError as error:
                    if error.reply_code == _ACCESS_REFUSED and self.options.exclusive:
                        # The consumer of a process that was killed takes a moment to go.
                        refused_since = refused_since or clock()
                        if clock() - refused_since < self.options.lock_timeout:
                            # Of two that found each other, one comes first the next time.
                            await asyncio.sleep(_RETRY_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                            continue
                    if error.reply_code in (_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION):
                        raise SourceError(self.queue, _explained(error)) from error
                    log.warning("queue %s: %s; consuming again", self.queue, error)
                except TransportError as error:
                    if not self.started.is_set():
                        raise
                    log.warning("queue %s: %s; connecting again", self.queue, error)
                refused_since = None
                await asyncio.sleep(_RETRY_PAUSE)
        except (BrokerClientError, OSError) as error:
            if isinstance(error, BrokerClientError):
                self._failure = error
            else:
                self._failure = SpoolError(str(self.spool.folder), str(error))
            log.error("queue %s: the source gives up: %s", self.queue, error)
        finally:
            self.started.set()
            self._finished.set()

    async def _session(self) -> None:
        """Consume until the limit is reached; a lost channel or link raises."""
        link = await connect_any(self._brokers, timeout=self.options.connect_timeout)
        try:
            channel = await link.open_channel()
            state = await channel.check_queue(self.queue)
            self.check_alone(state.consumer_count)
            if self._limit is not None and self.target is None:
                self.target = min(self._limit, state.message_count)
            await channel.qos(self.options.prefetch)
            await _Session(self, channel).run()
            if self._is_done():
                self._finished.set()
        finally:
            await _close(link)

    def _is_done(self) -> bool:
        return self.target is not None and self.taken >= self.target

    # ------------------------------------------------------------------ one segment

    async def store(self, channel: Channel, rows: list[Row], tag: int) -> None:
        """`rows` to disk, then their ack: `tag` is the last of them."""
        segment: Segment | None = None
        if rows:
            segment = await asyncio.to_thread(self.write_segment, rows)
        try:
            await self.acknowledge(channel, tag)
        except BaseException:
            if segment is not None:
                self._doubt(segment)
            raise
        if segment is not None:
            self.spool.mark_acked(segment.seq)

    def write_segment(self, rows: list[Row]) -> Segment:
        """Make `rows` a segment. Runs on a thread of its own, since it waits for the disk."""
        return self.spool.append(to_batch(rows, self.queue, self.options.headers))

    async def acknowledge(self, channel: Channel, tag: int) -> None:
        """Ack all up to `tag` and wait until the broker has the ack.

        AMQP 0-9-1 has no answer to basic.ack; RabbitMQ handles a channel's methods in order, so
        the answer to a later one proves it.
        """
        channel.ack(tag, multiple=True)
        state = await channel.check_queue(self.queue)
        if state.consumer_count <= 1:
            self._shared_since = None
            return
        now = asyncio.get_running_loop().time()
        self._shared_since = self._shared_since or now
        if now - self._shared_since >= self.options.lock_timeout:
            self.check_alone(state.consumer_count - 1)

    def check_alone(self, others: int) -> None:
        """Raise as the broker does when the queue has other consumers and must not.

        RabbitMQ refuses a second consumer of an exclusive one on classic queues only; quorum queues
        ignore `exclusive` (https://www.rabbitmq.com/docs/quorum-queues).
        """
        if others > 0 and self.options.exclusive:
            raise ChannelClosedError(
                _ACCESS_REFUSED, f"exclusive use is not possible: {others} other consumers"
            )

    def _doubt(self, segment: Segment) -> None:
        """The broker may hand out these messages again: remember them."""
        known: set[Fingerprint] = set()
        with suppress(FileNotFoundError):
            for batch in read_segment(segment.path):
                ids, bodies = batch.column("message_id"), batch.column("body")
                for message_id, body in zip(ids.to_pylist(), bodies.to_pylist(), strict=True):
                    if message_id is not None:
                        known.add(fingerprint(message_id, body))
        self._unsure.append(known)

    def is_known(self, delivery: Delivery) -> bool:
        """True for a redelivery of a message that the spool has."""
        message_id = delivery.properties.message_id
        if not delivery.redelivered or not self._unsure or message_id is None:
            return False
        print_ = fingerprint(message_id, delivery.body)
        return any(print_ in known for known in self._unsure)

    def note_dropped(self) -> None:
        """Count a redelivery that was left out."""
        self.dropped += 1
        self.taken += 1


class _Session:
    """One channel's worth of consuming: the buffer, and when it becomes a segment."""

    def __init__(self, receiver: QueueReceiver, channel: Channel) -> None:
        self._receiver = receiver
        self._channel = channel
        self.options = receiver.options
        self.spool = receiver.spool
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
        if self._receiver.is_known(delivery):
            self._receiver.note_dropped()
        else:
            self._rows.append(arrived(delivery))
            self._bytes += len(delivery.body)
        if self._due is None:
            self._due = self._heard + self.options.segment_age
            self._wake.set()
        if self._is_big() or self._left() == 0:
            self._wake.set()

    def _left(self) -> int | None:
        receiver = self._receiver
        if receiver.target is None:
            return None
        return max(0, receiver.target - receiver.taken - len(self._rows))

    def _is_big(self) -> bool:
        return (
            len(self._rows) >= self._receiver.segment_rows
            or self._bytes >= self.options.segment_bytes
        )

    # ------------------------------------------------------------------ the work

    async def run(self) -> None:
        """Consume; returns when the limit is reached, raises when the channel is lost."""
        while self._left() != 0:
            await self._wait_for_room()
            consumer = await self._channel.consume(
                self._receiver.queue,
                ConsumerCallbacks(self._delivered, self._cancelled, self._timed_out),
                exclusive=self.options.exclusive,
            )
            self._heard = self._clock()
            try:
                state = await self._channel.check_queue(self._receiver.queue)
                self._receiver.check_alone(state.consumer_count - 1)
                self._receiver.started.set()
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
        await self._channel.check_queue(self._receiver.queue)
        self._rows, self._bytes, self._due = [], 0, None

    async def _wait_for_room(self) -> None:
        receiver = self._receiver
        while not self.spool.has_room_for(0):
            receiver.is_waiting_for_room = True
            receiver.started.set()
            log.warning("%r is full; nothing is consumed until a batch ends", self.spool)
            receiver.room.clear()
            if self.spool.has_room_for(0):
                break
            while not receiver.room.is_set():
                self._check_alive()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await receiver.room.wait()
        receiver.is_waiting_for_room = False

    async def _fill_until_done(self) -> bool:
        """Write segments; True when nothing more is wanted, False when the spool is full."""
        while True:
            await self._sleep()
            self._check_alive()
            now = self._clock()
            left = self._left()
            idle = left is not None and now - self._heard >= self.options.drain_idle
            done = left == 0 or idle
            if self._is_big() or done or (self._due is not None and now >= self._due):
                if self._rows and not self.spool.has_room_for(self._bytes):
                    return False
                await self._close_segment()
            if done and not self._rows:
                if idle:
                    self._receiver.target = self._receiver.taken
                return True

    async def _sleep(self) -> None:
        """Wait until there is something to do."""
        moments = [self._due] if self._due is not None else []
        if self._left() is not None:
            moments.append(self._heard + self.options.drain_idle)
        if not self._is_big():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(moments, default=None)):
                    await self._wake.wait()
        self._wake.clear()

    async def _close_segment(self) -> None:
        most = self._receiver.segment_rows
        rows, self._rows = self._rows[:most], self._rows[most:]
        # Tags come in order, so those of the rows that stay are above that of the last one taken.
        tag = rows[-1].delivery.delivery_tag if self._rows else self._tag
        self._bytes = sum(len(row.delivery.body) for row in self._rows)
        if not self._rows:
            self._due = None
        self._receiver.taken += len(rows)  # before any await: see `_left`
        if tag > self._acked_tag:
            await self._receiver.store(self._channel, rows, tag)
            self._acked_tag = tag

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost


async def _close(link: Link) -> None:
    with suppress(BrokerClientError):
        await link.close()


def _explained(error: ChannelClosedError) -> str:
    if error.reply_code == _NOT_FOUND:
        return f"{error.reply_text} (the source never declares queues; declare it first)"
    if error.reply_code == _ACCESS_REFUSED and "exclusive" in error.reply_text:
        return (
            f"{error.reply_text}: it has another consumer. Two queries on one queue would share "
            "its messages; bind a queue for each, or set exclusive=false"
        )
    return error.reply_text
