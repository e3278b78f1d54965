"""Keeps one connection alive: connects, prepares, notices a loss, connects again.

The only owner of reconnecting. A link is *up* once it is connected and its owner has prepared it
(declared the topology); before that it is not visible to others, and a link whose preparation fails
counts as a link that failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from broker_client.connection.addresses import Addresses
from broker_client.errors import (
    AuthenticationRefusedError,
    BrokerClosedError,
    ConnectFailedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)
from broker_client.runtime import forks
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Link

log: logging.Logger = logging.getLogger("broker_client.connection")

_DROPPED_REMEMBERED = 4  # links that may not have ended yet


class ConnectionOwner(Protocol):
    """The owner of a connection. All methods but `prepare` are plain and must not raise."""

    async def prepare(self, link: Link) -> None:
        """Prepare a new link; raise to reject it."""
        ...

    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link, error: TransportError) -> None: ...
    def attempt_failed(self, error: Exception) -> None: ...
    def blocked(self, link: Link, reason: str) -> None: ...
    def unblocked(self, link: Link) -> None: ...


class Outage:
    """How long a connection has been down, and why."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception = error
        """The loss, or the last failed attempt since."""
        self.was_refused: bool = False
        """A login has been refused in it."""
        self._loop = asyncio.get_running_loop()  # a probe may ask from another thread
        self._since = self._loop.time()
        self._refused_since: float | None = None

    @property
    def seconds(self) -> float:
        return self._loop.time() - self._since

    @property
    def refused_for(self) -> float:
        """Seconds since when every attempt has ended in a refused login; 0 where none has."""
        return 0.0 if self._refused_since is None else self._loop.time() - self._refused_since

    def attempt_failed(self, error: Exception) -> None:
        self.error = error
        if not isinstance(error, AuthenticationRefusedError):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since, self.was_refused = self._loop.time(), True


class Connection:
    """A link to one of several brokers, replaced when it fails.

    Args:
        name: for logs and `repr`.
        addresses: where to connect to.
        owner: notified of links and losses.
        prepare_timeout: seconds its owner has to make a new link ready.
        leader: a connection that this one follows: it waits for its link, and tries the address
            of that first.
    """

    def __init__(
        self,
        name: str,
        addresses: Addresses,
        owner: ConnectionOwner,
        *,
        prepare_timeout: float = 30.0,
        leader: Connection | None = None,
    ) -> None:
        self._name = name
        self._addresses = addresses
        self._owner = owner
        self._prepare_timeout = prepare_timeout
        self._leader = leader
        self._tasks = TaskGroup(f"connection {name}")
        self._link: Link | None = None
        self._up: asyncio.Event | None = None
        self._down: asyncio.Event | None = None
        self._lost: asyncio.Future[TransportError] | None = None
        self._dropped: deque[Link] = deque(maxlen=_DROPPED_REMEMBERED)
        self._closed = False
        self._forks = forks.count
        self._aborted = False  # the present link was dropped by `abort`
        self._failed: Exception | None = None  # why it was given up permanently
        self.epoch: int = 0
        """Links that have been up so far."""
        self.outage: Outage | None = None
        """While the connection is down after it was up."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "up" if self._link else "down"
        return f"<Connection {self._name}: {state}, epoch {self.epoch}>"

    @property
    def link(self) -> Link | None:
        return self._link

    @property
    def url(self) -> str:
        """Its present or last address, masked."""
        return self._link.url if self._link else self._addresses.current.connector.url

    @property
    def is_begun(self) -> bool:
        """True once `open` or `start` was called."""
        return self._up is not None

    @property
    def current(self) -> int:
        """Index of the address that worked last."""
        return self._addresses.current.index

    @property
    def state(self) -> str:
        """State for error texts: up, down or closed."""
        return "closed" if self._closed else "up" if self._link else "down"

    async def open(self, *, retry: bool = False, timeout: float | None = None) -> None:
        """Connect for the first time.

        Args:
            retry: False tries each address once, without waiting; True goes on until one answers.
            timeout: seconds that may take altogether; None is forever.

        Raises:
            TransportError: no address answered; the last failure.
            TopologyError: the broker answers, but the topology cannot be declared.
            BrokerClosedError: it was closed meanwhile.
        """
        self._up, self._down = asyncio.Event(), asyncio.Event()
        link = await self._connect(once=not retry, timeout=timeout)
        if self._closed:
            link.abort()
            raise BrokerClosedError(f"connection {self._name!r}")
        self._rise(link)
        self._tasks.spawn(self._keep(), "keep")

    def start(self) -> None:
        """Connect in the background, however long it takes. Has no effect if already started."""
        if self._up is None and not self._closed:
            self._up, self._down = asyncio.Event(), asyncio.Event()
            self._tasks.spawn(self._keep(), "keep")

    async def wait_up(self) -> Link:
        """Wait for a link that is up.

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
        """Close the link in order and stay closed.

        May be called more than once; goes on where one that was cancelled left off.
        """
        self._closed = True
        await self._tasks.cancel()
        link, self._link = self._link, None
        if link is not None:
            self._dropped.append(link)
        self._wake()
        while self._dropped:
            link = self._dropped[-1]
            await link.close()  # of one that was dropped, what is left of it
            if link in self._dropped:
                self._dropped.remove(link)

    def abort(self, reason: str) -> None:
        """Drop the present link as failed, and connect again."""
        link = self._link
        if link is not None:
            self._aborted = True
            link.abort()
            self._report_loss(link, ConnectionLostError(link.url, reason))

    def drop(self) -> None:
        """Drop the present link without notification, so that `close` does not wait for it."""
        if self._link is not None:
            self._link.abort()

    # ------------------------------------------------------------------ keeping it

    async def _keep(self) -> None:
        try:
            await self._keep_on()
        except asyncio.CancelledError:
            # The loop ends without `close`; a forked child has nothing to close.
            if not self._closed and forks.count == self._forks:
                await self.close()
            raise

    async def _keep_on(self) -> None:
        while not self._closed:
            if self._link is None:
                try:
                    link = await self._connect()
                except Exception as error:  # noqa: BLE001 - the edge of the loop
                    self._give_up(error)
                    return
                if self._closed:  # while it was made ready
                    self._drop(link)
                    return
                self._rise(link)
            await self._until_lost()

    async def _until_lost(self) -> None:
        assert self._lost is not None
        assert self._link is not None
        link, since = self._link, asyncio.get_running_loop().time()
        loss = await self._lost
        self._fall(link, loss)
        self._addresses.link_lost(since, link.used_at, elsewhere=not self._aborted)
        if not self._addresses.left:
            self._give_up(loss)

    def _give_up(self, error: Exception) -> None:
        """The error is not retryable, or retrying is off: report it once and stay down."""
        log.error("%s: given up: %s", self._name, error)
        self._failed, self._closed = error, True
        self._wake()

    async def _connect(self, *, once: bool = False, timeout: float | None = None) -> Link:
        return await self._addresses.connect(
            self._prepare,
            once=once,
            timeout=timeout,
            first=None if self._leader is None else self._leaders_address,
            on_failure=self._attempt_failed,
        )

    async def _leaders_address(self) -> int:
        """The address of the leader, as soon as it is up."""
        assert self._leader is not None
        await self._leader.wait_up()
        return self._leader.current

    def _attempt_failed(self, error: Exception) -> None:
        is_news = self.outage is None or not self.outage.was_refused
        refused = isinstance(error, AuthenticationRefusedError) and is_news
        log.log(logging.WARNING if refused else logging.INFO, "%s: %s", self._name, error)
        if self.outage is not None:
            self.outage.attempt_failed(error)
        self._owner.attempt_failed(error)

    async def _prepare(self, link: Link) -> None:
        lost: list[TransportError] = []
        link.on_close = lost.append
        deadline = asyncio.timeout(self._prepare_timeout)
        try:
            async with deadline:
                await self._owner.prepare(link)
            if lost:
                raise lost[0]
        except TimeoutError as error:
            self._drop(link)
            if not deadline.expired():
                raise
            raise OperationTimeoutError(
                f"setting up the topology on {link.url}", self._prepare_timeout
            ) from error
        except BaseException:
            self._drop(link)
            raise
        if not link.is_open:
            raise ConnectFailedError(link.url, "closed while it was being set up")

    def _rise(self, link: Link) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._link = link
        self._aborted = False
        self.outage = None
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
        """Wake waiting callers: it is closed."""
        if self._up is not None and self._down is not None:
            self._up.set()
            self._down.set()

    def _report_loss(self, link: Link, error: TransportError) -> None:
        if self._link is link and self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def _fall(self, link: Link, error: TransportError) -> None:
        self._link = None
        self.outage = Outage(error)
        if self._up is not None and self._down is not None:
            self._up.clear()
            self._down.set()
        log.warning("%s: %s", self._name, error)
        self._drop(link)
        self._owner.link_down(link, error)

    def _drop(self, link: Link) -> None:
        link.abort()
        self._dropped.append(link)
