"""Faults of the network and the broker, on any broker, injected between client and transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from broker_client.errors import ConnectFailedError, ConnectionLostError, TransportError
from broker_client.message import Outgoing
from broker_client.transport.base import Channel, Connector, Link


class Faults:
    """Injects faults into one Broker."""

    def __init__(self) -> None:
        self._links: list[_FaultyLink] = []
        self._refused: str | None = None
        self._blocked: str | None = None
        self._nacks = 0

    def __repr__(self) -> str:
        return f"<Faults: refused={self._refused!r} blocked={self._blocked!r} nacks={self._nacks}>"

    # ------------------------------------------------------------------ for tests

    def lose_link(self) -> None:
        """Cut every connection, as a network fault would.

        The client reconnects by itself, unless inside `refuse`. Unsettled messages are delivered
        again, unconfirmed ones are sent again. `await broker.bounce()` does the same and waits
        until everything is connected again.
        """
        for link in self._links:
            link.lose("lost by the test")
        self._links.clear()

    @contextmanager
    def refuse(self, reason: str = "refused by the test") -> Iterator[None]:
        """Refuse new connections inside this block. Existing connections stay up."""
        self._refused = reason
        try:
            yield
        finally:
            self._refused = None

    def nack_next(self, count: int = 1) -> None:
        """The broker nacks the next `count` publishes, copies of recovery included.

        A nacked publish is sent again, until its `timeout`; with `retry_nacked: 0` the first nack
        ends it with `PublishNackedError`.
        """
        if count < 0:
            raise ValueError(f"count is {count}; 0 or more is allowed")
        self._nacks = count

    @contextmanager
    def block(self, reason: str = "blocked by the test") -> Iterator[None]:
        """The broker blocks publishing inside this block, as during a memory alarm."""
        self._blocked = reason
        for link in self._links:
            link.block(reason)
        try:
            yield
        finally:
            self._blocked = None
            for link in self._links:
                link.unblock()

    # ------------------------------------------------------------------ for the transport

    def connector(self, connector: Connector) -> Connector:
        """`connector`, with these faults."""
        return _FaultyConnector(connector, self)

    def check_refused(self, url: str) -> None:
        """Raise while connections are refused."""
        if self._refused is not None:
            raise ConnectFailedError(url, self._refused)

    def connected(self, link: _FaultyLink) -> None:
        """`link` is up."""
        self._links = [each for each in self._links if each.is_open]
        self._links.append(link)
        if self._blocked is not None:
            link.block(self._blocked)

    def takes_nack(self) -> bool:
        """True when the next publish is to be nacked; counts it."""
        if not self._nacks:
            return False
        self._nacks -= 1
        return True


class _FaultyConnector:
    def __init__(self, connector: Connector, faults: Faults) -> None:
        self._connector, self._faults = connector, faults

    @property
    def url(self) -> str:
        return self._connector.url

    async def connect(self, *, timeout: float) -> Link:
        self._faults.check_refused(self.url)
        link = _FaultyLink(await self._connector.connect(timeout=timeout), self._faults)
        self._faults.connected(link)
        return cast(Link, link)


class _FaultyLink:
    """A link that can be lost and blocked; everything else is passed to the real one."""

    def __init__(self, link: Link, faults: Faults) -> None:
        self.on_close: Any = None
        self.on_blocked: Any = None
        self.on_unblocked: Any = None
        self._link, self._faults = link, faults
        self._channels: list[_FaultyChannel] = []
        self._is_lost = False
        link.on_close = self._closed
        link.on_blocked = lambda reason: self.on_blocked and self.on_blocked(reason)
        link.on_unblocked = lambda: self.on_unblocked and self.on_unblocked()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    @property
    def is_open(self) -> bool:
        return not self._is_lost and self._link.is_open

    async def open_channel(self, *, confirm: bool = False) -> Channel:
        if self._is_lost:
            raise ConnectionLostError(self._link.url, "lost by the test")
        channel = _FaultyChannel(await self._link.open_channel(confirm=confirm), self._faults)
        self._channels = [each for each in self._channels if each.is_usable]
        self._channels.append(channel)
        return cast(Channel, channel)

    def lose(self, reason: str) -> None:
        """End as a lost connection does: its channels are notified first."""
        if not self.is_open:
            return
        self._is_lost = True
        error = ConnectionLostError(self._link.url, reason)
        for channel in self._channels:
            channel.lose(error)
        self._link.abort()
        asyncio.get_running_loop().call_soon(self._tell_closed, error)

    def block(self, reason: str) -> None:
        """As connection.blocked does."""
        asyncio.get_running_loop().call_soon(lambda: self.on_blocked and self.on_blocked(reason))

    def unblock(self) -> None:
        """As connection.unblocked does."""
        asyncio.get_running_loop().call_soon(lambda: self.on_unblocked and self.on_unblocked())

    def _closed(self, error: TransportError) -> None:
        if not self._is_lost:
            self._tell_closed(error)

    def _tell_closed(self, error: TransportError) -> None:
        if self.on_close is not None:
            self.on_close(error)


class _FaultyChannel:
    """A channel that can be lost, and that nacks; everything else is passed to the real one.

    What is nacked here is never sent, so publishes have numbers of their own.
    """

    def __init__(self, channel: Channel, faults: Faults) -> None:
        self.on_confirm: Any = None
        self.on_return: Any = None
        self.on_close: Any = None
        self._channel, self._faults = channel, faults
        self._next = channel.next_publish_seq  # 0 without confirms
        self._sent: deque[tuple[int, int]] = deque()  # (number there, number here), unconfirmed
        self._is_lost = False
        channel.on_confirm = self._confirmed
        channel.on_return = lambda message: self.on_return and self.on_return(message)
        channel.on_close = self._closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    @property
    def is_usable(self) -> bool:
        return not self._is_lost and self._channel.is_usable

    @property
    def next_publish_seq(self) -> int:
        return self._next

    async def publish(self, batch: Sequence[Outgoing]) -> None:
        if not self._next:
            await self._channel.publish(batch)
            return
        passed: list[Outgoing] = []
        first = self._channel.next_publish_seq
        for message in batch:
            if self._faults.takes_nack():
                asyncio.get_running_loop().call_soon(self._tell, self._next, False)
            else:
                self._sent.append((first + len(passed), self._next))
                passed.append(message)
            self._next += 1
        if passed:
            await self._channel.publish(passed)

    def _confirmed(self, first: int, last: int, acked: bool) -> None:
        kept: deque[tuple[int, int]] = deque()
        told: list[int] = []
        for there, here in self._sent:
            if first <= there <= last:
                told.append(here)
            else:
                kept.append((there, here))
        self._sent = kept
        for here in told:
            self._tell(here, acked)

    def _tell(self, number: int, acked: bool) -> None:
        if self.on_confirm is not None and not self._is_lost:
            self.on_confirm(number, number, acked)

    def lose(self, error: TransportError) -> None:
        """End with its link."""
        if self.is_usable:
            self._is_lost = True
            asyncio.get_running_loop().call_soon(self._tell_closed, error)

    def _closed(self, error: TransportError) -> None:
        if not self._is_lost:
            self._tell_closed(error)

    def _tell_closed(self, error: TransportError) -> None:
        if self.on_close is not None:
            self.on_close(error)
