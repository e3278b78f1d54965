"""A pool of channels, each leased for the length of a block.

State changes in plain methods; coroutines only wait. A waiter is woken to check again; no channel
is handed to it, so a cancellation cannot lose one. Newcomers queue behind everyone who waits or has
been woken: otherwise a busy sender would take back at once the channel that it released for
another. A channel is checked when it is leased and when it comes back. If it was closed in between,
which made rascal lose messages (rascal PR 81), it is retired and the caller checks again.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

from broker_client.config import PoolConfig
from broker_client.errors import BrokerClientError, PoolClosedError, PoolTimeoutError
from broker_client.events.stats import PoolStats
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel

log: logging.Logger = logging.getLogger("broker_client.pool")

Notify = Callable[[str, PoolStats], object]
"""Called with ``busy`` and ``ready`` (as in rascal)."""


class _Waiter(NamedTuple):
    """A waiting caller. Tickets are unique, so futures are never compared."""

    ticket: int
    turn: asyncio.Future[None]


class ChannelPool:
    """Up to `max` channels of one kind.

    Args:
        name: for errors and stats.
        open_channel: opens one on the link that is up.
        config: sizes and time-outs.
        vhost: name of the vhost, for stats.
        mode: kind of channels, for stats.
        notify: called with ``busy`` when a caller finds as many others waiting as there may be
            channels, and with ``ready`` once no caller waits. Must not raise.
        tasks: owner of the tasks that open and close channels in the background.
    """

    def __init__(
        self,
        name: str,
        open_channel: Callable[[], Awaitable[Channel]],
        config: PoolConfig,
        *,
        vhost: str = "",
        mode: str = "",
        notify: Notify | None = None,
        tasks: TaskGroup | None = None,
    ) -> None:
        self._name = name
        self._vhost, self._mode, self._notify = vhost, mode, notify
        self._tasks = tasks or TaskGroup(f"pool {name}")
        self._busy = False
        self._open_channel = open_channel
        self._config = config
        self._size = 0  # idle, leased and being opened
        self._idle: deque[tuple[Channel, float]] = deque()  # with the time of each return
        self._tickets = count()
        self._waiters: list[_Waiter] = []  # in the order of their tickets
        self._woken = 0  # waiters whose turn has come and who have not run yet
        self._paused = False
        self._closed = False
        self._evictor: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ChannelPool {self._name}: {self.stats()}>"

    def stats(self) -> PoolStats:
        return PoolStats(
            self._name,
            self._size,
            len(self._idle),
            self._size - len(self._idle),
            len(self._waiters),
            self._config.max,
            self._paused,
            self._config.min,
            self._busy,
            self._vhost,
            self._mode,
        )

    @property
    def is_wanted(self) -> bool:
        """True while a caller waits for a channel."""
        return bool(self._waiters) and not self._paused

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Channel]:
        """Lend a channel for the length of the block.

        If the block raises or is cancelled, its channel is closed, because a confirm may still be
        on its way. Time spent paused does not count as waiting.

        Raises:
            PoolTimeoutError: no channel became free within `acquire_timeout`.
            PoolClosedError: the pool is closed, or was closed while this waited.
            TransportError: the broker did not open a channel.
        """
        channel = await self._acquire()
        try:
            yield channel
        except BaseException:
            self._retire(channel)
            raise
        self._give_back(channel)

    def pause(self) -> None:
        """Lease no channels until `resume`, and drop the idle ones, whose link is lost."""
        self._paused = True
        self._wake_all()  # to stop their clocks
        while self._idle:
            self._retire(self._idle.popleft()[0])

    def resume(self) -> None:
        """Lease channels again; with `autostart`, open `min` channels."""
        self._paused = False
        self._wake_all()
        if self._config.autostart and self._size < self._config.min and not self._closed:
            self._tasks.spawn(self._fill(), f"fill {self._name}")

    def close(self) -> None:
        """Refuse new leases, fail waiting callers, drop idle channels. May be called again."""
        self._closed = True
        if self._evictor is not None:
            self._evictor.cancel()
            self._evictor = None
        while self._idle:
            self._retire(self._idle.popleft()[0])
        self._wake_all()

    # ------------------------------------------------------------------ lending

    async def _acquire(self) -> Channel:
        loop = asyncio.get_running_loop()
        timeout = self._config.acquire_timeout
        deadline = asyncio.timeout(timeout)
        ticket = next(self._tickets)
        in_turn = False
        self._look_busy()
        try:
            async with deadline:
                while True:
                    if self._closed:
                        raise PoolClosedError(self._name)
                    if self._paused:
                        deadline.reschedule(None)
                        await self._wait_turn(ticket)
                        deadline.reschedule(loop.time() + timeout)
                    elif in_turn or self._has_some_left():
                        channel = self._take_idle()
                        if channel is not None:
                            return channel
                        if self._size < self._config.max:
                            return await self._open()
                        await self._wait_turn(ticket)
                    else:
                        await self._wait_turn(ticket)
                    in_turn = True
        except TimeoutError:
            if not deadline.expired():
                raise  # not ours: the broker took too long to open one
            raise PoolTimeoutError(self._name, timeout, str(self.stats())) from None

    def _has_some_left(self) -> bool:
        """True if a new caller may take a channel, or open one, without overtaking others."""
        available = len(self._idle) + self._config.max - self._size
        return not self._waiters and available > self._woken

    def _take_idle(self) -> Channel | None:
        while self._idle:
            channel, _ = self._idle.pop()
            if channel.is_usable:
                return channel
            self._retire(channel)
        return None

    async def _open(self) -> Channel:
        self._size += 1
        try:
            channel = await self._open_channel()
        except BaseException:
            self._size -= 1
            self._wake_one()
            raise
        if self._closed:
            self._retire(channel)
            raise PoolClosedError(self._name)
        return channel

    async def _fill(self) -> None:
        """Open channels ahead of need. A failure is raised for the first caller that needs one."""
        try:
            while self._size < self._config.min and not self._paused:
                self._give_back(await self._open())
        except BrokerClientError as error:
            log.info("pool %s: %s", self._name, error)

    def _give_back(self, channel: Channel) -> None:
        if not channel.is_usable or self._closed or self._paused:
            self._retire(channel)
            return
        self._idle.append((channel, asyncio.get_running_loop().time()))
        self._wake_one()
        self._look_ready()
        self._plan_eviction()

    def _retire(self, channel: Channel) -> None:
        self._size -= 1
        channel.abort()
        self._wake_one()
        self._look_ready()

    def _dismiss(self, channel: Channel) -> None:
        """Close an intact channel."""
        self._size -= 1
        self._tasks.spawn(self._close_in_time(channel), f"close a channel of {self._name}")

    async def _close_in_time(self, channel: Channel) -> None:
        limit = self._config.close_timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                await channel.close()
        except TimeoutError:
            log.warning("pool %s: a channel was not closed within %g s", self._name, limit)
            channel.abort()
        except BrokerClientError as error:
            log.info("pool %s: while closing a channel: %s", self._name, error)
            channel.abort()

    def _look_busy(self) -> None:
        if len(self._waiters) >= self._config.max and not self._paused and not self._busy:
            self._busy = True
            self._tell("busy")

    def _look_ready(self) -> None:
        if self._busy and not self._waiters:
            self._busy = False
            self._tell("ready")

    def _tell(self, event: str) -> None:
        if self._notify is not None:
            self._notify(event, self.stats())

    # ------------------------------------------------------------------ waiting

    async def _wait_turn(self, ticket: int) -> None:
        waiter = _Waiter(ticket, asyncio.get_running_loop().create_future())
        insort(self._waiters, waiter)
        try:
            await waiter.turn
        except BaseException:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._woken -= 1
                self._wake_one()  # our turn came as we were cancelled: pass it on
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
        self._woken -= 1

    def _wake_one(self) -> None:
        """Wake the first waiting caller, and remove it from the line."""
        while self._waiters:
            turn = self._waiters.pop(0).turn
            if not turn.done():
                turn.set_result(None)
                self._woken += 1
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake_one()

    # ------------------------------------------------------------------ eviction

    def _plan_eviction(self) -> None:
        if self._evictor is None and self._idle and self._size > self._config.min:
            due = self._idle[0][1] + self._config.idle_timeout
            self._evictor = asyncio.get_running_loop().call_at(due, self._evict)

    def _evict(self) -> None:
        self._evictor = None
        limit = asyncio.get_running_loop().time() - self._config.idle_timeout
        while self._idle and self._idle[0][1] <= limit and self._size > self._config.min:
            self._dismiss(self._idle.popleft()[0])
        self._plan_eviction()
