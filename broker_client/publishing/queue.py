"""The publishes of one vhost: accepted, sent in batches, confirmed, in order.

Every publication name has a lane (`lane`), and a lane sends on one channel at a time: that is how
order holds per publication while other publications go on beside it.

Invariants: a publication is in exactly one place (waiting, ledger, ended); it ends once; and each
has a deadline, so that all of them end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from broker_client.config import PublishQueueConfig
from broker_client.errors import (
    MessageReturnedError,
    PublishAbortedError,
    PublishError,
    PublishQueueFullError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.events.stats import PublishQueueStats
from broker_client.message import Returned
from broker_client.pool import ChannelPool
from broker_client.publication import SENT, WAITING, Publication
from broker_client.publishing.sender import Lane, PublishQueueOwner
from broker_client.runtime.deadlines import Deadlines
from broker_client.runtime.tasks import TaskGroup

log = logging.getLogger("broker_client.publish_queue")


class PublishObserver(Protocol):
    """Told of every publish of a queue: as it is accepted, and of its one end."""

    def accepted(self, publication: Publication, confirm: bool) -> None: ...
    def succeeded(self, publication: Publication) -> None: ...
    def failed(self, publication: Publication, error: PublishError) -> None: ...
    def returned(self, publication: Publication) -> None: ...


class PublishQueue:
    """Where a vhost's publishes wait, are sent from, and get their outcome.

    Args:
        name: the vhost's, for errors.
        config: limits and batch sizes.
        regular: channels without confirms.
        confirm: channels with confirms.
        tasks: owner of the tasks that send.
        observer: told of every publish.
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
        observer: PublishObserver | None = None,
    ) -> None:
        self._name = name
        self._observer = observer
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
        if not self.put_now(publication, confirm=confirm):
            await self._make_room(publication)
            self._accept(publication, confirm)
            self._offer_room()

    def put_now(self, publication: Publication, *, confirm: bool) -> bool:
        """Accept `publication` if there is room for it; else `put` it.

        Raises:
            PublishAbortedError: the queue was closed.
        """
        if self._closed:
            raise self._closed_error(publication)
        if self._space or self._is_full(publication):
            return False
        self._accept(publication, confirm)
        return True

    def _accept(self, publication: Publication, confirm: bool) -> None:
        if self._observer is not None:
            self._observer.accepted(publication, confirm)
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
        if self._observer is not None:
            self._observer.succeeded(publication)
        self._succeeded += 1
        publication.succeed(now)
        self._released(publication)

    def failed(self, publication: Publication, error: PublishError) -> None:
        """It ended without success."""
        if self._observer is not None:
            self._observer.failed(publication, error)
        self._failed += 1
        publication.fail(error)
        self._released(publication)

    def returned(self, publication: Publication, message: Returned) -> None:
        """The broker handed it back."""
        if self._observer is not None:
            self._observer.returned(publication)
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
