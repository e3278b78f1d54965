"""The outbox: publishes that are on disk before `publish` returns.

The outbox is a durable queue of the built-in broker, in a file, in front of a vhost's publish
queue. A publish is accepted once it is committed there. One consumer takes them out again in
order, gives them to the publish queue, and acks each when the remote broker has confirmed it.
Messages that a crash leaves unacked are sent again by the next process that opens the file, with
the same message id. Messages that the remote broker refuses or cannot route go to a second queue in
the file, `outbox.failed`, for a person to look at.

A publication that is accepted ends, like any other: with the outcome of its message, or, when the
outbox closes or its file fails before the message was sent, as `PublishAbortedError`. The message
stays in the file then.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from broker_client.amqp.properties import decode_properties, encode_properties
from broker_client.errors import (
    PUBLISH_REFUSALS,
    BrokerClientError,
    ChannelClosedError,
    MessageTooLargeError,
    PublishAbortedError,
    PublishError,
    PublishUnconfirmedError,
)
from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.publication import Origin, Publication
from broker_client.publishing.queue import PublishQueue
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel, Connector, ConsumerCallbacks, Link
from broker_client.transport.confirms import ConfirmLedger

log: logging.Logger = logging.getLogger("broker_client.outbox")

WAITING, FAILED = "outbox", "outbox.failed"
_ENVELOPE = "broker_client.outbox"  # the one header of a stored message
_PREFETCH = 2000  # publishes out of the file at a time
_OPEN_TIMEOUT = 30.0  # seconds to read a large file
_STAYS = "it stays in the outbox, and is sent when that is opened again"


class _Stored(NamedTuple):
    """A message of the file."""

    key: str
    """What the outbox that accepted it knows it by; of no two processes the same."""
    publication: str
    outgoing: Outgoing


class _Unstored(NamedTuple):
    """A publication that is not on disk yet."""

    key: str
    is_stored: asyncio.Future[bool]


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
        self._unstored: ConfirmLedger[_Unstored] = ConfirmLedger()
        self._id = uuid.uuid4().hex  # of other processes there are messages in the file too
        self._mine: dict[str, Publication] = {}
        """Accepted by us and not in the publish queue yet, by key."""
        self._accepted = 0
        self._taken: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._forwarding: asyncio.Task[None] | None = None
        self._handed_over = asyncio.Event()
        """Set when `_mine` may have become empty."""
        self._failure: BrokerClientError | None = None
        """Why the file cannot be used any more."""
        self._closing = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open" if self._link else "closed"
        if self._failure is not None:
            state = "failed"
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
        self._forwarding = self._tasks.spawn(self._forward(), "outbox")
        await reader.consume(
            WAITING,
            ConsumerCallbacks(self._on_delivery, lambda tag: None, lambda tag: None),
        )

    async def accept(self, publication: Publication) -> None:
        """Store `publication` on disk, from where it is sent.

        Raises:
            MessageTooLargeError: the body is larger than `node.max_message_size`.
            PublishAbortedError: the outbox is closed, or its file has failed before: the message is
                not in it.
            PublishUnconfirmedError: the file failed meanwhile: the message may be in it.
        """
        writer = self._writer
        if writer is None or self._closing or not writer.is_usable:
            why = f"has failed: {self._failure}" if self._failure is not None else "is closed"
            raise _aborted(publication, f"the outbox {self._connector.url} {why}")
        limit = writer.size_limit
        if 0 < limit.size_bytes < publication.size:
            raise MessageTooLargeError(
                publication.name, publication.message_id, publication.size, *limit
            )
        self._accepted += 1
        key = f"{self._id}-{self._accepted}"
        is_stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._mine[key] = publication
        self._unstored.add(writer.next_publish_seq, [_Unstored(key, is_stored)])
        try:
            await writer.publish([_sealed(key, publication.name, publication.outgoing)])
            # Shielded: once written it will be sent, also when the caller is cancelled.
            if not await asyncio.shield(is_stored):
                raise _aborted(publication, f"the outbox {self._connector.url} refused it")
        except BrokerClientError as error:
            self._mine.pop(key, None)
            self._handed_over.set()
            if isinstance(error, PublishError):
                raise
            waited = asyncio.get_running_loop().time() - publication.started
            raise PublishUnconfirmedError(
                publication.name, publication.message_id, waited, f"of the outbox: {error}"
            ) from error

    def _on_stored(self, first: int, last: int, acked: bool) -> None:
        for unstored in self._unstored.settle(first, last):
            if not unstored.is_stored.done():
                unstored.is_stored.set_result(acked)

    def _store_failed(self, error: BrokerClientError) -> None:
        if self._closing:
            return
        log.critical("%r: %s", self, error)
        self._failure = error
        self._fail_unstored(error)
        # What was taken out can still be sent.
        taken = {_opened(delivery).key for delivery in self._taken}
        left = [key for key in self._mine if key not in taken]
        self._end(left, f"the outbox {self._connector.url} has failed; {_STAYS}")

    def _fail_unstored(self, error: BrokerClientError) -> None:
        for key, is_stored in self._unstored.take_all():
            self._mine.pop(key, None)
            if not is_stored.done():
                is_stored.set_exception(error)
                is_stored.exception()  # seen here, should the caller have gone

    def _end(self, keys: Iterable[str], reason: str) -> None:
        """End publications of ours whose messages stay in the file."""
        for key in keys:
            publication = self._mine.pop(key)
            publication.when_ended(lambda _: None)  # nothing is lost: no cause for a complaint
            publication.fail(_aborted(publication, reason))
        self._handed_over.set()

    # ------------------------------------------------------------------ sending

    def _on_delivery(self, delivery: Delivery) -> None:
        self._taken.append(delivery)
        self._arrived.set()

    async def _forward(self) -> None:
        while True:
            if not self._taken:
                self._arrived.clear()
                await self._arrived.wait()
            delivery = self._taken[0]
            stored = _opened(delivery)
            publication = self._mine.get(stored.key)
            if publication is None:  # of a process before this one
                publication = Publication(
                    Origin(stored.publication, self._queue.withdraw, self._tasks, float("inf")),
                    stored.outgoing,
                    asyncio.get_running_loop().time(),
                    0.0,
                )
                publication.maybe_duplicate = True
            publication.when_ended(partial(self._ended, delivery.delivery_tag))
            try:
                await self._queue.put(publication, confirm=True)
            except PublishAbortedError:
                return  # the queue was closed before there was room: it stays in the file
            self._taken.popleft()
            self._mine.pop(stored.key, None)
            if not self._mine:
                self._handed_over.set()

    async def drain(self) -> None:
        """Return once all that was accepted here is in the publish queue."""
        while self._mine:
            self._handed_over.clear()
            await self._handed_over.wait()

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
        if self._forwarding is not None:
            self._forwarding.cancel()
            await asyncio.wait([self._forwarding])
        link, self._link = self._link, None
        try:
            if link is not None:
                await link.close()  # what is being stored is stored before
        finally:
            self._writer = self._reader = None
            self._fail_unstored(ChannelClosedError(0, "the broker was shut down"))
            self._end(list(self._mine), f"the broker was shut down; {_STAYS}")


def _aborted(publication: Publication, reason: str) -> PublishAbortedError:
    return PublishAbortedError(publication.name, publication.message_id, reason)


def _sealed(key: str, publication: str, outgoing: Outgoing) -> Outgoing:
    """A message for the file: the whole of `outgoing` in one header and the body.

    Inside a header of ours nothing of it acts on the way: no CC routes, no expiration expires.
    """
    envelope = {
        "key": key,
        "publication": publication,
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


def _opened(delivery: Delivery) -> _Stored:
    envelope: dict[str, Any] = (delivery.properties.headers or {})[_ENVELOPE]
    outgoing = Outgoing(
        envelope["exchange"],
        envelope["routing_key"],
        delivery.body,
        decode_properties(envelope["properties"]),
        envelope["mandatory"],
    )
    return _Stored(envelope["key"], envelope["publication"], outgoing)
