"""The publishing side of one vhost: its publish queue, its outbox, its requests."""

from __future__ import annotations

import asyncio
import logging

from broker_client.connection.delay_queues import DelayStep
from broker_client.connection.vhost import Vhost
from broker_client.errors import (
    BrokerClientError,
    OperationTimeoutError,
    PublishError,
    PublishTimeoutError,
)
from broker_client.message import Outgoing
from broker_client.publication import Origin, Publication
from broker_client.publishing.delay import check_delay, delayed_by_header, step_for
from broker_client.publishing.outbox import Outbox
from broker_client.publishing.publish_log import PublishLog
from broker_client.publishing.queue import PublishQueue
from broker_client.publishing.relay import DelayRelay, for_relay
from broker_client.publishing.requests import Requests
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Connector

log: logging.Logger = logging.getLogger("broker_client.vhost")


class VhostPublisher:
    """Publishes to one vhost. It outlives the vhost's links, and pauses without one.

    Args:
        vhost: where to publish to.
        events: where failures of the outbox are reported.
        tasks: owner of the tasks that send.
        publish_log: records every publish and its end.
    """

    def __init__(
        self,
        vhost: Vhost,
        events: Emitter,
        tasks: TaskGroup,
        publish_log: PublishLog | None = None,
    ) -> None:
        self.vhost = vhost
        self._events = events
        self._tasks = tasks
        self.queue: PublishQueue = PublishQueue(
            vhost.name,
            vhost.config.publish_queue,
            vhost,
            regular=vhost.regular,
            confirm=vhost.confirm,
            tasks=tasks,
            publish_log=publish_log,
        )
        self.outbox: Outbox | None = None
        self.requests: Requests = Requests(vhost)
        self._relay = DelayRelay(vhost, self.send_confirmed, tasks)
        vhost.on_pause = self.queue.pause
        vhost.on_resume = self.queue.resume

    def __repr__(self) -> str:
        return f"<VhostPublisher {self.vhost.name}: {self.queue!r}>"

    async def open_outbox(self, connector: Connector) -> None:
        """Use an outbox, in the file of `connector`, before the publish queue.

        Raises:
            ConnectFailedError: the file cannot be used.
        """
        outbox = Outbox(connector, self.queue, self._tasks, self._outbox_failed)
        await outbox.open()
        self.outbox = outbox

    async def open_relay(self) -> None:
        """Forward messages that an earlier process left at the delay relay.

        Raises:
            TransportError: the link was lost.
        """
        if not self.vhost.is_embedded:
            await self._relay.open_if_left()

    def _outbox_failed(self, error: PublishError) -> None:
        self._events.emit("error", error, self.vhost.name)

    async def delayed(
        self, name: str, outgoing: Outgoing, delay: float, timeout: float
    ) -> Outgoing:
        """Delay `outgoing` by `delay` seconds: on the built-in broker, or by a delay queue.

        As for any publish, a link that is silent is waited for, until `timeout` seconds are over;
        0 is forever. A link that is lost is not: what a delay needs is declared on the next one.

        Args:
            name: of the publication.

        Raises:
            InvalidMessageError: the delay is too long for any broker.
            PublishTimeoutError: the link was silent for `timeout` seconds.
            TransportError: the delay queue could not be declared.
        """
        check_delay(delay)
        if self.vhost.is_embedded:
            return delayed_by_header(outgoing, delay)
        if outgoing.properties.expiration is not None:
            await self._relay.open()
            outgoing = for_relay(outgoing)
        step = step_for(outgoing.exchange, delay)
        try:
            async with asyncio.timeout(timeout or None):
                await self._prepare(step)
        except TimeoutError:
            message_id = outgoing.properties.message_id or ""
            link = self.vhost.link_state
            raise PublishTimeoutError(name, message_id, timeout, link) from None
        return outgoing._replace(exchange=step.name)

    async def _prepare(self, step: DelayStep) -> None:
        while True:
            try:
                await self.vhost.prepare_delay(step)
            except OperationTimeoutError as error:
                log.info("%r: delay queue %r: %s", self, step.name, error)
            else:
                return

    async def send_confirmed(
        self, name: str, outgoing: Outgoing, timeout: float, max_nacks: float
    ) -> None:
        """Publish past the outbox; returns once it is confirmed.

        Raises:
            PublishError: it was not.
        """
        publication = Publication(
            Origin(name, self.queue.withdraw, self._tasks, max_nacks),
            outgoing,
            asyncio.get_running_loop().time(),
            timeout,
        )
        await self.queue.put(publication, confirm=True)
        await publication

    async def drain(self, timeout: float) -> bool:
        """Wait until every accepted publish has ended; False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if self.outbox is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.outbox.drain()
            except TimeoutError:
                return False
        return await self.queue.drain(max(0.0, deadline - loop.time()))

    async def close(self) -> None:
        """End queued publishes with an error. May be called more than once."""
        await self.requests.close()
        await self._relay.close()
        try:
            if self.outbox is not None:
                await self.outbox.close()
        except BrokerClientError as error:
            log.warning("%r: while closing its outbox: %s", self, error)
        await self.queue.close()
