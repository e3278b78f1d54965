"""Delayed messages on RabbitMQ get their expiration as they arrive.

RabbitMQ expires a message in a delay queue by whatever comes first, its expiration or the delay,
and takes the expiration off every message that it dead-letters. So a message with both waits
without its expiration and is dead-lettered to a queue of ours, from which it is published again,
with the expiration, to its own exchange.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    PublishError,
    PublishRefusedError,
)
from broker_client.message import Delivery, Outgoing, with_original_user
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel, ConsumerCallbacks

log: logging.Logger = logging.getLogger("broker_client.relay")

RELAY = "broker_client.delay.relay"
"""Name of the exchange and of the queue behind it."""
_HEADER = "broker_client.delayed"
_PREFETCH = 100
_TRY_AGAIN = 1.0  # seconds
_OPEN_TIMEOUT = 5.0  # seconds a publish waits for the queue to be there

Send = Callable[[str, Outgoing, float, float], Awaitable[None]]


def for_relay(outgoing: Outgoing) -> Outgoing:
    """`outgoing` as it waits for its delay: it goes to the relay, which finds the rest in it."""
    properties = outgoing.properties
    note = {"exchange": outgoing.exchange, "expiration": properties.expiration}
    headers = {**(properties.headers or {}), _HEADER: note}
    return outgoing._replace(
        exchange=RELAY, properties=properties._replace(expiration=None, headers=headers)
    )


class DelayRelay:
    """Publishes what arrives at the relay's queue. Several processes may share that.

    Args:
        vhost: where the queue is.
        send: publishes and waits for the confirm: name, message, time-out, tries after nacks.
        tasks: owner of the tasks that publish.
    """

    def __init__(self, vhost: Vhost, send: Send, tasks: TaskGroup) -> None:
        self._vhost = vhost
        self._send = send
        self._tasks = tasks
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<DelayRelay {self._vhost.name}: {'open' if self._channel else 'closed'}>"

    async def open_if_left(self) -> None:
        """`open`, where the queue is there: an earlier process may have left messages in it."""
        link = self._vhost.connection.link
        if link is None:
            return
        channel = await link.open_channel()
        try:
            await channel.check_queue(RELAY)
        except ChannelClosedError:
            return  # not there, or not for this user
        await channel.close()
        await self.open()

    async def open(self) -> None:
        """Have the queue declared and consumed from now on, over every loss of the link.

        Returns once it is, or at once while the link is down: nothing reaches the queue then.
        """
        if self._channel is not None or self._closed:
            return
        if self._opening is None or self._opening.done():
            self._opening = self._tasks.spawn(self._keep_trying(), "delay relay")
        if self._vhost.connection.link is not None:
            await asyncio.wait([self._opening], timeout=_OPEN_TIMEOUT)

    async def _keep_trying(self) -> None:
        while self._channel is None and not self._closed:
            try:
                await self._consume()
            except BrokerClientError as error:
                log.warning("%r: %s", self, error)
                await asyncio.sleep(_TRY_AGAIN)

    async def _consume(self) -> None:
        link = await self._vhost.wait_up()
        channel = await link.open_channel()
        try:
            await channel.declare_exchange(RELAY, "fanout", durable=True)
            await channel.declare_queue(RELAY, durable=True)
            await channel.bind_queue(RELAY, RELAY, "")
            await channel.qos(_PREFETCH)
            channel.on_close = self._lost
            self._channel = channel
            await channel.consume(
                RELAY, ConsumerCallbacks(self._arrived, self._cancelled, lambda tag: None)
            )
        except BaseException:
            self._channel = None
            channel.on_close = None
            channel.abort()
            raise

    def _arrived(self, delivery: Delivery) -> None:
        if self._channel is not None:
            self._tasks.spawn(self._relay(self._channel, delivery), "delayed message")

    async def _relay(self, channel: Channel, delivery: Delivery) -> None:
        headers: dict[str, Any] = dict(delivery.properties.headers or {})
        note = headers.pop(_HEADER, None)
        if not isinstance(note, dict):
            log.error("%r: dropped a message that is not one of ours", self)
            if channel.is_usable:
                channel.ack(delivery.delivery_tag)
            return
        outgoing = Outgoing(
            str(note.get("exchange", "")),
            delivery.routing_key,
            delivery.body,
            with_original_user(
                delivery.properties._replace(headers=headers, expiration=note.get("expiration"))
            ),
        )
        try:
            await self._send(f"delayed to {outgoing.exchange!r}", outgoing, 30.0, float("inf"))
        except PublishRefusedError as error:
            # As a delay queue of the broker does whose exchange is gone: kept, it would be tried
            # forever, and those behind it would wait.
            log.error("%r: dropped a message: %s", self, error)
            if channel.is_usable:
                channel.ack(delivery.delivery_tag)
        except PublishError as error:
            log.warning("%r: %s", self, error)
            await asyncio.sleep(_TRY_AGAIN)
            if channel.is_usable:
                channel.release(delivery.delivery_tag)
        else:
            if channel.is_usable:
                channel.ack(delivery.delivery_tag)

    def _cancelled(self, consumer_tag: str) -> None:
        if self._channel is not None:
            self._channel.on_close = None
            self._channel.abort()
        self._reopen()

    def _lost(self, error: BrokerClientError) -> None:
        self._reopen()

    def _reopen(self) -> None:
        self._channel = None
        if not self._closed and (self._opening is None or self._opening.done()):
            self._opening = self._tasks.spawn(self._keep_trying(), "delay relay")

    async def close(self) -> None:
        """Stop relaying; what is left waits for the next process. May be called more than once."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.on_close = None
            await channel.close()
