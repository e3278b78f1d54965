"""The addresses of a vhost, and the only loop that connects to them.

Every address has waits of its own. They grow with each round in which no address gave a link, and
with each link of that address that died early; they start again from the first after a link that
was stable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Self

from broker_client.config import RetryConfig, VhostConfig
from broker_client.connection.retry import Backoff, is_retryable
from broker_client.errors import ConnectFailedError
from broker_client.transport.base import Connector, Link

_HEAD_START = 0.5  # seconds before the next address is tried in parallel


class Address:
    """One address to connect to."""

    def __init__(
        self, index: int, connector: Connector, retry: RetryConfig, connect_timeout: float
    ) -> None:
        self.index = index
        self.connector = connector
        self.retry = retry
        self.connect_timeout = connect_timeout
        self.backoff: Backoff = Backoff(retry)
        self.due: float = float("-inf")  # loop time
        self.rests_until: float = float("-inf")  # loop time; its links died early
        self.was_lost = False  # a link of it was lost, and no later one was stable
        self.given_up = False  # failed, and must not be tried again

    def __repr__(self) -> str:
        return f"<Address {self.connector.url}: {self.backoff!r}>"

    async def connect(self) -> Link:
        """Open a link to it.

        Raises:
            TransportError: there is no link.
        """
        return await self.connector.connect(timeout=self.connect_timeout)


class Addresses:
    """Connects to the first of several addresses that answers.

    Args:
        connectors: of the addresses, in the order of the configuration.
        retry: waits, for all addresses or one for each. An address with ``retry: false`` is tried
            until the first link is up, and never again.
        connect_timeout: seconds for one attempt; for all addresses or for each.
        fixed: True starts every round with the first address; False with the one that worked last.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        *,
        retry: RetryConfig | Sequence[RetryConfig],
        connect_timeout: float | Sequence[float],
        fixed: bool = False,
    ) -> None:
        count = len(connectors)
        retries = [retry] * count if isinstance(retry, RetryConfig) else retry
        timeouts = connect_timeout
        if not isinstance(timeouts, Sequence):
            timeouts = [timeouts] * count
        self._all = [
            Address(index, *settings)
            for index, settings in enumerate(zip(connectors, retries, timeouts, strict=True))
        ]
        self._fixed = fixed
        self._lost: Address | None = None  # the address whose link was lost; it is tried last
        self._connected = False
        self.current: Address = self._all[0]
        """The address that worked last."""

    @classmethod
    def of(cls, config: VhostConfig, connectors: Sequence[Connector]) -> Addresses:
        """With the settings that `config` has for each of `connectors`."""
        return cls(
            connectors,
            retry=[each.retry for each in config.connections],
            connect_timeout=[each.connect_timeout for each in config.connections],
            fixed=config.connection_strategy == "fixed",
        )

    def __repr__(self) -> str:
        return f"<Addresses: {len(self._all)}, now {self.current.connector.url}>"

    @property
    def left(self) -> list[Address]:
        """The addresses that may still be tried, in order."""
        return [
            each
            for each in self._all
            if not each.given_up and (each.retry.enabled or not self._connected)
        ]

    async def connect(
        self,
        prepare: Callable[[Link], Awaitable[None]] | None = None,
        *,
        once: bool = False,
        timeout: float | None = None,
        first: Callable[[], Awaitable[int]] | None = None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> Link:
        """A link to the first address that answers.

        The addresses are tried in order. If one neither answers nor refuses within half a
        second, the next is tried in parallel, as in RFC 8305 ("Happy Eyeballs").

        Args:
            prepare: makes a link ready, or raises to reject it.
            once: True tries each address once, now; False goes on in rounds until one answers.
            timeout: seconds for all of it; None is forever.
            first: called before each round: the index of the address to start it with.
            on_failure: notified of each attempt that failed.

        Raises:
            Exception: the last failure, when `once` is set, when time is up, or when no address is
                left that may be tried again.
        """
        last: Exception | None = None  # one is kept, however long this takes
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                while True:
                    if not once:
                        await asyncio.sleep(self._until_due())
                    start = None if first is None else await first()
                    addresses = self._all if once else self._due()
                    failure: Exception | None = None
                    async with _Race(self._in_order(addresses, start)) as race:
                        while race.goes_on:
                            address, attempt = await race.next_result()
                            try:
                                link = attempt.result()
                                if prepare is not None:
                                    await prepare(link)
                            except Exception as error:  # noqa: BLE001 - the next may answer
                                last = failure = self._failed(address, error, failure)
                                if on_failure is not None:
                                    on_failure(error)
                            else:
                                self.current, self._lost, self._connected = address, None, True
                                return link
                    self._put_off(addresses)
                    if once or not self.left:
                        assert failure is not None, "there is an address"
                        raise failure
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if last is not None:
                raise last from error
            reason = f"no answer within {timeout:g} s"
            raise ConnectFailedError(self.current.connector.url, reason) from error

    def link_lost(self, since: float, used_at: float, *, elsewhere: bool = True) -> None:
        """The link to `current` is lost: decide which address is tried next, and when.

        The other addresses are tried at once, but for those whose last link died early; the one
        that was lost is tried after them, and waits if its links keep dying early.

        Args:
            since: loop time at which the link came up.
            used_at: loop time of the last confirm or ack on it. A link that was of use for as
                long as the first wait is stable, so that waits cannot grow over a link that works.
            elsewhere: False tries the same address first: its link was given up by us.
        """
        now = asyncio.get_running_loop().time()
        lost = self.current
        self._lost = lost if elsewhere else None
        if now - since >= lost.retry.stable_after or used_at - since >= lost.retry.min:
            lost.rests_until = now
            for each in self._all:
                each.backoff.reset()
        elif lost.was_lost:
            lost.rests_until = now + lost.backoff.next()
        lost.was_lost = True
        for each in self._all:
            each.due = each.rests_until

    def _in_order(self, addresses: Sequence[Address], first: int | None) -> list[Address]:
        if first is None:
            first = 0 if self._fixed else self.current.index
        count = len(self._all)
        return sorted(
            addresses,
            key=lambda each: (each is self._lost, (each.index - first) % count),
        )

    def _failed(self, address: Address, error: Exception, before: Exception | None) -> Exception:
        """The failure of a round to report: the last one that is retryable."""
        worth = is_retryable(error) and address.retry.enabled
        address.given_up = not worth
        return error if worth or before is None else before

    def _put_off(self, addresses: Sequence[Address]) -> None:
        now = asyncio.get_running_loop().time()
        for each in addresses:
            each.due = now + each.backoff.next()

    def _due(self) -> list[Address]:
        """Addresses whose wait is over; the next one if the timer fired a moment early."""
        candidates = self.left
        now = asyncio.get_running_loop().time()
        limit = max(now, min(each.due for each in candidates))
        return [each for each in candidates if each.due <= limit]

    def _until_due(self) -> float:
        dues = [each.due for each in self.left]
        return max(0.0, min(dues) - asyncio.get_running_loop().time())


class _Race:
    """Attempts to connect to several addresses, in order.

    The next begins when one has failed, or has had its head start. The end cancels those that
    still run, and drops links that were not taken.
    """

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._waiting = deque(addresses)
        self._running: dict[asyncio.Task[Link], Address] = {}

    @property
    def goes_on(self) -> bool:
        return bool(self._waiting or self._running)

    async def next_result(self) -> tuple[Address, asyncio.Task[Link]]:
        """The next attempt that has ended."""
        while True:
            if self._waiting:
                address = self._waiting.popleft()
                work = address.connect()
                self._running[asyncio.create_task(work, name=f"connect {address!r}")] = address
            done, _ = await asyncio.wait(
                self._running,
                timeout=_HEAD_START if self._waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                attempt = next(each for each in self._running if each in done)
                return self._running.pop(attempt), attempt

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        attempts = list(self._running)
        for attempt in attempts:
            attempt.cancel()
        if attempts:
            await asyncio.wait(attempts)
        for attempt in attempts:
            if not attempt.cancelled() and attempt.exception() is None:
                link = attempt.result()
                link.abort()
                await link.close()
