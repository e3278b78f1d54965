"""The publishes of one vhost: accepted, sent in batches, confirmed, in order.

Each publication name has a sender, and a sender uses one channel at a time: that is how order
holds within a publication while other publications go on beside it.

Invariants: a publish is in exactly one place (waiting, unconfirmed, ended); it ends once; and each
has a deadline, so that all of them end.
"""

from __future__ import annotations

import asyncio

from broker_client.config import PublishQueueConfig
from broker_client.errors import (
    PublishAbortedError,
    PublishError,
    PublishQueueFullError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.events.stats import PublishQueueStats
from broker_client.pool import ChannelPool
from broker_client.publication import SENT, WAITING, Publication
from broker_client.publishing.backlog import Backlog
from broker_client.publishing.failures import PublishQueueOwner
from broker_client.publishing.publish_log import PublishLog
from broker_client.publishing.sender import Sender, nacked
from broker_client.publishing.suspicion import Suspicion
from broker_client.runtime.deadlines import NEVER
from broker_client.runtime.tasks import TaskGroup

_MANY_SENDERS = 100
"""From so many on, idle ones are forgotten when another is needed: a program that answers requests
has a name for each queue that it replies to."""


class PublishQueue:
    """The publish queue of a vhost: publishes wait here, are sent, and get their outcome.

    Args:
        name: name of the vhost, for errors.
        config: limits and batch sizes.
        owner: the vhost.
        regular: channels without confirms.
        confirm: channels with confirms.
        tasks: owner of the tasks that send.
        publish_log: records every publish and its end.
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
        publish_log: PublishLog | None = None,
    ) -> None:
        self._name = name
        self._config = config
        self._owner = owner
        self._pools = {False: regular, True: confirm}
        self._tasks = tasks
        self._backlog = Backlog(config, publish_log)
        self._senders: dict[tuple[str, bool], Sender] = {}
        self._many = _MANY_SENDERS
        self._resent = 0  # by senders that were forgotten
        self._running = asyncio.Event()
        self.is_paused: bool = True
        """True while the link is down; `_running` for those who only look."""
        self._suspicion = Suspicion()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER  # loop time

    def __repr__(self) -> str:
        state = "closed" if self._backlog.is_closed else "paused" if self.is_paused else "running"
        return f"<PublishQueue {self._name}: {state}, {len(self._backlog)} held>"

    def stats(self) -> PublishQueueStats:
        senders = self._senders.values()
        return self._backlog.stats(
            unconfirmed=sum(sender.unconfirmed for sender in senders),
            paused=self.is_paused,
            resent=self._resent + sum(sender.resent for sender in senders),
        )

    # ------------------------------------------------------------------ taking in

    async def put(self, publication: Publication, *, confirm: bool) -> None:
        """Accept `publication`; with policy `wait`, wait for room.

        Raises:
            PublishQueueFullError: the queue is full and its policy is `reject`.
            PublishTimeoutError: no room within the publication's own time-out.
            PublishAbortedError: the queue was closed.
        """
        if not self.put_now(publication, confirm):
            await self._make_room(publication)
            self._backlog.accept(publication, confirm, was_waited_for=True)
            self._send(publication, confirm)
            self._backlog.offer_room()

    def put_now(self, publication: Publication, confirm: bool) -> bool:
        """Accept `publication` if there is room for it; else `put` it.

        Raises:
            PublishAbortedError: the queue was closed.
        """
        if self._backlog.is_closed:
            raise _closed(publication)
        if not self._backlog.accept(publication, confirm):
            return False
        self._send(publication, confirm)
        return True

    def _send(self, publication: Publication, confirm: bool) -> None:
        if publication.deadline < self._timer_at:
            self._plan_timer(publication.deadline)
        key = (publication.origin.name, confirm)
        sender = self._senders.get(key)
        if sender is None:
            if len(self._senders) >= self._many:
                self._forget_idle_senders()
            sender = self._senders[key] = Sender(
                publication.name,
                self._pools[confirm],
                confirm,
                config=self._config,
                backlog=self._backlog,
                running=self._running,
                suspicion=self._suspicion,
                owner=self._owner,
                tasks=self._tasks,
            )
        sender.append(publication)
        if self.is_paused:
            publication.pause()

    def _forget_idle_senders(self) -> None:
        """Look again once as many more are there, so that the cost of a publish stays flat."""
        for key, sender in list(self._senders.items()):
            if sender.is_idle:
                self._resent += sender.resent
                del self._senders[key]
        self._many = len(self._senders) + _MANY_SENDERS

    async def _make_room(self, publication: Publication) -> None:
        config, backlog = self._config, self._backlog
        if config.policy == "reject":
            limit = f"max_queued {config.max_queued}, max_queued_bytes {config.max_queued_bytes}"
            raise PublishQueueFullError(
                publication.name, publication.message_id, len(backlog), limit
            )
        if config.policy == "drop_oldest":
            while backlog.is_full_for(publication) and self._drop_oldest():
                pass
            return
        try:
            await backlog.wait_for_room(publication)
        except TimeoutError:
            raise self._timed_out(publication) from None
        if backlog.is_closed:
            raise _closed(publication)

    def _drop_oldest(self) -> bool:
        firsts = (sender.first_unsent() for sender in self._senders.values())
        oldest = min(
            (publication for publication in firsts if publication is not None),
            key=lambda publication: publication.started,
            default=None,
        )
        if oldest is None:
            return False
        error = PublishAbortedError(oldest.name, oldest.message_id, "dropped: the queue was full")
        return self.withdraw(oldest, error)

    def withdraw(self, publication: Publication, error: PublishError) -> bool:
        """End a publication that was not sent yet; False if it was.

        One that was sent on a link that was lost since is too late: the broker may have it.
        """
        if publication.state is not WAITING or publication.maybe_duplicate:
            return False
        if not any(sender.remove(publication) for sender in self._senders_of(publication)):
            return False
        self._backlog.failed(publication, error)
        return True

    def _senders_of(self, publication: Publication) -> list[Sender]:
        keys = (publication.name, True), (publication.name, False)
        return [self._senders[key] for key in keys if key in self._senders]

    # ------------------------------------------------------------------ deadlines

    def _plan_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._expire)
        self._timer_at = at

    def _expire(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now = asyncio.get_running_loop().time()
        deadlines = self._backlog.deadlines
        for publication in deadlines.take_due(now):
            if not self.withdraw(publication, self._timed_out(publication)):
                self._unconfirmed(publication)
        following = deadlines.next_at()
        if following is not None:
            self._plan_timer(following)

    def _timed_out(self, publication: Publication) -> PublishError:
        if publication.nacks:
            return nacked(publication)
        waited = publication.deadline - publication.started
        return PublishTimeoutError(
            publication.name, publication.message_id, waited, self._owner.link_state
        )

    def _unconfirmed(self, publication: Publication) -> None:
        """It was sent at least once, and its outcome is unknown."""
        waited = publication.deadline - publication.started
        error = PublishUnconfirmedError(
            publication.name, publication.message_id, waited, self._owner.link_state
        )
        sent = publication.state is SENT
        for sender in self._senders_of(publication):
            if sent:
                sender.overdue(publication)
            else:
                sender.remove(publication)
        self._backlog.failed(publication, error)

    # ------------------------------------------------------------------ the link

    def pause(self) -> None:
        """The link is down: keep everything, emit `paused`."""
        if self.is_paused:
            return
        self._running.clear()
        self.is_paused = True
        for sender in list(self._senders.values()):
            sender.pause()

    def resume(self) -> None:
        """The link is up and the topology declared: resume, in order."""
        self._running.set()
        self.is_paused = False
        for sender in self._senders.values():
            sender.wake()

    # ------------------------------------------------------------------ the end

    async def drain(self, timeout: float) -> bool:
        """Wait until every accepted publish has ended; False after `timeout` seconds."""
        if self._backlog:
            try:
                async with asyncio.timeout(timeout):
                    await self._backlog.wait_empty()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """Refuse new publishes and end the remaining ones. May be called more than once."""
        self._backlog.close()
        for sender in list(self._senders.values()):
            for publication in await sender.close():
                self._backlog.failed(publication, _left_at_close(publication))
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, NEVER


def _left_at_close(publication: Publication) -> PublishError:
    if publication.state is SENT or publication.maybe_duplicate:
        waited = asyncio.get_running_loop().time() - publication.started
        return PublishUnconfirmedError(publication.name, publication.message_id, waited, "closed")
    return _closed(publication)


def _closed(publication: Publication) -> PublishAbortedError:
    return PublishAbortedError(publication.name, publication.message_id, "the broker was shut down")
