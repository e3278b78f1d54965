"""The publishes of one publication, sent in order on one channel at a time.

A sender leases a channel when it has something to send and keeps it as long as it is busy. When
the channel dies, what is unconfirmed goes back to the front, in order, with the same message id.
When the broker closes the channel over one of them, without saying which, they are sent again one
by one until the culprit is alone. What is larger than the broker is known to take is not sent.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import deque
from typing import Protocol

from broker_client.config import PublishQueueConfig
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    InvalidMessageError,
    MessageTooLargeError,
    OperationTimeoutError,
    PoolClosedError,
    PublishNackedError,
    PublishRefusedError,
)
from broker_client.message import Returned
from broker_client.pool import ChannelPool
from broker_client.publication import ENDED, SENT, WAITING, Publication
from broker_client.publishing.backlog import Backlog
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel
from broker_client.transport.confirms import ConfirmLedger
from broker_client.transport.limits import SizeLimit, size_limit_in

log = logging.getLogger("broker_client.lane")

_RETRY_PAUSE = 0.05  # seconds before a sender whose channel failed, with the link up, goes on
_REASON_GRACE = 1.0  # seconds between the end of a channel and the notice of it, at most
_NOT_FOUND = 404
_size = operator.attrgetter("size")


class PublishQueueOwner(Protocol):
    """What publishing needs of its vhost."""

    @property
    def link_state(self) -> str:
        """For errors: up, or down since when and why."""
        ...

    async def restore_topology(self) -> None:
        """Declare everything again: something that a publication needs is missing."""
        ...


class Sender:
    """The publishes of one publication, in order.

    Args:
        name: name of the publication.
        pool: where to lease channels from.
        confirm: True when these channels confirm.
        config: window and batch size.
        backlog: where publishes end.
        running: set while the link is up and the broker takes publishes.
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
        owner: PublishQueueOwner,
        tasks: TaskGroup,
    ) -> None:
        self._name = name
        self._pool = pool
        self._confirm = confirm
        self._config = config
        self._backlog = backlog
        self._running = running
        self._owner = owner
        self._tasks = tasks
        self._waiting: deque[Publication] = deque()
        self._ledger: ConfirmLedger[Publication] = ConfirmLedger()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._probing = 0  # send so many one by one: one of them made the broker close a channel
        self._restored = False  # the topology was declared again for the sake of these
        self._suspect: Publication | None = None  # sent alone when the last channel failed
        self._distrusted = False  # a confirm is overdue on the present channel
        self._close_reason: BrokerClientError | None = None
        self.resent = 0
        """Publishes sent again after their channel was lost."""

    def __repr__(self) -> str:
        return (
            f"<Sender {self._name}: {len(self._waiting)} waiting, {len(self._ledger)} unconfirmed>"
        )

    @property
    def unconfirmed(self) -> int:
        """Publishes that were sent and have not ended."""
        return sum(publication.state is SENT for publication in self._ledger)

    def append(self, publication: Publication) -> None:
        """Send `publication` after all that wait."""
        self._waiting.append(publication)
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), f"publish {self._name}")
        else:
            self._changed.set()

    def remove(self, publication: Publication) -> bool:
        """Take out one that waits; False when it is not here."""
        try:
            self._waiting.remove(publication)
        except ValueError:
            return False
        return True

    def first_unsent(self) -> Publication | None:
        """The oldest that was never sent."""
        return next((each for each in self._waiting if not each.maybe_duplicate), None)

    def pause(self) -> None:
        """Tell those that wait that the link is down."""
        for publication in tuple(self._waiting):
            publication.pause()

    def wake(self) -> None:
        """The link is up again."""
        self._changed.set()

    def distrust(self, publication: Publication) -> None:
        """A confirm is overdue: if it was to come on our channel, stop using that."""
        if publication in self._ledger:
            self._distrusted = True
            self._changed.set()

    async def close(self) -> list[Publication]:
        """Stop sending; returns what has not ended, in order."""
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
            while self._waiting:
                await self._running.wait()
                if not self._waiting:
                    return  # their time ran out meanwhile
                try:
                    async with self._pool.lease() as channel:
                        await self._send_on(channel)
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
            self._probing = 0

    async def _send_on(self, channel: Channel) -> None:
        """Send what waits until nothing does and all is confirmed."""
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return
        channel.on_close = self._on_close
        self._distrusted = False
        sent = 0
        config = self._config
        try:
            while True:
                if not channel.is_usable:
                    await self._hear_why()
                    raise self._close_reason or ChannelClosedError(0, "lost")
                if self._distrusted:
                    raise OperationTimeoutError("publisher confirm", 0.0)
                window = 1 if self._probing else config.max_in_flight
                room = min(window - len(self._ledger), config.batch)
                # Others want a channel: send no more, give this one back once it is confirmed.
                fair = sent < config.max_in_flight or not self._pool.is_wanted
                # A broker that blocks publishers leaves the link up, and us in the middle.
                may_send = fair and self._running.is_set()
                if self._waiting and room > 0 and may_send:
                    sent += await self._send_batch(channel, room)
                elif not self._ledger:
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except BaseException:
            self._take_back()
            raise
        finally:
            channel.on_confirm = channel.on_return = channel.on_close = None
            self._close_reason = None

    async def _hear_why(self) -> None:
        """Wait for the reason of the channel's end: the confirms it still had come before it.

        None comes when it ended before it was ours.
        """
        try:
            async with asyncio.timeout(_REASON_GRACE):
                while self._close_reason is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.debug("%r: its channel ended and gave no reason", self)

    async def _send_batch(self, channel: Channel, room: int) -> int:
        waiting, ledger = self._waiting, self._ledger
        batch = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        limit = channel.size_limit
        if limit.size_bytes and max(map(_size, batch)) > limit.size_bytes:
            waiting.extendleft(reversed(batch))
            self._refuse_larger(limit)
            return 0
        # On a channel without confirms the numbers only serve to find them again.
        ledger.add(channel.next_publish_seq or 1, batch)
        for publication in batch:
            publication.state = SENT
        await channel.publish([publication.outgoing for publication in batch])
        if not self._confirm:
            now = asyncio.get_running_loop().time()
            for publication in batch:
                if publication.state is not ENDED:
                    self._backlog.succeeded(publication, now)
            ledger.take_all()
        return len(batch)

    def _refuse_larger(self, limit: SizeLimit) -> bool:
        """End what waits and is too large for the broker; False when there is no such."""
        larger = [each for each in self._waiting if each.size > limit.size_bytes]
        for publication in larger:
            self.remove(publication)
            self._probing = max(0, self._probing - publication.maybe_duplicate)
            self._backlog.failed(
                publication,
                MessageTooLargeError(
                    publication.name, publication.message_id, publication.size, *limit
                ),
            )
        return bool(larger)

    def _take_back(self) -> None:
        """The channel is gone: what it has not confirmed is sent again, before what waits."""
        again = [publication for publication in self._ledger.take_all() if not publication.is_ended]
        for publication in reversed(again):
            publication.state = WAITING
            publication.maybe_duplicate = True
            self._waiting.appendleft(publication)
        self._suspect = again[0] if self._probing and len(again) == 1 else None
        self.resent += len(again)
        if not self._running.is_set():
            for publication in again:
                publication.pause()

    async def _after_failure(self, error: BrokerClientError) -> None:
        """Decide what the failure of a channel means for what was on it."""
        if isinstance(error, InvalidMessageError):
            code, text = 0, str(error)  # nothing of the batch was written
        elif isinstance(error, ChannelClosedError) and error.reply_code:
            code, text = error.reply_code, error.reply_text
        else:
            if self._running.is_set():
                await asyncio.sleep(_RETRY_PAUSE)  # the link's loss is noticed in a moment
            return
        limit = size_limit_in(code, text)
        if limit is not None and self._refuse_larger(limit):
            return
        # The broker closed the channel over one of our messages, and did not say which.
        if code == _NOT_FOUND and not self._restored:
            self._restored = True
            try:
                await self._owner.restore_topology()
            except BrokerClientError as failure:
                log.warning("%s: restoring the topology: %s", self._name, failure)
            return
        suspect, self._suspect = self._suspect, None
        if suspect is not None and self.remove(suspect):
            self._backlog.failed(
                suspect, PublishRefusedError(suspect.name, suspect.message_id, code, text)
            )
            self._probing -= 1
            return
        self._probing = sum(1 for each in self._waiting if each.maybe_duplicate)
        if not self._probing:
            await asyncio.sleep(_RETRY_PAUSE)  # none of ours is to blame: do not spin

    # ------------------------------------------------------------------ from the channel

    def _on_confirm(self, first: int, last: int, acked: bool) -> None:
        backlog = self._backlog
        now = asyncio.get_running_loop().time()
        for publication in self._ledger.settle(first, last):
            if publication.state is ENDED:
                continue  # it was returned before, or its time had run out
            if acked:
                backlog.succeeded(publication, now)
                self._restored = False
            elif publication.nacks_left:
                publication.nacks_left -= 1
                publication.state = WAITING
                self._waiting.append(publication)
            else:
                message = publication.outgoing
                backlog.failed(
                    publication,
                    PublishNackedError(
                        publication.name,
                        publication.message_id,
                        message.exchange,
                        message.routing_key,
                    ),
                )
            if self._probing:
                self._probing -= 1
        self._changed.set()

    def _on_return(self, message: Returned) -> None:
        """The broker answers in order, so it is the oldest of that id that is not ended."""
        for publication in self._ledger:
            if (
                publication.message_id == message.properties.message_id
                and publication.state is not ENDED
                and publication.outgoing.routing_key == message.routing_key
            ):
                self._backlog.returned(publication, message)
                return
        log.warning("%s: a message came back that was not sent from here", self._name)

    def _on_close(self, error: BrokerClientError) -> None:
        self._close_reason = error
        self._changed.set()
