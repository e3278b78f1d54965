"""Segments: deliveries to disk, then their ack, and what is known of acks in doubt.

The ack has a question behind it, whose answer proves that the broker has it. So at any instant a
message is unacked at the broker, or in the spool, or both.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from contextlib import suppress

from broker_client.errors import ChannelClosedError
from broker_client.message import Delivery
from broker_client.spark.options import SourceOptions
from broker_client.spark.reading.rows import Row, to_batch
from broker_client.spark.reading.spool import Segment, Spool, read_segment
from broker_client.transport.base import Channel

_ACCESS_REFUSED = 403
_UNSURE_KEPT = 8  # segments whose ack is in doubt, and whose messages are remembered

Fingerprint = tuple[str, bytes]


def fingerprint(message_id: str, body: bytes) -> Fingerprint:
    """Identifies the message of a redelivery."""
    return message_id, hashlib.blake2b(body, digest_size=16).digest()


class SegmentStore:
    """Writes the segments of one queue into a spool, and acks their messages.

    Args:
        spool: an open spool.
        queue: name of the queue on the broker.
        options: limits and sizes.
    """

    def __init__(self, spool: Spool, queue: str, options: SourceOptions) -> None:
        self.spool = spool
        self.queue = queue
        self.options = options
        self._unsure: deque[set[Fingerprint]] = deque(maxlen=_UNSURE_KEPT)
        self._shared_since: float | None = None  # when acks began to find other consumers

    def remember_unacked(self) -> None:
        """Remember the messages of segments whose ack an earlier process may not have sent."""
        for segment in self.spool.unacked():
            self._doubt(segment)

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
