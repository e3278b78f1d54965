"""Commands of operators: see what a queue holds, and purge, release, pause or resume it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING

from broker_client.core.bulk import Bulk
from broker_client.core.queue import ChannelState, Entry, Queue
from broker_client.core.replies import not_found
from broker_client.core.state import State
from broker_client.core.transitions import Transitions

if TYPE_CHECKING:
    from broker_client.core.snapshots import DeferredMessage, InFlightMessage, Purged


class AdminCommands:
    """See what is in flight and deferred, and act on it; queues are named by vhost and name.

    Every command raises `ReplyError` 404 where there is no such queue.
    """

    def __init__(self, state: State, transitions: Transitions, bulk: Bulk) -> None:
        self._state, self._transitions, self._bulk = state, transitions, bulk

    def in_flight(self, vhost: str, queue: str, *, most: int = 100) -> tuple[InFlightMessage, ...]:
        """Deliveries of a queue in flight, longest first: consumer, start and deadline."""
        from broker_client.core.snapshots import InFlightMessage

        target = self._find(vhost, queue)
        flying = (
            islice(_held_by(channel, target), most) if target.in_flight else ()
            for channel in self._state.channels.values()
        )
        longest = nsmallest(most, chain(*flying), key=lambda each: each[2].delivered_at)
        return tuple(
            InFlightMessage(
                vhost=vhost,
                queue=queue,
                message_id=entry.message.properties.message_id,
                exchange=entry.message.exchange,
                routing_key=entry.message.routing_key,
                size_bytes=len(entry.message.body),
                attempts=entry.attempts,
                connection=channel.connection,
                channel=channel.id,
                consumer_tag=entry.consumer.tag if entry.consumer is not None else "",
                delivery_tag=tag,
                delivered_at=entry.delivered_at,
                deadline=channel.ledger.deadline(tag),
            )
            for channel, tag, entry in longest
        )

    def deferred(self, vhost: str, queue: str, *, most: int = 100) -> tuple[DeferredMessage, ...]:
        """Deferred messages of a queue, earliest due time first."""
        from broker_client.core.snapshots import DeferredMessage

        target = self._find(vhost, queue)
        waiting = target.deferred
        return tuple(
            DeferredMessage(
                vhost=vhost,
                queue=queue,
                id=entry.position,
                message_id=message.properties.message_id,
                exchange=message.exchange,
                routing_key=message.routing_key,
                size_bytes=len(message.body),
                attempts=entry.attempts,
                due_at=waiting.due_at(entry) or 0.0,
            )
            for entry in waiting.earliest(most)
            for message in (self._state.paging.fetch(entry),)
        )

    def cancel_deferred(self, vhost: str, queue: str, ids: Collection[int] | None = None) -> int:
        """Drop deferred messages, all of them or those with these ids; returns their number.

        They count as purged, and make no dead letters.
        """
        target = self._find(vhost, queue)
        if ids is None:
            return self._transitions.drop_deferred(target)
        entries = target.deferred.chosen(ids)
        for entry in entries:
            target.deferred.discard(entry)
        return self._transitions.drop(target, entries)

    def run_deferred(
        self, vhost: str, queue: str, now: float, ids: Collection[int] | None = None
    ) -> int:
        """Make deferred messages ready before their time, at the tail; returns their number."""
        target = self._find(vhost, queue)
        if ids is None:
            return self._bulk.release_all(target, now)
        return self._bulk.release_early(target, ids, now)

    def purge(
        self,
        vhost: str,
        queue: str,
        now: float,
        *,
        ready: bool = True,
        deferred: bool = False,
        in_flight: bool = False,
    ) -> Purged:
        """Drop ready, deferred or in-flight messages of a queue; returns the counts.

        Of what was in flight, a settlement that comes later is ignored, or answered
        `NotInFlight`; its consumers may take as many again. (nsq's Empty, takes all.) Many that
        are in flight are taken in steps, see `Purged`; what is acked meanwhile is not purged.
        """
        target = self._find(vhost, queue)
        if target.is_in_work:
            self._state.long_work.finish()  # it may be what makes them ready
        from broker_client.core.snapshots import Purged

        dropped_ready = self._transitions.drop_ready(target) if ready else 0
        dropped_deferred = self._transitions.drop_deferred(target) if deferred else 0
        purged = Purged(dropped_ready, dropped_deferred, 0)
        if in_flight and target.in_flight:
            self._bulk.purge_in_flight(target, purged, now)
        self._state.schedule.look_again(target)
        return purged

    def pause_queue(self, vhost: str, queue: str) -> None:
        """Stop deliveries from the queue until `resume_queue`; everything else continues.

        A durable queue stays paused over a restart.
        """
        target = self._find(vhost, queue)
        self._state.vhosts[vhost].set_paused(target, True)

    def resume_queue(self, vhost: str, queue: str, now: float) -> None:
        """Resume deliveries."""
        target = self._find(vhost, queue)
        self._state.vhosts[vhost].set_paused(target, False)
        self._transitions.pump(target, now)

    def _find(self, vhost: str, queue: str) -> Queue:
        found = self._state.vhosts.get(vhost)
        if found is None or queue not in found.queues:
            raise not_found("queue", queue, vhost)
        return found.queues[queue]


def _held_by(channel: ChannelState, queue: Queue) -> Iterator[tuple[ChannelState, int, Entry]]:
    """What of `queue` is in flight on `channel`, longest first: tags rise with the time."""
    for tag, entry in channel.ledger.items():
        if entry.queue is queue:
            yield channel, tag, entry
