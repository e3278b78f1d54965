"""One connection kept alive: connects, makes ready, notices the loss, connects again.

The only owner of reconnecting. A link is *up* once it is connected and its owner has prepared it
(declared the topology); before that nobody else sees it, and a link whose preparation fails
counts as a link that failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from broker_client.config import RetryConfig
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)
from broker_client.retry import Backoff, reconnect_policy
from broker_client.tasks import TaskGroup
from broker_client.transport.base import Connector, Link

log = logging.getLogger("broker_client.connection")


class ConnectionOwner(Protocol):
    """Who wants to know. All but `prepare` are plain calls that must not raise."""

    async def prepare(self, link: Link) -> None:
        """Make a new link ready; raise to have it given up."""
        ...

    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link, error: TransportError) -> None: ...
    def attempt_failed(self, error: Exception) -> None: ...
    def blocked(self, link: Link, reason: str) -> None: ...
    def unblocked(self, link: Link) -> None: ...


class Connection:
    """A link to one of several brokers, replaced when it fails.

    Args:
        name: for logs and `repr`.
        connectors: addresses, tried in turn; the one that worked last is tried first.
        retry: waits between rounds over all of them.
        connect_timeout: seconds for one attempt, TCP, TLS and handshake together.
        prepare_timeout: seconds its owner has to make a new link ready.
    """

    def __init__(
        self,
        name: str,
        connectors: Sequence[Connector],
        owner: ConnectionOwner,
        *,
        retry: RetryConfig,
        connect_timeout: float,
        prepare_timeout: float = 30.0,
    ) -> None:
        self._name = name
        self._connectors = list(connectors)
        self._owner = owner
        self._retry = retry
        self._connect_timeout = connect_timeout
        self._prepare_timeout = prepare_timeout
        self._backoff = Backoff(retry)
        self._tasks = TaskGroup(f"connection {name}")
        self._current = 0  # index of the connector that worked last
        self._link: Link | None = None
        self._up: asyncio.Event | None = None
        self._down: asyncio.Event | None = None
        self._lost: asyncio.Future[TransportError] | None = None
        self._restless = False  # lost before, and not up for long enough since
        self._closed = False
        self._failed: Exception | None = None  # why it was given up for good
        self.epoch = 0
        """Links that have been up so far."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "up" if self._link else "down"
        return f"<Connection {self._name}: {state}, epoch {self.epoch}>"

    @property
    def link(self) -> Link | None:
        """The link that is up, or None."""
        return self._link

    @property
    def url(self) -> str:
        """Where it leads, or last led, masked."""
        return self._link.url if self._link else self._connectors[self._current].url

    @property
    def state(self) -> str:
        """In a word, for errors: up, down or closed."""
        return "closed" if self._closed else "up" if self._link else "down"

    async def open(self) -> None:
        """Connect for the first time: each address once, no waiting.

        Raises:
            TransportError: no address answered; the last failure.
            TopologyError: the broker is there but cannot be made as declared.
            BrokerClosedError: it was closed meanwhile.
        """
        self._up, self._down = asyncio.Event(), asyncio.Event()
        link = await self._connect_round()
        if self._closed:
            link.abort()
            raise BrokerClosedError(f"connection {self._name!r}")
        self._rise(link)
        self._tasks.spawn(self._keep(), "keep")

    async def wait_up(self) -> Link:
        """The link, as soon as there is one that is up.

        Raises:
            BrokerClosedError: it was closed, or given up (``retry: false``).
        """
        while True:
            link = self._link
            if link is not None and link.is_open:
                return link
            if self._closed or self._up is None or self._down is None:
                raise BrokerClosedError(f"connection {self._name!r}") from self._failed
            # A link that is not open any more is about to be reported as lost.
            await (self._up.wait() if link is None else self._down.wait())

    async def close(self) -> None:
        """Close the link in order and stay closed. Harmless twice."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.cancel()
        link, self._link = self._link, None
        self._wake()
        if link is not None:
            await link.close()

    def abort(self, reason: str) -> None:
        """Drop the present link as one that failed, to get a new one."""
        link = self._link
        if link is not None:
            link.abort()
            self._report_loss(link, ConnectionLostError(link.url, reason))

    # ------------------------------------------------------------------ keeping it

    async def _keep(self) -> None:
        while True:
            assert self._lost is not None
            assert self._link is not None
            link, since = self._link, asyncio.get_running_loop().time()
            error = await self._lost
            self._fall(link, error)
            if asyncio.get_running_loop().time() - since >= self._retry.stable_after:
                self._restless = False
                self._backoff.reset()
            if not self._retry.enabled:
                self._give_up(error)
                return
            new_link = await self._reconnect()
            if new_link is None:
                return
            self._rise(new_link)

    def _give_up(self, error: Exception) -> None:
        """Not retryable, or retrying is off: say so once and stay down."""
        log.error("%s: given up: %s", self._name, error)
        self._failed, self._closed = error, True
        self._wake()

    async def _reconnect(self) -> Link | None:
        """A new link, however long it takes; None when it was given up."""
        if self._restless:  # it came up and died again: not at once this time
            await asyncio.sleep(self._backoff.next())
        self._restless = True
        try:
            async for attempt in reconnect_policy(self._retry, self._backoff, sleep=asyncio.sleep):
                with attempt:
                    return await self._connect_round()
        except Exception as error:  # noqa: BLE001 - the edge of the loop
            self._give_up(error)
        return None

    async def _connect_round(self) -> Link:
        """Each address once, from the one that worked last on; the first that becomes ready."""
        failure: Exception | None = None
        for offset in range(len(self._connectors)):
            index = (self._current + offset) % len(self._connectors)
            try:
                link = await self._connect_one(self._connectors[index])
            except Exception as error:  # noqa: BLE001 - the next address may do
                log.info("%s: %s", self._name, error)
                self._owner.attempt_failed(error)
                failure = error
            else:
                self._current = index
                return link
        assert failure is not None
        raise failure

    async def _connect_one(self, connector: Connector) -> Link:
        link = await connector.connect(timeout=self._connect_timeout)
        lost: list[TransportError] = []
        link.on_close = lost.append
        deadline = asyncio.timeout(self._prepare_timeout)
        try:
            async with deadline:
                await self._owner.prepare(link)
            if lost:
                raise lost[0]
        except TimeoutError as error:
            link.abort()
            if not deadline.expired():
                raise
            raise OperationTimeoutError(
                f"setting up the topology on {link.url}", self._prepare_timeout
            ) from error
        except BaseException:
            link.abort()
            raise
        if not link.is_open:
            raise ConnectFailedError(link.url, "closed while it was made ready")
        return link

    def _rise(self, link: Link) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._link = link
        self.epoch += 1
        link.on_close = lambda error: self._report_loss(link, error)
        link.on_blocked = lambda reason: self._owner.blocked(link, reason)
        link.on_unblocked = lambda: self._owner.unblocked(link)
        log.info("%s: connected to %s", self._name, link.url)
        self._owner.link_up(link)
        if self._up is not None and self._down is not None:
            self._down.clear()
            self._up.set()

    def _wake(self) -> None:
        """Have those who wait see that it is closed."""
        if self._up is not None and self._down is not None:
            self._up.set()
            self._down.set()

    def _report_loss(self, link: Link, error: TransportError) -> None:
        if self._link is link and self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def _fall(self, link: Link, error: TransportError) -> None:
        self._link = None
        if self._up is not None and self._down is not None:
            self._up.clear()
            self._down.set()
        log.warning("%s: %s", self._name, error)
        link.abort()
        self._owner.link_down(link, error)
