"""The outbox: publishes that are on disk before `publish` returns.

The outbox is a durable queue of the built-in broker, in a file, in front of a vhost's publish
queue. A publish is accepted once it is committed there. One consumer takes them out again in
order, gives them to the publish queue, and acks each when the remote broker has confirmed it.
Messages that a crash leaves unacked are sent again by the next process that opens the file, with
the same message id. Messages that the remote broker refuses or cannot route go to a second queue in
the file, `outbox.failed`, for a person to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from broker_client.amqp.properties import decode_properties, encode_properties
from broker_client.errors import (
    PUBLISH_REFUSALS,
    BrokerClientError,
    ChannelClosedError,
    MessageTooLargeError,
    PublishAbortedError,
    PublishError,
)
from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.publication import Publication
from broker_client.publishing.queue import PublishQueue
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel, Connector, ConsumerCallbacks, Link
from broker_client.transport.confirms import ConfirmLedger

log: logging.Logger = logging.getLogger("broker_client.outbox")

WAITING, FAILED = "outbox", "outbox.failed"
_ENVELOPE = "broker_client.outbox"  # the one header of a stored message
_PREFETCH = 2000  # publishes out of the file at a time
_OPEN_TIMEOUT = 30.0  # seconds to read a large file


class Outbox:
    """The outbox of one vhost.

    Args:
        connector: to the file.
        queue: the vhost's publish queue.
        tasks: owner of the forwarding task, and of the listeners of publications.
        failed: notified of each publish that the remote broker will not have.
    """

    def __init__(
        self,
        connector: Connector,
        queue: PublishQueue,
        tasks: TaskGroup,
        failed: Callable[[PublishError], None],
    ) -> None:
        self._connector = connector
        self._queue = queue
        self._tasks = tasks
        self._failed = failed
        self._link: Link | None = None
        self._writer: Channel | None = None
        self._reader: Channel | None = None
        self._unstored: ConfirmLedger[asyncio.Future[None]] = ConfirmLedger()
        self._mine: dict[int, Publication] = {}  # accepted by us, by the number in its envelope
        self._accepted = 0
        self._taken: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._closing = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open" if self._link else "closed"
        return f"<Outbox {self._connector.url}: {state}, {len(self._mine)} of ours waiting>"

    async def open(self) -> None:
        """Open the file and start to send its messages.

        Raises:
            ConnectFailedError: the file cannot be used: damaged, or another process has it.
        """
        self._link = link = await self._connector.connect(timeout=_OPEN_TIMEOUT)
        self._writer = writer = await link.open_channel(confirm=True)
        await writer.declare_queue(FAILED)
        await writer.declare_queue(
            WAITING,
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": FAILED,
                "x-message-timeout": 0,  # it may take as long as the remote broker is away
            },
        )
        writer.on_confirm = self._on_stored
        writer.on_close = self._store_failed
        self._reader = reader = await link.open_channel()
        await reader.qos(_PREFETCH)
        self._tasks.spawn(self._forward(), "outbox")
        await reader.consume(
            WAITING,
            ConsumerCallbacks(self._on_delivery, lambda tag: None, lambda tag: None),
        )

    async def accept(self, publication: Publication) -> None:
        """Store `publication` on disk, from where it is sent.

        Raises:
            MessageTooLargeError: the body is larger than `node.max_message_size`.
            ChannelClosedError: the file failed: nothing is promised.
        """
        writer = self._writer
        if writer is None or self._closing or not writer.is_usable:
            raise ChannelClosedError(0, f"the outbox {self._connector.url} is closed")
        limit = writer.size_limit
        if 0 < limit.size_bytes < publication.size:
            raise MessageTooLargeError(
                publication.name, publication.message_id, publication.size, *limit
            )
        self._accepted += 1
        number = self._accepted
        self._mine[number] = publication
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unstored.add(writer.next_publish_seq, [stored])
        try:
            await writer.publish([_sealed(publication.name, publication.outgoing, number)])
            # Shielded: once written it will be sent, also when the caller is cancelled.
            await asyncio.shield(stored)
        except BrokerClientError:
            self._mine.pop(number, None)
            raise

    def _on_stored(self, first: int, last: int, acked: bool) -> None:
        for stored in self._unstored.settle(first, last):
            if stored.done():
                continue
            if acked:
                stored.set_result(None)
            else:
                stored.set_exception(ChannelClosedError(0, "the outbox refused the message"))

    def _store_failed(self, error: BrokerClientError) -> None:
        if not self._closing:
            log.critical("%r: %s", self, error)
        self._fail_stored(error)

    def _fail_stored(self, error: BrokerClientError) -> None:
        for stored in self._unstored.take_all():
            if not stored.done():
                stored.set_exception(error)
                stored.exception()  # seen here, should the caller have gone

    # ------------------------------------------------------------------ sending

    def _on_delivery(self, delivery: Delivery) -> None:
        self._taken.append(delivery)
        self._arrived.set()

    async def _forward(self) -> None:
        while True:
            if not self._taken:
                self._arrived.clear()
                await self._arrived.wait()
            delivery = self._taken.popleft()
            name, outgoing, number = _opened(delivery)
            publication = None if delivery.redelivered else self._mine.pop(number, None)
            if publication is None:  # of a process before this one
                publication = Publication(
                    name,
                    outgoing,
                    self._queue.withdraw,
                    self._tasks,
                    started=asyncio.get_running_loop().time(),
                    timeout=0.0,
                    max_nacks=float("inf"),
                )
                publication.maybe_duplicate = True
            publication.when_ended(partial(self._ended, delivery.delivery_tag))
            try:
                await self._queue.put(publication, confirm=True)
            except PublishAbortedError:
                return  # the queue was closed before there was room: it stays in the file

    def _ended(self, delivery_tag: int, error: PublishError | None) -> None:
        reader = self._reader
        if reader is None or not reader.is_usable:
            return
        if error is None:
            reader.ack(delivery_tag)
        elif isinstance(error, PUBLISH_REFUSALS):
            reader.nack(delivery_tag, requeue=False)
            self._failed(error)
        elif isinstance(error, PublishAbortedError) and not self._closing:
            reader.ack(delivery_tag)  # taken back by the application
        # Otherwise we are closing: it stays in the file, for the next time.

    async def close(self) -> None:
        """Close the file; unconfirmed messages stay in it. May be called more than once."""
        self._closing = True
        if self._writer is not None:
            self._fail_stored(ChannelClosedError(0, "the broker was shut down"))
        link, self._link = self._link, None
        self._writer = self._reader = None
        if link is not None:
            await link.close()


def _sealed(name: str, outgoing: Outgoing, number: int) -> Outgoing:
    """A message for the file: the whole of `outgoing` in one header and the body.

    Inside a header of ours nothing of it acts on the way: no CC routes, no expiration expires.
    """
    envelope = {
        "number": number,
        "publication": name,
        "exchange": outgoing.exchange,
        "routing_key": outgoing.routing_key,
        "mandatory": outgoing.mandatory,
        "properties": encode_properties(outgoing.properties),
    }
    return Outgoing(
        "",
        WAITING,
        outgoing.body,
        Properties(headers={_ENVELOPE: envelope}, delivery_mode=PERSISTENT),
        mandatory=True,
    )


def _opened(delivery: Delivery) -> tuple[str, Outgoing, int]:
    """(publication, message, number) of a stored message."""
    envelope: dict[str, Any] = (delivery.properties.headers or {})[_ENVELOPE]
    outgoing = Outgoing(
        envelope["exchange"],
        envelope["routing_key"],
        delivery.body,
        decode_properties(envelope["properties"]),
        envelope["mandatory"],
    )
    return envelope["publication"], outgoing, envelope["number"]
