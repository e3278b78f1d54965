"""The publishes of one vhost: accepted, sent in batches, confirmed, in order.

Every publication name has a *lane*, and a lane sends on one channel at a time: that is how order
holds per publication while other publications go on beside it. A lane leases a channel when it
has something to send and keeps it as long as it is busy. Unconfirmed publishes sit in the lane's
ledger under their sequence number; when the channel dies they go back to the front of the lane,
in order, with the same message id.

Invariants: a publication is in exactly one place (waiting, ledger, ended); it ends once; and each
has a deadline, so that all of them end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from broker_client.config import PublishQueueConfig
from broker_client.deadlines import Deadlines
from broker_client.errors import (
    BrokerClientError,
    ChannelClosedError,
    InvalidMessageError,
    MessageReturnedError,
    OperationTimeoutError,
    PoolClosedError,
    PublishAbortedError,
    PublishError,
    PublishNackedError,
    PublishQueueFullError,
    PublishRefusedError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.message import Returned
from broker_client.pool import ChannelPool
from broker_client.publication import ENDED, SENT, WAITING, Publication
from broker_client.stats import PublishQueueStats
from broker_client.tasks import TaskGroup
from broker_client.transport.base import Channel

log = logging.getLogger("broker_client.publish_queue")

_RETRY_PAUSE = 0.05  # seconds before a lane whose channel failed, with the link up, goes on
_NOT_FOUND = 404


class PublishQueueOwner(Protocol):
    """The vhost."""

    @property
    def link_state(self) -> str:
        """In words, for errors: up, down since when, and why."""
        ...

    async def restore_topology(self) -> None:
        """Declare everything again: something that a publication needs is missing."""
        ...


class PublishQueue:
    """Where a vhost's publishes wait, are sent from, and get their outcome.

    Args:
        name: the vhost's, for errors.
        config: limits and batch sizes.
        regular: channels without confirms.
        confirm: channels with confirms.
    """

    def __init__(
        self,
        name: str,
        config: PublishQueueConfig,
        owner: PublishQueueOwner,
        *,
        regular: ChannelPool,
        confirm: ChannelPool,
        tasks: TaskGroup,
    ) -> None:
        self._name = name
        self.config = config
        self.owner = owner
        self._pools = {False: regular, True: confirm}
        self.tasks = tasks
        self._lanes: dict[tuple[str, bool], Lane] = {}
        self._space: deque[_Place] = deque()  # callers that wait for room, first come first
        self._resumed = asyncio.Event()
        self._closed = False
        self._deadlines: Deadlines[Publication] = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._held = 0
        self._held_bytes = 0
        self._published = self._succeeded = self._returned = self._failed = 0
        self.resent = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "paused" if self.is_paused else "running"
        return f"<PublishQueue {self._name}: {state}, {self._held} held>"

    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    def stats(self) -> PublishQueueStats:
        """A snapshot."""
        unconfirmed = sum(
            publication.state is SENT
            for lane in self._lanes.values()
            for publication in lane.ledger.values()
        )
        return PublishQueueStats(
            self._held - unconfirmed,
            unconfirmed,
            self._held_bytes,
            self.is_paused,
            self._published,
            self._succeeded,
            self._returned,
            self._failed,
            self.resent,
        )

    # ------------------------------------------------------------------ taking in

    async def put(self, publication: Publication, *, confirm: bool) -> None:
        """Accept `publication`; with policy `wait`, once there is room for it.

        Raises:
            PublishQueueFullError: the queue is full and its policy is `reject`.
            PublishTimeoutError: no room within the publication's own time-out.
            PublishAbortedError: the queue was closed.
        """
        if self._closed:
            raise self._closed_error(publication)
        if self._space or self._is_full(publication):
            await self._make_room(publication)
        self._accept(publication, confirm)
        self._offer_room()

    def _accept(self, publication: Publication, confirm: bool) -> None:
        self._published += 1
        self._held += 1
        self._held_bytes += publication.size
        self._idle.clear()
        if publication.deadline != float("inf"):
            self._deadlines.set(publication, publication.deadline)
            if self._timer is None or publication.deadline < self._timer.when():
                self._plan_timer(publication.deadline)
        key = (publication.name, confirm)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self, publication.name, self._pools[confirm], confirm)
        lane.append(publication)  # its listeners, to come, are told when it is paused

    def _is_full(self, publication: Publication) -> bool:
        config = self.config
        return self._held >= config.max_queued or (
            self._held_bytes + publication.size > config.max_queued_bytes and self._held > 0
        )

    async def _make_room(self, publication: Publication) -> None:
        config = self.config
        if config.policy == "reject":
            limit = f"max_queued {config.max_queued}, max_queued_bytes {config.max_queued_bytes}"
            raise PublishQueueFullError(publication.name, publication.message_id, self._held, limit)
        if config.policy == "drop_oldest":
            while self._is_full(publication) and self._drop_oldest():
                pass
            return
        place = _Place()
        self._space.append(place)
        deadline = publication.deadline
        limited = asyncio.timeout_at(deadline if deadline != float("inf") else None)
        try:
            async with limited:
                while not self._closed and (
                    self._space[0] is not place or self._is_full(publication)
                ):
                    await place.wait()
        except BaseException as error:
            self._space.remove(place)
            self._offer_room()  # it may have been ours
            if isinstance(error, TimeoutError) and limited.expired():
                raise self._timed_out(publication) from None
            raise
        self._space.remove(place)
        if self._closed:
            raise self._closed_error(publication)

    def _drop_oldest(self) -> bool:
        firsts = (lane.first_unsent() for lane in self._lanes.values())
        oldest = min(
            (publication for publication in firsts if publication is not None),
            key=lambda publication: publication.started,
            default=None,
        )
        if oldest is None:
            return False
        error = PublishAbortedError(oldest.name, oldest.message_id, "dropped: the queue was full")
        return self.withdraw(oldest, error)

    def _offer_room(self) -> None:
        if self._space:
            self._space[0].wake()

    # ------------------------------------------------------------------ ends

    def succeeded(self, publication: Publication, now: float) -> None:
        """It is with the broker."""
        self._succeeded += 1
        publication.succeed(now)
        self._released(publication)

    def failed(self, publication: Publication, error: PublishError) -> None:
        """It ended without success."""
        self._failed += 1
        publication.fail(error)
        self._released(publication)

    def returned(self, publication: Publication, message: Returned) -> None:
        """The broker handed it back."""
        self._returned += 1
        error = MessageReturnedError(
            publication.name,
            publication.message_id,
            message.reply_code,
            message.reply_text,
            message.exchange,
            message.routing_key,
        )
        publication.give_back(error, message)
        self._released(publication)

    def withdraw(self, publication: Publication, error: PublishError) -> bool:
        """End a publication that has not been sent; False when it is too late for that.

        One that was sent on a link that was lost since is too late: the broker may have it.
        """
        if publication.state is not WAITING or publication.maybe_duplicate:
            return False
        for lane in self._lanes_of(publication):
            if lane.remove(publication):
                self.failed(publication, error)
                return True
        return False

    def _lanes_of(self, publication: Publication) -> list[Lane]:
        keys = (publication.name, True), (publication.name, False)
        return [self._lanes[key] for key in keys if key in self._lanes]

    def _released(self, publication: Publication) -> None:
        self._deadlines.discard(publication)
        self._held -= 1
        self._held_bytes -= publication.size
        if not self._held:
            self._idle.set()
        self._offer_room()

    # ------------------------------------------------------------------ deadlines

    def _plan_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for publication in self._deadlines.pop_due(now):
            if not self.withdraw(publication, self._timed_out(publication)):
                self._unconfirmed(publication)
        following = self._deadlines.next_at()
        if following is not None:
            self._plan_timer(following)

    def _timed_out(self, publication: Publication) -> PublishTimeoutError:
        waited = publication.deadline - publication.started
        return PublishTimeoutError(
            publication.name, publication.message_id, waited, self.owner.link_state
        )

    def _unconfirmed(self, publication: Publication) -> None:
        """It was sent at least once, and nobody can say what became of it."""
        waited = publication.deadline - publication.started
        error = PublishUnconfirmedError(
            publication.name, publication.message_id, waited, self.owner.link_state
        )
        sent = publication.state is SENT
        for lane in self._lanes_of(publication):
            if sent:
                lane.distrust(publication)
            else:
                lane.remove(publication)
        self.failed(publication, error)

    # ------------------------------------------------------------------ the link

    def pause(self) -> None:
        """The link is down: keep everything, tell those who wait."""
        if self.is_paused:
            return
        self._resumed.clear()
        for lane in list(self._lanes.values()):
            lane.pause()

    def resume(self) -> None:
        """The link is up and the topology is there: go on, in order."""
        self._resumed.set()
        for lane in self._lanes.values():
            lane.wake()

    async def wait_resumed(self) -> None:
        """Return as soon as the queue is not paused."""
        await self._resumed.wait()

    # ------------------------------------------------------------------ the end

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was accepted has ended; False when `timeout` seconds passed first."""
        if self._held:
            try:
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """Refuse new publishes and end every one that is left. Harmless twice."""
        self._closed = True
        for place in self._space:
            place.wake()
        for lane in list(self._lanes.values()):
            await lane.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_at_close(self, publication: Publication) -> None:
        """End one that is left when the queue closes."""
        if publication.state is SENT or publication.maybe_duplicate:
            now = asyncio.get_running_loop().time()
            waited = now - publication.started
            error: PublishError = PublishUnconfirmedError(
                publication.name, publication.message_id, waited, "closed"
            )
        else:
            error = self._closed_error(publication)
        self.failed(publication, error)

    def _closed_error(self, publication: Publication) -> PublishAbortedError:
        return PublishAbortedError(
            publication.name, publication.message_id, "the broker was shut down"
        )


class _Place:
    """A caller's place in the line for room."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Lane:
    """The publishes of one publication, in order."""

    def __init__(self, queue: PublishQueue, name: str, pool: ChannelPool, confirm: bool) -> None:
        self._queue = queue
        self._name = name
        self._pool = pool
        self._confirm = confirm
        self.waiting: deque[Publication] = deque()
        self.ledger: dict[int, Publication] = {}  # by sequence number, in order
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._probing = 0  # send so many one by one: one of them made the broker close a channel
        self._restored = False  # the topology was declared again for the sake of these
        self._suspect: Publication | None = None  # sent alone when the last channel failed
        self._distrusted = False  # a confirm is overdue on the present channel
        self._close_reason: BrokerClientError | None = None

    def __repr__(self) -> str:
        return f"<Lane {self._name}: {len(self.waiting)} waiting, {len(self.ledger)} unconfirmed>"

    def append(self, publication: Publication) -> None:
        self.waiting.append(publication)
        if self._task is None:
            self._task = self._queue.tasks.spawn(self._run(), f"publish {self._name}")
        else:
            self._changed.set()

    def remove(self, publication: Publication) -> bool:
        """Take one that waits out; False when it is not here."""
        try:
            self.waiting.remove(publication)
        except ValueError:
            return False
        return True

    def first_unsent(self) -> Publication | None:
        """The oldest that was never sent."""
        return next((each for each in self.waiting if not each.maybe_duplicate), None)

    def pause(self) -> None:
        for publication in tuple(self.waiting):
            publication.pause()

    def wake(self) -> None:
        """Look again: something has changed."""
        self._changed.set()

    def distrust(self, publication: Publication) -> None:
        """A confirm is overdue: if it was to come on our channel, use that no more."""
        if publication in self.ledger.values():
            self._distrusted = True
            self._changed.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        for publication in (*self.ledger.values(), *self.waiting):
            if publication.state is not ENDED:
                self._queue.end_at_close(publication)
        self.ledger.clear()
        self.waiting.clear()

    # ------------------------------------------------------------------ sending

    async def _run(self) -> None:
        try:
            while self.waiting:
                await self._queue.wait_resumed()
                if not self.waiting:
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
        config = self._queue.config
        try:
            while True:
                if not channel.is_usable:
                    raise self._close_reason or ChannelClosedError(0, "lost")
                if self._distrusted:
                    raise OperationTimeoutError("publisher confirm", 0.0)
                window = 1 if self._probing else config.max_in_flight
                room = min(window - len(self.ledger), config.batch)
                # Others want a channel: send no more, give this one back once it is confirmed.
                fair = sent < config.max_in_flight or not self._pool.is_wanted
                # A broker that blocks publishers leaves the link up, and us in the middle.
                may_send = fair and not self._queue.is_paused
                if self.waiting and room > 0 and may_send:
                    sent += await self._send_batch(channel, room)
                elif not self.ledger:
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

    async def _send_batch(self, channel: Channel, room: int) -> int:
        waiting, ledger = self.waiting, self.ledger
        batch = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        # On a channel without confirms the numbers only serve to find them again.
        seq = channel.next_publish_seq or 1
        for publication in batch:
            publication.state = SENT
            ledger[seq] = publication
            seq += 1
        await channel.publish([publication.outgoing for publication in batch])
        if not self._confirm:
            now = asyncio.get_running_loop().time()
            for publication in batch:
                if publication.state is not ENDED:
                    self._queue.succeeded(publication, now)
            ledger.clear()
        return len(batch)

    def _take_back(self) -> None:
        """The channel is gone: what it has not confirmed is sent again, before what waits."""
        again = [publication for publication in self.ledger.values() if not publication.is_ended]
        self.ledger.clear()
        for publication in reversed(again):
            publication.state = WAITING
            publication.maybe_duplicate = True
            self.waiting.appendleft(publication)
        self._suspect = again[0] if self._probing and len(again) == 1 else None
        self._queue.resent += len(again)
        if self._queue.is_paused:
            for publication in again:
                publication.pause()

    async def _after_failure(self, error: BrokerClientError) -> None:
        """Decide what the failure of a channel means for what was on it."""
        if isinstance(error, InvalidMessageError):
            code, text = 0, str(error)  # nothing of the batch was written
        elif isinstance(error, ChannelClosedError) and error.reply_code:
            code, text = error.reply_code, error.reply_text
        else:
            if not self._queue.is_paused:
                await asyncio.sleep(_RETRY_PAUSE)  # the link's loss is noticed in a moment
            return
        # The broker closed the channel over one of our messages, and did not say which.
        if code == _NOT_FOUND and not self._restored:
            self._restored = True
            try:
                await self._queue.owner.restore_topology()
            except BrokerClientError as failure:
                log.warning("%s: restoring the topology: %s", self._name, failure)
            return
        suspect, self._suspect = self._suspect, None
        if suspect is not None and self.remove(suspect):
            self._queue.failed(
                suspect, PublishRefusedError(suspect.name, suspect.message_id, code, text)
            )
            self._probing -= 1
            return
        self._probing = sum(1 for each in self.waiting if each.maybe_duplicate)
        if not self._probing:
            await asyncio.sleep(_RETRY_PAUSE)  # none of ours is to blame: do not spin

    # ------------------------------------------------------------------ from the channel

    def _on_confirm(self, first: int, last: int, acked: bool) -> None:
        ledger, queue = self.ledger, self._queue
        now = asyncio.get_running_loop().time()
        for seq in range(first, last + 1):
            publication = ledger.pop(seq, None)
            if publication is None or publication.state is ENDED:
                continue  # it was returned before, or its time had run out
            if acked:
                queue.succeeded(publication, now)
                self._restored = False
            elif publication.nacks_left:
                publication.nacks_left -= 1
                publication.state = WAITING
                self.waiting.append(publication)
            else:
                message = publication.outgoing
                queue.failed(
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
        for publication in self.ledger.values():
            if (
                publication.message_id == message.properties.message_id
                and publication.state is not ENDED
                and publication.outgoing.routing_key == message.routing_key
            ):
                self._queue.returned(publication, message)
                return
        log.warning("%s: a message came back that was not sent from here", self._name)

    def _on_close(self, error: BrokerClientError) -> None:
        self._close_reason = error
        self._changed.set()
