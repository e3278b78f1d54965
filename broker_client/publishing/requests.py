"""Request and reply, within a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

from broker_client.codec import content
from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    BrokerClientError,
    InvalidContentError,
    InvalidHeadersError,
    OperationTimeoutError,
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    TransportError,
)
from broker_client.message import FAILURE_KIND, Delivery, Message
from broker_client.publication import Publication
from broker_client.transport.base import Channel, ConsumerCallbacks, Link

log: logging.Logger = logging.getLogger("broker_client.requests")

_TRY_AGAIN = 0.05  # seconds until a reply queue is asked for again: a lost link is noticed soon

SendRequest = Callable[[str, str], Awaitable[Publication]]
"""Publishes a request: called with the reply queue and the correlation id."""


class Reply(NamedTuple):
    """The answer to a request."""

    message: Message
    content: Any


class Requests:
    """The open requests of one vhost, and their reply queue.

    The queue is exclusive and made with the first request. It dies with its connection, and the
    answers with it: requests that wait then fail at once, as lost, and the next request makes
    another queue. An answer nobody waits for (any more) is dropped and counted.
    """

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._channel: Channel | None = None
        self._queue = ""
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._opening = asyncio.Lock()
        self.late_replies: int = 0
        """Answers that came too late, or twice."""

    def __repr__(self) -> str:
        return f"<Requests {self._vhost.name}: {len(self._waiting)} waiting>"

    async def call(self, name: str, publish: SendRequest, timeout: float) -> Reply:
        """Send a request and wait for its answer.

        Args:
            name: of the publication, for errors.
            publish: sends it.
            timeout: seconds for all of it.

        Raises:
            RequestTimeoutError: no answer in time.
            RequestLostError: the connection was lost; the request may have been carried out.
            RequestFailedError: its handler failed.
            PublishError: the request was not delivered.
            InvalidContentError: the answer cannot be read.
        """
        correlation_id = uuid4().hex
        waiter: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                queue = await self._reply_queue()
                self._waiting[correlation_id] = waiter
                publication = await publish(queue, correlation_id)
                outcome = asyncio.ensure_future(_outcome(publication))
                both: set[asyncio.Future[Any]] = {waiter, outcome}
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if not waiter.done():
                        await outcome  # raises when it was not delivered
                finally:
                    outcome.cancel()
                delivery = await waiter
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RequestTimeoutError(name, timeout) from None
        finally:
            self._waiting.pop(correlation_id, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # observed, so that it is not logged
        return self._read(name, delivery)

    def _read(self, name: str, delivery: Delivery) -> Reply:
        properties = delivery.properties
        kind = (properties.headers or {}).get(FAILURE_KIND)
        if isinstance(kind, str):
            raise RequestFailedError(name, kind)
        message = Message(delivery, queue=self._queue, vhost=self._vhost.name, touch=_no_touch)
        try:
            if delivery.fault:
                raise InvalidHeadersError(delivery.fault)
            if not delivery.body and properties.content_type is None:
                return Reply(message, None)
            return Reply(message, content.decode(delivery.body, properties.content_type))
        except InvalidContentError:
            log.warning("%r: an answer cannot be read", self)
            raise

    async def _reply_queue(self) -> str:
        """Have a reply queue; a link that is lost or silent meanwhile is waited for.

        Raises:
            TransportError: the broker refused.
        """
        async with self._opening:
            while self._channel is None or not self._channel.is_usable:
                link = await self._vhost.wait_up()
                try:
                    await self._open(link)
                except TransportError as error:
                    if link.is_open and not isinstance(error, OperationTimeoutError):
                        raise
                    log.info("%r: opening a reply queue: %s", self, error)
                    await asyncio.sleep(_TRY_AGAIN)
            return self._queue

    async def _open(self, link: Link) -> None:
        channel = await link.open_channel()
        try:
            state = await channel.declare_queue(
                f"broker_client.reply.{uuid4().hex}",
                durable=False,
                exclusive=True,
                auto_delete=True,
            )
            channel.on_close = self._lost
            await channel.consume(
                state.name,
                ConsumerCallbacks(self._arrived, self._cancelled, lambda tag: None),
                no_ack=True,
            )
        except BaseException:
            channel.on_close = None
            channel.abort()
            raise
        self._channel, self._queue = channel, state.name

    def _arrived(self, delivery: Delivery) -> None:
        waiter = self._waiting.get(delivery.properties.correlation_id or "")
        if waiter is None or waiter.done():
            self.late_replies += 1
        else:
            waiter.set_result(delivery)

    def _cancelled(self, consumer_tag: str) -> None:
        channel = self._channel
        if channel is not None:
            channel.abort()
        self._lost(RequestLostError(self._queue, "the reply queue was deleted"))

    def _lost(self, error: BrokerClientError) -> None:
        self._channel = None
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(RequestLostError(self._queue, str(error)))

    async def close(self) -> None:
        """Fail open requests and release the reply queue."""
        channel, self._channel = self._channel, None
        self._lost(RequestLostError(self._queue, "the broker was shut down"))
        if channel is not None:
            await channel.close()


async def _outcome(publication: Publication) -> None:
    await publication


def _no_touch(delivery_tag: int) -> float:
    raise RequestLostError("", "an answer is settled when it arrives")
