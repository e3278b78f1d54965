"""Moves, replays and removes messages of a queue.

A copy is published and confirmed before its original is acked, so nothing is lost however a move
ends. Up to `WINDOW` copies are under way at a time. A move that is cancelled waits for these, so
each message is in one place then. Where the process, the link or the broker dies, the messages
under way may be in both queues.

The next move notices those, where it can: the broker marks what it delivers again as redelivered.
When a message that is to be copied is redelivered and has a message id, the target is looked
through once, and where the copy is ready there, the original is only acked. A copy is recognized by
its message id, its body, and that it was published straight to the target. What nobody can tell:
a copy that a consumer has taken meanwhile, and messages without an id.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime

from broker_client.amqp.x_death import Death
from broker_client.errors import ChannelClosedError, UsageError
from broker_client.message import (
    Delivery,
    Outgoing,
)
from broker_client.moving.confirms import ConfirmedPublisher
from broker_client.moving.copies import Fate, copy_for, copy_for_replay, last_death
from broker_client.moving.selection import EVERYTHING, Selection
from broker_client.moving.source import QueueSource
from broker_client.runtime.pace import paced
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Link

BATCH = 200
WINDOW = 1_000
"""Copies that are published and not confirmed, at most: so many may be doubled by a crash."""
LOOK_LIMIT = 10_000
"""A target with more ready messages is not looked through for earlier copies."""
_TURNS = 10  # batches a second where the rate is limited
_NOT_FOUND = 404

Decide = Callable[[Delivery, Death], Outgoing | Fate]
"""The copy of a delivery that is to be published, or what else becomes of it; its last death is
read once for all."""


@slotted(frozen=False)
class MoveProgress:
    """How far a move has come."""

    seen: int = 0
    """Messages that were looked at."""
    selected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages by the queue that gets them, "" for none, and the reason of their last death, ""
    where they never died."""
    moved: int = 0
    """Copied and acked, or removed."""
    already_moved: int = 0
    """Acked without a copy, since an earlier move has left it in the target."""
    refused: Counter[str] = field(default_factory=Counter)
    """Why copies were not taken; their originals are where they were."""
    unconfirmed: int = 0
    """Copies whose confirm is not there yet. After a failure they may be in both queues."""
    blocked: str = ""
    """Why the broker blocks publishing at present."""
    not_looked_through: set[str] = field(default_factory=set)
    """Targets that may have copies of an earlier move, and too many messages to look for them."""

    @property
    def kept(self) -> int:
        """Messages that were left as they were."""
        return self.seen - self.moved - self.already_moved - self.refused.total() - self.unconfirmed


Progress = Callable[[MoveProgress], None]


def _ignore(moved: MoveProgress) -> None: ...


@slotted
class MoveOptions:
    """Which messages are moved, and how fast."""

    selection: Selection = EVERYTHING
    """Which of them; all by default."""
    limit: int | None = None
    """So many at most."""
    rate: float | None = None
    """Maximum number of messages per second."""
    check_target: bool = True
    """Look for copies of an earlier move that was cut off."""
    progress: Progress = _ignore
    """Called after every batch, and at the end, also after a failure."""


async def move(
    link: Link, queue: str, to: str, options: MoveOptions | None = None, *, dry_run: bool = False
) -> MoveProgress:
    """Move messages that are ready in `queue` now to the queue `to`, in order.

    Args:
        link: to the broker; must not be used by others meanwhile.
        queue: where from.
        to: where to.
        options: which messages, and how fast.
        dry_run: only count what would be moved.

    Raises:
        UsageError: the queues are the same.
        TransportError: one of the queues does not exist, the first may not be read, or the link
            was lost.
        OperationTimeoutError: the broker did not confirm in time.
    """
    if to == queue:
        raise UsageError("a queue cannot be moved to itself")
    await check_is_there(link, to)

    def decide(delivery: Delivery, death: Death) -> Outgoing | Fate:
        return copy_for(to, delivery, delivery.properties.headers)

    return await move_each(link, queue, decide, options, dry_run=dry_run, keeps=False)


async def replay(
    link: Link, queue: str, options: MoveOptions | None = None, *, dry_run: bool = True
) -> MoveProgress:
    """Put dead letters back into the queues where they died last; see `move`.

    Their copies have the same message id, and none of the headers about the death. What is no dead
    letter is left as it is.
    """

    def decide(delivery: Delivery, death: Death) -> Outgoing | Fate:
        return copy_for_replay(delivery, death)

    return await move_each(link, queue, decide, options, dry_run=dry_run)


async def remove(
    link: Link, queue: str, options: MoveOptions | None = None, *, dry_run: bool = True
) -> MoveProgress:
    """Remove messages of `queue`; see `move`."""

    def decide(delivery: Delivery, death: Death) -> Outgoing | Fate:
        return Fate.REMOVE

    return await move_each(link, queue, decide, options, dry_run=dry_run, keeps=False)


async def check_is_there(link: Link, queue: str) -> None:
    """Look for the target of a move before anything is taken from its source.

    Raises:
        ChannelClosedError: 404, there is no such queue.
    """
    channel = await link.open_channel()
    try:
        await channel.check_queue(queue)
    except ChannelClosedError as error:
        if error.reply_code == _NOT_FOUND:  # else it is another connection's, and takes copies
            raise
    else:
        await channel.close()


async def move_each(
    link: Link,
    queue: str,
    decide: Decide,
    options: MoveOptions | None = None,
    *,
    dry_run: bool = False,
    keeps: bool = True,
) -> MoveProgress:
    """Do with each message that is ready in `queue` now what `decide` says; see `move`.

    Args:
        link: to the broker; must not be used by others meanwhile.
        queue: where from.
        decide: what becomes of a message that is selected.
        options: which messages, and how fast.
        dry_run: only count what would be done.
        keeps: `decide` may keep some, so more than the limit may have to be looked at.
    """
    moving = _Moving(link, queue, decide, options or MoveOptions(), is_dry=dry_run, keeps=keeps)
    task = asyncio.create_task(moving.run(), name=f"move from {queue}")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        moving.stop()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the interrupt is what is raised
        raise
    return moving.moved


class _Moving:
    """One move from its start to its end."""

    def __init__(
        self,
        link: Link,
        queue: str,
        decide: Decide,
        options: MoveOptions,
        *,
        is_dry: bool,
        keeps: bool,
    ) -> None:
        self._link, self._queue, self._decide = link, queue, decide
        self._options, self._is_dry = options, is_dry
        self._selects = not options.selection.is_all
        self._looks_at_all = keeps or self._selects
        self.moved = MoveProgress()
        self._source: QueueSource
        self._publisher: ConfirmedPublisher[int]
        self._earlier: dict[str, Counter[_CopyKey]] = {}
        self._taken = 0  # of the limit
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped.set()

    async def run(self) -> None:
        """Move, until all is done or `stop` was called."""
        self._link.keep_header_types()
        self._source = QueueSource(await self._link.open_channel(), self._queue)
        self._publisher = await ConfirmedPublisher.open(self._link, self._settled)
        limit, rate = self._options.limit, self._options.rate
        try:
            await self._source.start(None if self._looks_at_all else limit)
            began, done = time.monotonic(), 0
            while self._source.left and not self._limit_reached and not self._stopped.is_set():
                done += await self._next_batch()
                self._tell()
                await asyncio.sleep(0)
                if rate is not None:
                    await self._pause(began + done / rate - time.monotonic())
            await self._publisher.wait()
        finally:
            # What is unconfirmed is unsettled, so it goes back: it may be in both places.
            await self._source.close()
            await self._publisher.close()
            self._tell()

    @property
    def _limit_reached(self) -> bool:
        return self._options.limit is not None and self._taken >= self._options.limit

    async def _next_batch(self) -> int:
        """Go on with the next messages; returns how many were copied or removed."""
        rate = self._options.rate
        most = BATCH if rate is None else min(BATCH, max(1, int(rate / _TURNS)))
        batch = await self._source.next_batch(most)
        if not batch:
            self.stop()
        copies: list[tuple[int, Outgoing]] = []
        removed, now = 0, datetime.now(UTC)
        self.moved.seen += len(batch)
        async for delivery in paced(batch):  # to decide may take long
            copy = self._fate(delivery, now)
            if type(copy) is Outgoing:
                if delivery.redelivered and await self._is_copied(delivery, copy):
                    self._source.ack(delivery.delivery_tag)
                    self.moved.already_moved += 1
                else:
                    copies.append((delivery.delivery_tag, copy))
            elif copy is Fate.KEEP:
                self._source.keep(delivery.delivery_tag)
            else:
                self._source.ack(delivery.delivery_tag)
                self.moved.moved += 1
                removed += 1
        if copies:
            await self._publisher.publish(copies)
            await self._publisher.wait(WINDOW - BATCH)
        return len(copies) + removed

    def _fate(self, delivery: Delivery, now: datetime) -> Outgoing | Fate:
        if self._taken == self._options.limit:
            return Fate.KEEP
        death = last_death(delivery.properties.headers)
        if self._selects and not self._options.selection.matches(delivery, death, now):
            return Fate.KEEP
        copy = self._decide(delivery, death)
        if copy is Fate.KEEP:
            return Fate.KEEP
        self._taken += 1
        target = copy.routing_key if type(copy) is Outgoing else ""
        self.moved.selected[target, str(death.get("reason", ""))] += 1
        return Fate.KEEP if self._is_dry else copy

    async def _is_copied(self, delivery: Delivery, copy: Outgoing) -> bool:
        """True where an earlier move has left the copy of `delivery` in its target."""
        target = copy.routing_key
        if not delivery.properties.message_id:
            return False
        if copy.exchange or not self._options.check_target or target == self._queue:
            return False
        if target not in self._earlier:
            self._earlier[target] = await self._copies_in(target)
        copies, key = self._earlier[target], _copy_key(copy)
        if not copies[key]:
            return False
        copies[key] -= 1
        return True

    async def _copies_in(self, target: str) -> Counter[_CopyKey]:
        """What was published straight to the queue `target` and is ready there."""
        copies: Counter[_CopyKey] = Counter()
        source = QueueSource(await self._link.open_channel(), target)
        try:
            await source.start()
            if source.left > LOOK_LIMIT:
                self.moved.not_looked_through.add(target)
                return copies
            while batch := await source.next_batch(BATCH):
                async for each in paced(batch):
                    source.keep(each.delivery_tag)
                    if not each.exchange and each.routing_key == target:
                        copies[_copy_key(each)] += 1
        except ChannelClosedError:
            return copies  # there is no such queue, or it may not be read
        finally:
            await source.close()
        return copies

    def _settled(self, delivery_tag: int, why: str) -> None:
        if why:
            self._source.keep(delivery_tag)
            self.moved.refused[why] += 1
        else:
            self._source.ack(delivery_tag)
            self.moved.moved += 1

    def _tell(self) -> None:
        self.moved.unconfirmed = self._publisher.unconfirmed
        self.moved.blocked = self._publisher.blocked
        self._options.progress(self.moved)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
            except TimeoutError:
                pass


_CopyKey = tuple[str | None, int, int]


def _copy_key(message: Delivery | Outgoing) -> _CopyKey:
    return message.properties.message_id, len(message.body), hash(message.body)
