"""The accepted, unfinished publishes of one vhost: bounded and counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from broker_client.config import PublishQueueConfig
from broker_client.errors import MessageReturnedError, PublishError
from broker_client.events.stats import PublishQueueStats
from broker_client.message import Returned
from broker_client.publication import ENDED, Publication
from broker_client.publishing.deadlines import PublishDeadlines
from broker_client.publishing.publish_log import PublishLog
from broker_client.runtime.deadlines import NEVER


class Backlog:
    """Counts publishes in and out, and lets callers wait for room.

    The publish queue enters them; the queue and its senders end them. Neither needs to know of
    the other for that.

    Args:
        config: how many publishes and bytes there is room for.
        publish_log: records each publish and its end.
    """

    def __init__(self, config: PublishQueueConfig, publish_log: PublishLog | None) -> None:
        self._most, self._most_bytes = config.max_queued, config.max_queued_bytes
        self._log = publish_log
        self._count = self._size_bytes = 0
        self._published = self._succeeded = self._returned = self._failed = 0
        self._waiting_for_room: deque[asyncio.Event] = deque()  # first come, first served
        self._empty = asyncio.Event()
        self._empty.set()
        self.deadlines: PublishDeadlines = PublishDeadlines()
        self.is_closed: bool = False

    def __len__(self) -> int:
        return self._count

    def stats(self, *, unconfirmed: int, paused: bool, resent: int) -> PublishQueueStats:
        """Return a snapshot, including the senders' counts."""
        return PublishQueueStats(
            self._count - unconfirmed,
            unconfirmed,
            self._size_bytes,
            paused,
            self._published,
            self._succeeded,
            self._returned,
            self._failed,
            resent,
        )

    # ------------------------------------------------------------------ room

    def is_full_for(self, publication: Publication) -> bool:
        """True when there is no room for `publication`. One that is too large alone has room."""
        return self._count >= self._most or (
            self._size_bytes + publication.size > self._most_bytes and self._count > 0
        )

    async def wait_for_room(self, publication: Publication) -> None:
        """Wait until there is room, or the backlog is closed.

        Call `offer_room` once the room is taken, since it may be enough for the next in line.

        Raises:
            TimeoutError: the deadline of `publication` came first.
        """
        changed, line = asyncio.Event(), self._waiting_for_room
        line.append(changed)
        deadline = publication.deadline
        try:
            async with asyncio.timeout_at(deadline if deadline != NEVER else None):
                while not self.is_closed and (
                    line[0] is not changed or self.is_full_for(publication)
                ):
                    changed.clear()
                    await changed.wait()
        except BaseException:
            line.remove(changed)
            self.offer_room()  # the turn may have been ours
            raise
        line.remove(changed)

    def offer_room(self) -> None:
        """Wake the first waiting caller to check for room."""
        if self._waiting_for_room:
            self._waiting_for_room[0].set()

    def close(self) -> None:
        """Wake every waiting caller."""
        self.is_closed = True
        for changed in self._waiting_for_room:
            changed.set()

    async def wait_empty(self) -> None:
        """Return when every publish has ended."""
        await self._empty.wait()

    # ------------------------------------------------------------------ in and out

    def accept(
        self, publication: Publication, confirm: bool, *, was_waited_for: bool = False
    ) -> bool:
        """Enter `publication`; False where there is no room, or an earlier caller waits for it.

        Args:
            publication: to be entered.
            confirm: it goes to a channel with confirms.
            was_waited_for: its room.
        """
        count, size_bytes = self._count, self._size_bytes + len(publication.outgoing.body)
        if not was_waited_for and (  # as `is_full_for`, for every publish
            count >= self._most
            or (size_bytes > self._most_bytes and count)
            or self._waiting_for_room
        ):
            return False
        if self._log is not None:
            self._log.accepted(publication, confirm)
        self._published += 1
        if not count:
            self._empty.clear()
        self._count, self._size_bytes = count + 1, size_bytes
        if publication.deadline != NEVER:
            self.deadlines.put(publication)
        return True

    def succeeded(self, publications: Sequence[Publication], now: float) -> None:
        """End those of `publications` as confirmed that have not ended: one may have been returned,
        or its time had run out."""
        publications = [each for each in publications if each.state is not ENDED]
        size = sum([len(each.outgoing.body) for each in publications])
        if self._log is not None:
            for publication in publications:
                self._log.succeeded(publication)
        self._succeeded += len(publications)
        # All are out before the first is told: who is told of it may publish, where there is room.
        self._leave(len(publications), size)
        for publication in publications:
            publication.succeed(now)
        self._left()

    def failed(self, publication: Publication, error: PublishError) -> None:
        if self._log is not None:
            self._log.failed(publication, error)
        self._failed += 1
        self._leave(1, publication.size)
        publication.fail(error)
        self._left()

    def returned(self, publication: Publication, message: Returned) -> None:
        if self._log is not None:
            self._log.returned(publication)
        self._returned += 1
        error = MessageReturnedError(
            publication.name,
            publication.message_id,
            message.reply_code,
            message.reply_text,
            message.exchange,
            message.routing_key,
        )
        self._leave(1, publication.size)
        publication.give_back(error, message)
        self._left()

    def _leave(self, count: int, size_bytes: int) -> None:
        self._count -= count
        self._size_bytes -= size_bytes

    def _left(self) -> None:
        self.deadlines.forget_ended(self._count)
        if not self._count:
            self._empty.set()
        if self._waiting_for_room:
            self.offer_room()
