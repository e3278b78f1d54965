"""The accepted, unfinished publishes of one vhost: bounded and counted."""

from __future__ import annotations

import asyncio
from collections import deque

from broker_client.config import PublishQueueConfig
from broker_client.errors import MessageReturnedError, PublishError
from broker_client.events.stats import PublishQueueStats
from broker_client.message import Returned
from broker_client.publication import Publication
from broker_client.publishing.publish_log import PublishLog
from broker_client.runtime.deadlines import NEVER, Deadlines


class Backlog:
    """Counts publishes in and out, and lets callers wait for room.

    The publish queue enters them; the queue and its senders end them. Neither needs to know of
    the other for that.

    Args:
        config: how many publishes and bytes there is room for.
        publish_log: records each publish and its end.
    """

    def __init__(self, config: PublishQueueConfig, publish_log: PublishLog | None) -> None:
        self._config = config
        self._log = publish_log
        self._count = self._size_bytes = 0
        self._published = self._succeeded = self._returned = self._failed = 0
        self._waiting_for_room: deque[asyncio.Event] = deque()  # first come, first served
        self._empty = asyncio.Event()
        self._empty.set()
        self.deadlines: Deadlines[Publication] = Deadlines()
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
        config = self._config
        return self._count >= config.max_queued or (
            self._size_bytes + publication.size > config.max_queued_bytes and self._count > 0
        )

    def has_room_now(self, publication: Publication) -> bool:
        """True if there is room and no earlier caller waits."""
        config, count = self._config, self._count  # as in `is_full_for`, for every publish
        return not self._waiting_for_room and (
            count < config.max_queued
            and (self._size_bytes + publication.size <= config.max_queued_bytes or not count)
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

    def accept(self, publication: Publication, *, confirm: bool) -> None:
        if self._log is not None:
            self._log.accepted(publication, confirm)
        self._published += 1
        if not self._count:
            self._empty.clear()
        self._count += 1
        self._size_bytes += publication.size
        if publication.deadline != NEVER:
            self.deadlines.put(publication, publication.deadline, None)

    def succeeded(self, publication: Publication, now: float) -> None:
        """End `publication` as confirmed."""
        if self._log is not None:
            self._log.succeeded(publication)
        self._succeeded += 1
        publication.succeed(now)
        self._ended(publication)

    def failed(self, publication: Publication, error: PublishError) -> None:
        if self._log is not None:
            self._log.failed(publication, error)
        self._failed += 1
        publication.fail(error)
        self._ended(publication)

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
        publication.give_back(error, message)
        self._ended(publication)

    def _ended(self, publication: Publication) -> None:
        self.deadlines.pop(publication)
        self._count -= 1
        self._size_bytes -= publication.size
        if not self._count:
            self._empty.set()
        if self._waiting_for_room:
            self.offer_room()
