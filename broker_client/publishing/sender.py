"""The publishes of one publication, sent in order on one channel at a time.

A sender leases a channel when it has something to send and keeps it as long as it is busy. What is
unconfirmed when the channel dies goes back to the front, in order, with the same message ids; so
does what the broker nacked, after a pause. What a failed channel means for them is decided in
`failures`.

A confirm that does not come in time ends its publish, not the channel: a slow link is not a dead
one. Only a channel that has been silent since that publish was sent is asked whether it is there,
and only one that does not answer is given up: a stall or a throttled link sends nothing twice.
"""

from __future__ import annotations

import asyncio
import logging

from broker_client.config import BackoffConfig, PublishQueueConfig
from broker_client.connection.retry import Backoff
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    OperationTimeoutError,
    PoolClosedError,
    PublishNackedError,
)
from broker_client.message import Returned
from broker_client.pool import ChannelPool
from broker_client.publication import ENDED, SENT, WAITING, Publication
from broker_client.publishing.backlog import Backlog
from broker_client.publishing.failures import (
    ChannelFailures,
    Next,
    PublishQueueOwner,
    too_large,
)
from broker_client.publishing.suspicion import Suspicion
from broker_client.publishing.waiting import WaitingLine
from broker_client.publishing.window import Window
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel
from broker_client.transport.confirms import ConfirmLedger
from broker_client.transport.limits import SizeLimit

log: logging.Logger = logging.getLogger("broker_client.publishing")

_RETRY_PAUSE = 0.05  # seconds before a sender whose channel failed, with the link up, goes on
_REASON_GRACE = 1.0  # seconds between the end of a channel and the notice of it, at most
_BATCH_BYTES = 2**20  # written at once, or one message: what is written cannot be taken back
_CONFIRM_GRACE = 5.0  # seconds without a confirm, if the channel answers and no publish waits
_REFUSALS = BackoffConfig.model_construct(min=0.1, max=5.0, factor=2.0)
_NACKS_WITHOUT_DEADLINE = 20  # tries of a message that may take forever: more than a minute


class Sender:
    """The publishes of one publication, in order.

    Args:
        name: name of the publication.
        pool: where to lease channels from.
        confirm: True when these channels confirm.
        config: window and batch size.
        backlog: where publishes end.
        running: set while the link is up and the broker takes publishes.
        suspicion: shared by all senders of the connection.
        owner: the vhost.
        tasks: owner of the task that sends.
    """

    def __init__(
        self,
        name: str,
        pool: ChannelPool,
        confirm: bool,
        *,
        config: PublishQueueConfig,
        backlog: Backlog,
        running: asyncio.Event,
        suspicion: Suspicion,
        owner: PublishQueueOwner,
        tasks: TaskGroup,
    ) -> None:
        self._name = name
        self._pool = pool
        self._confirm = confirm
        self._config = config
        self._backlog = backlog
        self._running = running
        self._suspicion = suspicion
        self._tasks = tasks
        self._waiting = WaitingLine()
        self._failures = ChannelFailures(name, self._waiting, backlog, suspicion, owner)
        self._accepted = 0
        self._ledger: ConfirmLedger[Publication] = ConfirmLedger()
        self._window = Window(config.max_in_flight)
        self._task: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None  # while the task waits for any
        self._refusals = Backoff(_REFUSALS)  # of nacks, and of a broker that is short of something
        self._rest_until = 0.0  # loop time
        self._heard_at = 0.0  # loop time of the last sign of life of the present channel
        self._silent = False  # a confirm is overdue, and it has not been heard since
        self._give_up_at: float | None = None  # loop time; it answers, and confirms nothing
        self._taken_back: list[Publication] = []  # unconfirmed as the last channel failed
        self._sent_alone = False  # what is on its way is one suspect
        self._has_turn = False  # no other sender uses this connection
        self._close_reason: BrokerClientError | None = None
        self.resent: int = 0
        """Publishes sent again after their channel was lost."""

    def __repr__(self) -> str:
        waiting, unconfirmed = len(self._waiting.line), len(self._ledger)
        return f"<Sender {self._name}: {waiting} waiting, {unconfirmed} unconfirmed>"

    @property
    def unconfirmed(self) -> int:
        """Publishes that were sent and have not ended."""
        return sum(publication.state is SENT for publication in self._ledger)

    @property
    def is_idle(self) -> bool:
        """True while it has nothing to send and waits for no confirm."""
        return self._task is None and not self._ledger and next(iter(self._waiting), None) is None

    def append(self, publication: Publication) -> None:
        """Send `publication` after all waiting ones."""
        self._accepted += 1
        publication.order = self._accepted
        self._waiting.line.append(publication)
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), f"publish {self._name}")
        elif self._news is not None:
            self.wake()

    def remove(self, publication: Publication) -> bool:
        """Remove a waiting publication; False if it is not waiting."""
        return self._waiting.remove(publication)

    def first_unsent(self) -> Publication | None:
        """The oldest publication that was never sent."""
        return next((each for each in self._waiting if not each.maybe_duplicate), None)

    def pause(self) -> None:
        """Emit `paused` on waiting publications: the link is down."""
        for publication in tuple(self._waiting):
            publication.pause()

    def wake(self) -> None:
        """Something has changed, such as the link, which is up again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def overdue(self, publication: Publication) -> None:
        """A sent publication was not confirmed in time."""
        if (
            not self._silent
            and publication.sent_at >= self._heard_at
            and self._running.is_set()  # a broker that blocks us does not answer either
            and publication in self._ledger
        ):
            self._silent = True
            self.wake()

    async def close(self) -> list[Publication]:
        """Stop sending; returns unfinished publications, in order."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        left = [each for each in (*self._ledger.take_all(), *self._waiting) if not each.is_ended]
        self._waiting.clear()
        return left

    # ------------------------------------------------------------------ sending

    async def _run(self) -> None:
        try:
            while self._waiting.line:
                await self._rest()
                await self._running.wait()
                if not self._waiting.line:
                    return  # their time ran out meanwhile
                try:
                    await self._take_turn()
                except PoolClosedError:
                    return
                except BrokerClientError as error:
                    log.info("%s: %s", self._name, error)
                    await self._after_failure(error)
                except Exception:
                    # A fault of ours must not strand what waits; deadlines end what it strikes.
                    log.exception("publishing %s", self._name)
                    await asyncio.sleep(_RETRY_PAUSE)
        finally:
            self._task = None
            self._failures.clear_suspects()

    async def _rest(self) -> None:
        pause = self._rest_until - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _take_turn(self) -> None:
        if not self._failures.has_suspects:
            self._has_turn = False
            await self._suspicion.wait_none()
            async with self._pool.lease() as channel:
                await self._send_on(channel)
            return
        async with self._suspicion.turn:
            self._has_turn = True
            await self._running.wait()
            if self._waiting.has_suspect_in_front:
                async with self._pool.lease() as channel:
                    await self._send_on(channel, suspects_only=True)
        self._failures.clear_suspects()

    async def _send_on(self, channel: Channel, *, suspects_only: bool = False) -> None:
        """Send until nothing waits and everything is confirmed."""
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return
        channel.on_close = self._on_close
        self._silent = False
        self._heard_at, self._give_up_at = 0.0, None
        sent = 0
        most = self._config.max_in_flight
        try:
            while True:
                if not channel.is_usable:
                    await self._hear_why()
                    raise self._close_reason or ChannelClosedError(0, "lost")
                if self._silent:
                    await self._ask_for_life(channel)
                room = self._room()
                # Others want a channel: send no more, give this one back once it is confirmed.
                fair = sent < most or not self._pool.is_wanted
                # A broker that blocks publishers leaves the link up, and us in the middle.
                may_send = fair and self._running.is_set()
                if suspects_only and not self._waiting.has_suspect_in_front:
                    may_send = False
                if room > 0 and may_send:
                    sent += await self._send_batch(channel, room)
                elif not self._ledger:
                    return
                else:
                    await self._wait_for_news()
        except BaseException as error:
            if isinstance(error, OperationTimeoutError):
                self._window.restart()
            self._take_back()
            raise
        finally:
            channel.on_confirm = channel.on_return = channel.on_close = None
            self._close_reason = None

    def _room(self) -> int:
        """Number of publications that may be sent now."""
        if not self._waiting.line or asyncio.get_running_loop().time() < self._rest_until:
            return 0
        if self._ledger and (self._sent_alone or self._waiting.line[0].suspected):
            return 0
        return min(self._window.size - len(self._ledger), self._config.batch)

    async def _ask_for_life(self, channel: Channel) -> None:
        """Probe a silent channel: requests on a channel are answered in order.

        Raises:
            TransportError: it is not.
        """
        self._silent = False
        await channel.qos(0)  # means nothing on a channel without consumers
        self._heard_at = asyncio.get_running_loop().time()
        self._give_up_at = self._heard_at + _CONFIRM_GRACE

    async def _wait_for_news(self) -> None:
        """Wait for a confirm, or for something to send.

        Raises:
            OperationTimeoutError: the channel answers but does not confirm, and all its publishes
                have ended: giving it up sends nothing again.
        """
        try:
            async with asyncio.timeout_at(self._give_up_at):
                await self._wait()
        except TimeoutError:
            self._give_up_at = None
            if all(publication.is_ended for publication in self._ledger):
                raise OperationTimeoutError("publisher confirm", _CONFIRM_GRACE) from None

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    async def _hear_why(self) -> None:
        """Wait for the reason of the channel's end: the confirms it still had come before it.

        None comes when it ended before it was ours.
        """
        try:
            async with asyncio.timeout(_REASON_GRACE):
                while self._close_reason is None:
                    await self._wait()
        except TimeoutError:
            log.debug("%r: its channel ended and gave no reason", self)

    async def _send_batch(self, channel: Channel, room: int) -> int:
        batch = self._next_batch(room, channel.size_limit)
        if not batch:
            return 0
        # On a channel without confirms the numbers only serve to find them again.
        self._ledger.add(channel.next_publish_seq or 1, batch)
        self._sent_alone = batch[0].suspected
        await channel.publish([publication.outgoing for publication in batch])
        if not self._confirm:
            self._backlog.succeeded(batch, asyncio.get_running_loop().time())
            self._ledger.take_all()
        return len(batch)

    def _next_batch(self, room: int, limit: SizeLimit) -> list[Publication]:
        line, batch, size = self._waiting.line, list[Publication](), 0
        now = asyncio.get_running_loop().time()
        # One that would be too late when confirmed is not sent, unless nothing else is on its way:
        # what has been slow may be fast again.
        latest = now + self._window.latency if self._ledger else now
        while line and len(batch) < room and size < _BATCH_BYTES:
            if line[0].suspected and batch:
                break
            publication = line.popleft()
            body_bytes = len(publication.outgoing.body)
            if 0 < limit.size_bytes < body_bytes:
                self._backlog.failed(publication, too_large(publication, limit))
            elif publication.deadline < latest:
                self._waiting.set_aside(publication)
            else:
                publication.state = SENT
                publication.sent_at = now
                batch.append(publication)
                size += body_bytes
                if publication.suspected:
                    break
        return batch

    def _take_back(self) -> None:
        """The channel is lost: resend its unconfirmed publications before the waiting ones."""
        again = [publication for publication in self._ledger.take_all() if not publication.is_ended]
        for publication in again:
            publication.state = WAITING
            publication.maybe_duplicate = True
        self._waiting.put_back(again)
        self._taken_back = again
        self.resent += len(again)
        if not self._running.is_set():
            for publication in again:
                publication.pause()

    # ------------------------------------------------------------------ failures

    async def _after_failure(self, error: BrokerClientError) -> None:
        taken_back, self._taken_back = self._taken_back, []
        then = await self._failures.judge(error, taken_back, has_turn=self._has_turn)
        if then is Next.BACK_OFF:
            self._back_off()
        elif then is Next.PAUSE and self._running.is_set():
            await asyncio.sleep(_RETRY_PAUSE)

    def _back_off(self) -> None:
        """Pause sending, longer each time until something is confirmed."""
        self._window.restart()
        now = asyncio.get_running_loop().time()
        if now >= self._rest_until:
            self._rest_until = now + self._refusals.next()
            asyncio.get_running_loop().call_at(self._rest_until, self.wake)

    # ------------------------------------------------------------------ from the channel

    def _on_confirm(self, first: int, last: int, acked: bool) -> None:
        now = asyncio.get_running_loop().time()
        self._heard_at, self._give_up_at = now, None
        settled = self._ledger.settle(first, last)
        if not settled:
            return
        if acked:
            self._acked(settled, now)
        else:
            self._nacked(settled)
        self.wake()

    def _acked(self, settled: list[Publication], now: float) -> None:
        self._window.confirmed(len(settled), now - settled[-1].sent_at, now)
        self._backlog.succeeded(settled, now)
        self._failures.confirmed(settled)
        if self._refusals.failures:
            self._refusals.reset()

    def _nacked(self, settled: list[Publication]) -> None:
        again = []
        for publication in settled:
            if publication.state is ENDED:
                continue
            publication.nacks += 1
            most = publication.max_nacks
            if publication.deadline == float("inf"):
                most = min(most, _NACKS_WITHOUT_DEADLINE)
            if publication.nacks <= most:
                publication.state = WAITING
                again.append(publication)
            else:
                self._backlog.failed(publication, nacked(publication))
        if again:
            self._waiting.put_back(again)
            self._back_off()

    def _on_return(self, message: Returned) -> None:
        """Find the returned publication: the oldest unfinished one with that id."""
        self._heard_at = asyncio.get_running_loop().time()
        for publication in self._ledger:
            if (
                publication.state is not ENDED
                and publication.message_id == message.properties.message_id
                and publication.outgoing.routing_key == message.routing_key
            ):
                self._backlog.returned(publication, message)
                return
        log.warning("%s: the broker returned an unknown message", self._name)

    def _on_close(self, error: BrokerClientError) -> None:
        self._close_reason = error
        self.wake()


def nacked(publication: Publication) -> PublishNackedError:
    """The error of a publish whose last retry was nacked."""
    message = publication.outgoing
    return PublishNackedError(
        publication.name, publication.message_id, message.exchange, message.routing_key
    )
