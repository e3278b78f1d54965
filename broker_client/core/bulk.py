"""What happens to many entries at one moment: settled, given back, released, purged, in steps.

A command takes what it concerns out of everybody's sight at once, which looks at no single entry,
and leaves the rest to `LongWork`. One entry's share is always a transition, see `transitions`.

* Where the order matters, as in giving back, queues are on hold until the last is in its place.
* What costs more than a step is cut by its cost, never by the clock: so every run with the same
  commands has the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from broker_client.core.in_flight import TakenDeliveries
from broker_client.core.long_work import STEP
from broker_client.core.queue import NEVER, ChannelState, Entry, Queue
from broker_client.core.state import State
from broker_client.core.transitions import Transitions, cost_so_far
from broker_client.core.virtual_host import VirtualHost
from broker_client.events.delivery_event import REASON_REJECTED

if TYPE_CHECKING:
    from broker_client.core.snapshots import Purged

T = TypeVar("T")
Settle = Callable[[Entry, float], None]
_SETTLE, _RETURN, _RELEASE = 4, 3, 4
"""What each of these costs, besides what it causes; see `STEP`."""
_FEW_SETTLED, _FEW_RETURNED = 25, STEP // _RETURN
_SORTED = 500  # deferred messages that are sorted between two looks at the cost
_TOGETHER = 25  # deferred messages made ready, or deliveries revoked, between two looks at the cost


class Bulk:
    """Moves many entries at once."""

    def __init__(self, state: State, transitions: Transitions) -> None:
        self._state, self._transitions = state, transitions
        self._work = state.long_work
        self._purges = 0  # of what is in flight, begun and not done

    # ---------------------------------------------------------------- out of flight

    def settle_each(self, entries: Collection[Entry], settle: Settle, now: float) -> None:
        """Ack, reject or defer deliveries with `settle`, in order; many of them in steps."""
        few = len(entries) <= _FEW_SETTLED
        if few or (self._purges and _is_any_purging(entry.queue for entry in entries)):
            for entry in entries:
                settle(entry, now)
        else:
            self._work.begin(self.settling(_first_to_last(entries), settle), now)

    def settling(self, entries: Iterable[Entry], settle: Settle) -> Iterator[int]:
        """The same as work, to be continued with `yield from`."""
        for entry in entries:
            before = cost_so_far(entry.queue)
            settle(entry, self._work.now)
            yield _SETTLE + cost_so_far(entry.queue) - before

    def requeue(
        self,
        channel: ChannelState,
        entries: Collection[Entry],
        now: float,
        reason: str,
        *,
        is_failure: bool = True,
    ) -> None:
        """Give deliveries back, each to where it was, to be redelivered.

        Many go back in steps. Until all are there nothing is delivered from their queues, so that
        their order holds.

        Args:
            channel: had them.
            entries: in the order in which they were delivered.
            now: the time.
            reason: for the observer.
            is_failure: the delivery counts.
        """
        if len(entries) > _FEW_RETURNED:
            held = channel.sources()
            if not (self._purges and _is_any_purging(held)):  # else it is to count them
                if not isinstance(entries, TakenDeliveries):
                    entries = deque(entries)
                for queue in held:
                    queue.returns.append(entries)
                returning = self.returning(held, _last_to_first(entries), reason, is_failure)
                self._work.begin(self._counted(held, entries, returning), now)
                return
        queues: dict[Queue, None] = {}
        for entry in reversed(list(entries)):  # the last first, so that each becomes the head
            if not is_failure:
                self._transitions.uncount(entry)
            self._transitions.give_back(entry, queues, now, reason)
        self._transitions.settle_down(queues, now)

    def release(self, channel: ChannelState, entries: Collection[Entry], now: float) -> None:
        """Return deliveries that no handler began; this does not count as a failure.

        RabbitMQ 4.3 does the same for basic.nack with requeue: the delivery does not count.
        """
        self.requeue(channel, entries, now, REASON_REJECTED, is_failure=False)

    def returning(
        self,
        held: Sequence[Queue],
        entries: Iterable[Entry],
        reason: str,
        is_failure: bool = True,
    ) -> Iterator[int]:
        """Give `entries` back as work: the last delivered first, so that each becomes the head.

        Their queues are all among `held`, and on hold from now on, before the first step.
        """
        for queue in held:
            queue.hold()
        return self._give_back_each(held, entries, reason, is_failure)

    def _give_back_each(
        self, held: Sequence[Queue], entries: Iterable[Entry], reason: str, is_failure: bool
    ) -> Iterator[int]:
        queues: dict[Queue, None] = {}
        transitions = self._transitions
        for entry in entries:
            before = cost_so_far(entry.queue)
            if not is_failure:
                transitions.uncount(entry)
            transitions.give_back(entry, queues, self._work.now, reason)
            transitions.route_dead_letters(self._work.now)
            yield _RETURN + cost_so_far(entry.queue) - before
        for queue in held:
            queue.let_go()
            queues[queue] = None
        transitions.finish_later(queues)

    def _counted(
        self, held: Sequence[Queue], entries: Collection[Entry], work: Iterator[int]
    ) -> Iterator[int]:
        yield from work
        for queue in held:
            queue.returns.remove(entries)

    # ---------------------------------------------------------------- purged in flight

    def purge_in_flight(self, queue: Queue, purged: Purged, now: float) -> None:
        """Take the deliveries of `queue` from their consumers, and drop them; many in steps.

        Until the last is dropped nothing is delivered from the queue, and what leaves flight but
        by an ack or a reject is dropped, too: so exactly what was in flight at first is gone.

        Args:
            queue: whose deliveries.
            purged: counts them.
            now: the time.
        """
        queue.hold()
        queue.purging = purged
        self._purges += 1
        queues: dict[Queue, None] = {queue: None}
        work = self._revoke_each(queue, purged, queues)
        if queue.in_flight > _FEW_RETURNED:
            self._work.begin(work, now)
            return
        deque(work, maxlen=0)
        self._transitions.settle_down(queues, now)

    def _revoke_each(
        self, queue: Queue, purged: Purged, queues: dict[Queue, None]
    ) -> Iterator[int]:
        for channel in list(self._state.channels.values()):
            for tags in _batched(channel.ledger.tags(), _TOGETHER):
                revoked = channel.ledger.revoke(tags, lambda entry: entry.queue is queue)
                for entry in revoked:
                    self._transitions.revoke(entry, purged, queues)
                yield len(tags) // 10 + _RETURN * len(revoked)
        queue.purging = None
        self._purges -= 1
        queue.let_go()
        self._transitions.finish_later(queues)

    # ---------------------------------------------------------------- deferred to ready

    def release_early(self, queue: Queue, ids: Collection[int], now: float) -> int:
        """Put deferred messages at the tail before their time, earliest first, many in steps.

        Returns:
            Their number.
        """
        known = queue.deferred.known(ids)
        self._work.begin(self._release_each(queue, known), now)
        return len(known)

    def _release_each(self, queue: Queue, ids: Sequence[int]) -> Iterator[int]:
        runs = []
        for batch in _batched(ids, _SORTED):
            runs.append(queue.deferred.run_of(batch))
            yield len(batch)
        earliest = queue.deferred.merged(runs)
        while entries := list(islice(earliest, _TOGETHER)):
            waiting = [entry for entry in entries if queue.deferred.discard(entry)]
            yield self._make_ready(queue, waiting)

    def release_all(self, queue: Queue, now: float) -> int:
        """Put all deferred messages at the tail before their time, many of them in steps.

        Returns:
            Their number.
        """
        count = len(queue.deferred)
        self._work.begin(self._release_earliest(queue, count), now)
        return count

    def _release_earliest(self, queue: Queue, count: int) -> Iterator[int]:
        while count > 0 and (entries := queue.deferred.pop_due(NEVER, min(count, _TOGETHER))):
            count -= len(entries)
            yield self._make_ready(queue, entries)
        self._state.schedule.look_again(queue)

    def _make_ready(self, queue: Queue, entries: Collection[Entry]) -> int:
        before = cost_so_far(queue)
        self._transitions.make_ready(queue, entries, self._work.now)
        return _RELEASE * len(entries) + cost_so_far(queue) - before

    # ---------------------------------------------------------------- queues

    def delete_queues_of(self, vhost: VirtualHost) -> None:
        """Delete all queues of a vhost that has no consumers, and is deleted after this."""
        self._work.begin(self._empty_each(self._transitions.remove_queues_of(vhost)))

    def _empty_each(self, queues: Sequence[Queue]) -> Iterator[int]:
        for queue in queues:
            ready, deferred = queue.take_ready(), queue.take_deferred()
            queue.purged += len(ready) + len(deferred)
            yield 1
            yield from self._transitions.forget_each(ready.drain())
            yield from self._transitions.forget_each(deferred.drain())


def _first_to_last(entries: Collection[Entry]) -> Iterator[Entry]:
    """One after the other, so that its memory goes with it."""
    left = entries if isinstance(entries, TakenDeliveries) else deque(entries)
    while left:
        yield left.popleft()


def _last_to_first(entries: deque[Entry] | TakenDeliveries[Entry]) -> Iterator[Entry]:
    while entries:
        yield entries.pop()


def _is_any_purging(queues: Iterable[Queue]) -> bool:
    return any(queue.purging is not None for queue in queues)


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
