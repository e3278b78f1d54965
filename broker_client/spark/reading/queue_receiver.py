"""The consumer behind the streaming source: from the queue into the spool, then the ack.

One connection on a loop of its own, since Spark's calls come from outside of any loop and may stay
away for minutes. A lost channel or link begins a new session: see `consuming_session` for how
deliveries become segments, and `segment_store` for how these are written and acked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import suppress

from broker_client.errors import BrokerClientError, ChannelClosedError, TransportError
from broker_client.spark.endpoints import connect_any
from broker_client.spark.errors import SourceError, SpoolError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.reading.consuming_session import ConsumingSession, ReadProgress
from broker_client.spark.reading.segment_store import SegmentStore
from broker_client.transport.base import Connector, Link

log: logging.Logger = logging.getLogger("broker_client.spark.source")

_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION = 403, 404, 405, 406
_RETRY_PAUSE = 0.2  # seconds between two sessions


class QueueReceiver:
    """Consumes one queue into a spool.

    Args:
        store: of the segments of the queue.
        brokers: where the queue is.
        limit: stop after the messages that are there at the start, and so many at most; None goes
            on forever.
    """

    def __init__(
        self, store: SegmentStore, brokers: list[Connector], *, limit: int | None = None
    ) -> None:
        self._store = store
        self._brokers = brokers
        self._queue = store.queue
        self._options = store.options
        self._limit = limit
        self._progress = ReadProgress()
        self._thread: LoopThread | None = None
        self._finished = threading.Event()
        self._failure: BrokerClientError | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._queue!r}: {self._progress.taken} taken>"

    # ------------------------------------------------------------------ for the planner's thread

    def start(self) -> None:
        """Begin to consume.

        Raises:
            SourceError: the queue cannot be consumed.
            TransportError: no broker answered in time.
        """
        self._store.remember_unacked()
        self._thread = LoopThread(f"broker source {self._queue}")
        self._thread.start(self._run())
        self._progress.started.wait()
        self.check()

    def check(self) -> None:
        """Raise what made the consumer give up."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_finished(self) -> bool:
        """It has a limit and reached it."""
        return self._finished.is_set()

    @property
    def is_waiting_for_room(self) -> bool:
        """The spool is full; nothing is consumed and nothing unacked."""
        return self._progress.is_waiting_for_room

    def wait(self, timeout: float) -> None:
        """Wait for the end, `timeout` seconds at most."""
        self._finished.wait(timeout)

    def room_made(self) -> None:
        """Segments were deleted."""
        if (
            self._thread is not None
            and self._thread.is_running
            and self._progress.is_waiting_for_room
        ):
            self._thread.loop.call_soon_threadsafe(self._progress.room.set)

    def stop(self) -> None:
        """Release everything at once; unacked messages return to the queue."""
        if self._thread is not None:
            self._thread.stop()

    # ------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        refused_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while not self._finished.is_set():
                try:
                    await self._session()
                except ChannelClosedError as error:
                    if error.reply_code == _ACCESS_REFUSED and self._options.exclusive:
                        # The consumer of a process that was killed takes a moment to go.
                        refused_since = refused_since or clock()
                        if clock() - refused_since < self._options.lock_timeout:
                            # Of two that found each other, one comes first the next time.
                            await asyncio.sleep(_RETRY_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                            continue
                    if error.reply_code in (_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION):
                        raise SourceError(self._queue, _explained(error)) from error
                    log.warning("queue %s: %s; consuming again", self._queue, error)
                except TransportError as error:
                    if not self._progress.started.is_set():
                        raise
                    log.warning("queue %s: %s; connecting again", self._queue, error)
                refused_since = None
                await asyncio.sleep(_RETRY_PAUSE)
        except (BrokerClientError, OSError) as error:
            if isinstance(error, BrokerClientError):
                self._failure = error
            else:
                self._failure = SpoolError(str(self._store.spool.folder), str(error))
            log.error("queue %s: the source gives up: %s", self._queue, error)
        finally:
            self._progress.started.set()
            self._finished.set()

    async def _session(self) -> None:
        """Consume until the limit is reached; a lost channel or link raises."""
        link = await connect_any(self._brokers, timeout=self._options.connect_timeout)
        try:
            channel = await link.open_channel()
            state = await channel.check_queue(self._queue)
            self._store.check_alone(state.consumer_count)
            if self._limit is not None and self._progress.target is None:
                self._progress.target = min(self._limit, state.message_count)
            await channel.qos(self._options.prefetch)
            await ConsumingSession(channel, self._store, self._progress).run()
            if self._progress.is_done:
                self._finished.set()
        finally:
            await _close(link)


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
