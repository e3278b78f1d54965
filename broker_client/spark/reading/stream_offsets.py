"""Reading a RabbitMQ stream by its offsets, over AMQP 0-9-1.

RabbitMQ: a queue declared with ``x-queue-type: stream`` keeps its messages when they are read; a
consumer says with ``x-stream-offset`` where to begin, must set a prefetch and must ack, which only
asks for more. Each delivery carries its offset in a header. The ready count of a passive declare
is always 0, so the end is found by reading the last chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

from broker_client.errors import BrokerClientError, ChannelClosedError, TransportError
from broker_client.message import Delivery
from broker_client.spark.endpoints import connect_any
from broker_client.spark.errors import SourceError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.reading.rows import Row, arrived, stream_offset
from broker_client.transport.base import Channel, Connector, ConsumerCallbacks, Link

_PREFETCH = 1_000
_CHUNK = 5_000  # rows handed to Spark at a time
_QUIET = 0.2  # seconds without a delivery after which the last chunk is taken to be read


class StreamEnd:
    """Finds the end of a stream again and again, over one link."""

    def __init__(self, brokers: list[Connector], queue: str, *, timeout: float) -> None:
        self._brokers = brokers
        self._queue = queue
        self._timeout = timeout
        self._thread = LoopThread(f"broker stream {queue}")
        self._link: Link | None = None

    def find(self) -> int:
        """The offset behind the last message, 0 for an empty stream.

        A message that arrives meanwhile may or may not be counted.

        Raises:
            SourceError: there is no such stream.
            TransportError: the broker did not answer.
        """
        return self._thread.call(self._find())

    def stop(self) -> None:
        """Release the link."""
        self._thread.stop()

    async def _find(self) -> int:
        if self._link is None or not self._link.is_open:
            self._link = await connect_any(self._brokers, timeout=self._timeout)
        end = 0
        async with _consuming(self._link, self._queue, "last") as deliveries:
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(_QUIET):
                        offset, _ = await deliveries.next()
                        end = offset + 1
        return end

    def __repr__(self) -> str:
        return f"<StreamEnd of {self._queue!r}>"


def read_range(
    brokers: list[Connector], queue: str, start: int, end: int, *, timeout: float, gap_ok: bool
) -> Iterator[list[Row]]:
    """The messages with offsets from `start` up to, not including, `end`.

    Args:
        brokers: where the stream is.
        queue: its name.
        start: first offset.
        end: the offset behind the last one.
        timeout: seconds to wait for the next message before giving up.
        gap_ok: begin later when the stream does not go back as far as `start`.

    Raises:
        SourceError: the stream was cut off behind `start`, or ends before `end`.
    """
    thread = LoopThread(f"broker stream {queue}")
    chunks = _chunks(brokers, queue, start, end, timeout, gap_ok)
    try:
        while True:
            chunk = thread.call(_next(chunks))
            if chunk is None:
                return
            yield chunk
    finally:
        thread.call(chunks.aclose())
        thread.stop()


async def _next(chunks: AsyncIterator[list[Row]]) -> list[Row] | None:
    return await anext(chunks, None)


async def _chunks(
    brokers: list[Connector], queue: str, start: int, end: int, timeout: float, gap_ok: bool
) -> AsyncGenerator[list[Row], None]:
    link = await connect_any(brokers, timeout=timeout)
    try:
        rows: list[Row] = []
        last = start - 1
        async with _consuming(link, queue, start) as deliveries:
            while last < end - 1:
                try:
                    async with asyncio.timeout(timeout):
                        offset, delivery = await deliveries.next()
                except TimeoutError:
                    raise SourceError(queue, f"the stream ends before offset {end - 1}") from None
                if offset < start:
                    continue  # RabbitMQ sends whole chunks
                if last < start and offset > start and not gap_ok:
                    raise SourceError(
                        queue,
                        f"the stream begins at offset {offset} and {start} is wanted: its "
                        "retention has dropped messages; failOnDataLoss=false goes on without them",
                    )
                last = offset
                if offset < end:
                    rows.append(arrived(delivery))
                if len(rows) >= _CHUNK:
                    yield rows
                    rows = []
        if rows:
            yield rows
    finally:
        with suppress(BrokerClientError):
            await link.close()


class _Deliveries:
    """Deliveries of one consumer, acked as they are taken."""

    def __init__(self, channel: Channel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._arrived: asyncio.Queue[Delivery | TransportError] = asyncio.Queue()
        channel.on_close = self._arrived.put_nowait

    def callbacks(self) -> ConsumerCallbacks:
        def cancelled(consumer_tag: str) -> None:
            self._arrived.put_nowait(ChannelClosedError(0, "the broker cancelled the consumer"))

        return ConsumerCallbacks(self._arrived.put_nowait, cancelled, lambda tag: None)

    async def next(self) -> tuple[int, Delivery]:
        """The next message and its offset."""
        item = await self._arrived.get()
        if isinstance(item, TransportError):
            raise item
        offset = stream_offset(item)
        if offset is None:  # not acked: another kind of queue would lose it
            raise SourceError(
                self._queue,
                "it is not a stream: its messages have no offset; leave mode=stream out",
            )
        self._channel.ack(item.delivery_tag)
        return offset, item


@asynccontextmanager
async def _consuming(link: Link, queue: str, offset: int | str) -> AsyncIterator[_Deliveries]:
    channel = await link.open_channel()
    deliveries = _Deliveries(channel, queue)
    try:
        await channel.qos(_PREFETCH)
        await channel.consume(queue, deliveries.callbacks(), arguments={"x-stream-offset": offset})
    except ChannelClosedError as error:
        if error.reply_code:
            raise SourceError(queue, f"{error.reply_text} (mode=stream)") from error
        raise
    try:
        yield deliveries
    finally:
        with suppress(BrokerClientError):
            await channel.close()
