"""One connection kept alive: connects, makes ready, notices the loss, connects again.

The only owner of reconnecting. A link is *up* once it is connected and its owner has prepared it
(declared the topology); before that nobody else sees it, and a link whose preparation fails
counts as a link that failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_client.config import RetryConfig, VhostConfig
from broker_client.connection.retry import Backoff, is_retryable, reconnect_policy
from broker_client.errors import (
    BrokerClosedError,
    ConnectFailedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Connector, Link

log = logging.getLogger("broker_client.connection")

_DROPPED_REMEMBERED = 4  # links that may not have come to rest yet


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


class Outage:
    """Since when a connection is down, and why."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        """The loss, or the last failed attempt since."""
        self._loop = asyncio.get_running_loop()  # a probe may ask from another thread
        self._since = self._loop.time()

    @property
    def seconds(self) -> float:
        return self._loop.time() - self._since


class _Schedule:
    """When the addresses that share one `retry` are tried next."""

    def __init__(self, retry: RetryConfig) -> None:
        self.retry = retry
        self.backoff = Backoff(retry)
        self.due = float("-inf")  # loop time
        self.restless = False  # a link of theirs was lost, and none has stayed up since

    def put_off(self, now: float) -> None:
        """Not before the next wait is over."""
        self.due = now + self.backoff.next()

    def stayed_up(self) -> None:
        """A link lived long enough: begin again from the first wait."""
        self.restless = False
        self.backoff.reset()


@dataclass(slots=True)
class _Address:
    """One of the places to connect to."""

    index: int
    connector: Connector
    connect_timeout: float
    schedule: _Schedule
    given_up: bool = False  # failed, and not to be tried again


class Connection:
    """A link to one of several brokers, replaced when it fails.

    Every address has its own waits: one whose turn has not come is left out of a round. Those
    that share the same `retry` are tried in the same rounds, one after the other.

    Args:
        name: for logs and `repr`.
        connectors: addresses, tried in turn.
        retry: waits between rounds, one for all addresses or one for each. An address with
            ``retry: false`` is tried at the start only.
        connect_timeout: seconds for one attempt, TCP, TLS and handshake together; for all or for
            each.
        prepare_timeout: seconds its owner has to make a new link ready.
        fixed: True begins every round with the first address; False with the one that worked last.
        leader: a connection that this one follows: it waits for its link, and tries the address
            of that first.
    """

    def __init__(
        self,
        name: str,
        connectors: Sequence[Connector],
        owner: ConnectionOwner,
        *,
        retry: RetryConfig | Sequence[RetryConfig],
        connect_timeout: float | Sequence[float],
        prepare_timeout: float = 30.0,
        fixed: bool = False,
        leader: Connection | None = None,
    ) -> None:
        self._name = name
        self._owner = owner
        self._prepare_timeout = prepare_timeout
        self._fixed = fixed
        self._leader = leader
        self._addresses = _addresses(connectors, retry, connect_timeout)
        self._tasks = TaskGroup(f"connection {name}")
        self._current = 0  # index of the address that worked last
        self._link: Link | None = None
        self._up: asyncio.Event | None = None
        self._down: asyncio.Event | None = None
        self._lost: asyncio.Future[TransportError] | None = None
        self._dropped: deque[Link] = deque(maxlen=_DROPPED_REMEMBERED)
        self._closed = False
        self._failed: Exception | None = None  # why it was given up for good
        self.epoch = 0
        """Links that have been up so far."""
        self.outage: Outage | None = None
        """While the connection is down after it was up."""

    @classmethod
    def of(
        cls,
        name: str,
        config: VhostConfig,
        connectors: Sequence[Connector],
        owner: ConnectionOwner,
        *,
        leader: Connection | None = None,
    ) -> Connection:
        """A connection with the settings that `config` has for each of `connectors`."""
        return cls(
            name,
            connectors,
            owner,
            retry=[each.retry for each in config.connections],
            connect_timeout=[each.connect_timeout for each in config.connections],
            fixed=config.connection_strategy == "fixed",
            leader=leader,
        )

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
        return self._link.url if self._link else self._addresses[self._current].connector.url

    @property
    def is_begun(self) -> bool:
        """True once `open` or `start` was called."""
        return self._up is not None

    @property
    def current(self) -> int:
        """Index of the address that worked last."""
        return self._current

    @property
    def state(self) -> str:
        """In a word, for errors: up, down or closed."""
        return "closed" if self._closed else "up" if self._link else "down"

    async def open(self, *, retry: bool = False, timeout: float | None = None) -> None:
        """Connect for the first time.

        Args:
            retry: False tries each address once, without waiting; True goes on until one answers.
            timeout: seconds that may take altogether; None is for ever.

        Raises:
            TransportError: no address answered; the last failure.
            TopologyError: the broker is there but cannot be made as declared.
            BrokerClosedError: it was closed meanwhile.
        """
        self._up, self._down = asyncio.Event(), asyncio.Event()
        link = await self._first_link(retry, timeout)
        if self._closed:
            link.abort()
            raise BrokerClosedError(f"connection {self._name!r}")
        self._rise(link)
        self._tasks.spawn(self._keep(), "keep")

    async def _first_link(self, retry: bool, timeout: float | None) -> Link:
        failures: list[Exception] = []
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                return await (self._retried(failures) if retry else self._round(self._addresses))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if failures:
                raise failures[-1] from error
            reason = f"no answer within {timeout:g} s"
            raise ConnectFailedError(self.url, reason) from error

    def start(self) -> None:
        """Connect in the background, however long it takes. Harmless when begun already."""
        if self._up is None and not self._closed:
            self._up, self._down = asyncio.Event(), asyncio.Event()
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
        """Close the link in order and stay closed.

        Harmless twice; goes on where one that was cancelled left off.
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
        """Drop the present link as one that failed, to get a new one."""
        link = self._link
        if link is not None:
            link.abort()
            self._report_loss(link, ConnectionLostError(link.url, reason))

    def drop(self) -> None:
        """Drop the present link and say nothing: `close` then has nobody to wait for."""
        if self._link is not None:
            self._link.abort()

    # ------------------------------------------------------------------ keeping it

    async def _keep(self) -> None:
        try:
            await self._keep_on()
        except asyncio.CancelledError:
            if not self._closed:  # the loop ends, and nobody has called `close`
                await self.close()
            raise

    async def _keep_on(self) -> None:
        while True:
            if self._link is None:
                new_link = await self._reconnect()
                if new_link is None:
                    return
                self._rise(new_link)
            assert self._lost is not None
            assert self._link is not None
            link, since = self._link, asyncio.get_running_loop().time()
            error = await self._lost
            self._fall(link, error)
            self._plan(asyncio.get_running_loop().time(), since)
            if not self._candidates():
                self._give_up(error)
                return

    def _plan(self, now: float, since: float) -> None:
        """Who is tried when, now that the link which came up at `since` is lost.

        All at once, but for those whose link had come up and died before: not at once this time.
        """
        lost = self._addresses[self._current].schedule
        if now - since >= lost.retry.stable_after:
            lost.stayed_up()
        for schedule in {id(each.schedule): each.schedule for each in self._addresses}.values():
            schedule.due = now
            if schedule.restless:
                schedule.put_off(now)
        lost.restless = True

    def _give_up(self, error: Exception) -> None:
        """Not retryable, or retrying is off: say so once and stay down."""
        log.error("%s: given up: %s", self._name, error)
        self._failed, self._closed = error, True
        self._wake()

    async def _reconnect(self) -> Link | None:
        """A new link, however long it takes; None when it was given up."""
        try:
            return await self._retried([])
        except Exception as error:  # noqa: BLE001 - the edge of the loop
            self._give_up(error)
        return None

    async def _retried(self, failures: list[Exception]) -> Link:
        """Rounds over the addresses that are due, until one is ready; `failures` grows meanwhile.

        Raises:
            Exception: the last failure, when no address is left that may be tried again.
        """
        policy = reconnect_policy(RetryConfig(), lambda _: self._until_due(), sleep=asyncio.sleep)
        await asyncio.sleep(self._until_due())
        async for attempt in policy:
            with attempt:
                if self._leader is not None:
                    await self._leader.wait_up()
                try:
                    return await self._round(self._due())
                except Exception as error:
                    failures.append(error)
                    if self._candidates():
                        if is_retryable(error):
                            raise
                        raise ConnectFailedError(self.url, str(error)) from error
        raise failures[-1]

    def _candidates(self) -> list[_Address]:
        """The addresses that may still be tried, in their order."""
        return [
            each
            for each in self._addresses
            if not each.given_up and (each.schedule.retry.enabled or not self.epoch)
        ]

    def _due(self) -> list[_Address]:
        """Those whose turn has come; the next one's when we are a moment early."""
        candidates = self._candidates()
        now = asyncio.get_running_loop().time()
        limit = max(now, min(each.schedule.due for each in candidates))
        return [each for each in candidates if each.schedule.due <= limit]

    def _until_due(self) -> float:
        now = asyncio.get_running_loop().time()
        dues = [each.schedule.due for each in self._candidates()]
        return max(0.0, min(dues, default=now) - now)

    async def _round(self, addresses: Sequence[_Address]) -> Link:
        """Each of `addresses` once, beginning with the favourite; the first that is ready."""
        failure: Exception | None = None
        first = self._favourite()
        for address in sorted(addresses, key=lambda each: each.index < first):
            try:
                link = await self._connect_one(address)
            except Exception as error:  # noqa: BLE001 - the next address may do
                log.info("%s: %s", self._name, error)
                if self.outage is not None:
                    self.outage.error = error
                self._owner.attempt_failed(error)
                retries = is_retryable(error) and address.schedule.retry.enabled
                address.given_up = not retries
                failure = error if retries or failure is None else failure
            else:
                self._current = address.index
                return link
        now = asyncio.get_running_loop().time()
        for schedule in {id(each.schedule): each.schedule for each in addresses}.values():
            schedule.put_off(now)
        assert failure is not None, "there is an address"
        raise failure

    def _favourite(self) -> int:
        """Index of the address to begin with."""
        if self._leader is not None:
            return self._leader.current
        return 0 if self._fixed else self._current

    async def _connect_one(self, address: _Address) -> Link:
        link = await address.connector.connect(timeout=address.connect_timeout)
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
            raise ConnectFailedError(link.url, "closed while it was made ready")
        return link

    def _rise(self, link: Link) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._link = link
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
        """Have those who wait see that it is closed."""
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


def _addresses(
    connectors: Sequence[Connector],
    retry: RetryConfig | Sequence[RetryConfig],
    connect_timeout: float | Sequence[float],
) -> list[_Address]:
    retries = [retry] * len(connectors) if isinstance(retry, RetryConfig) else list(retry)
    timeouts = (
        list(connect_timeout)
        if isinstance(connect_timeout, Sequence)
        else [connect_timeout] * len(connectors)
    )
    schedules: list[_Schedule] = []
    found = []
    for index, (connector, each, timeout) in enumerate(
        zip(connectors, retries, timeouts, strict=True)
    ):
        schedule = next((known for known in schedules if known.retry == each), None)
        if schedule is None:
            schedule = _Schedule(each)
            schedules.append(schedule)
        found.append(_Address(index, connector, timeout, schedule))
    return found
