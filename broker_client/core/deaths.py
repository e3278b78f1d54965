"""How entries end without an ack: purged, expired, rejected, too many, returned too often; and
the dead letters that are made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

from broker_client.amqp import x_death
from broker_client.core import deadletter
from broker_client.core.effects import Effect
from broker_client.core.keeper import Keeper
from broker_client.core.observer import Observer
from broker_client.core.queue import Entry, Queue
from broker_client.core.settings import EngineSettings
from broker_client.core.vhost import NO_HEADERS, VHost
from broker_client.events.delivery_event import REASON_CYCLE, REASON_PURGED, REASON_UNROUTABLE
from broker_client.message import Outgoing


class Deaths(ABC):
    """The part of the dispatcher that buries."""

    def __init__(self, settings: EngineSettings, vhosts: dict[str, VHost]) -> None:
        self.settings = settings
        self.effects: list[Effect] = []
        self.keeper = Keeper(settings, self.effects)
        self.observer: Observer | None = None
        """Who is told what happens to messages, if anybody."""
        self._vhosts = vhosts
        self._dead: deque[tuple[Entry, str]] = deque()
        self._routing_dead = False

    @abstractmethod
    def put(self, queue: Queue, message: Outgoing, now: float) -> bool:
        """Give `queue` a copy of `message`; False when its limit refuses it."""

    def drop_all(self, entries: Iterable[Entry]) -> int:
        """Count entries as purged; they do not become dead letters."""
        count = 0
        for entry in entries:
            count += 1
            entry.queue.purged += 1
            if self.observer is not None:
                self.keeper.fetch(entry)
                self.observer.dropped(entry, REASON_PURGED)
            self.keeper.settled(entry)
        return count

    def _expire(self, queue: Queue, now: float) -> None:
        while (entry := queue.pop_expired(now)) is not None:
            self._die(entry, x_death.EXPIRED, now)

    def _trim(self, queue: Queue, now: float) -> None:
        while queue.limited and (over := queue.pop_overflow()) is not None:
            self._die(over, x_death.MAXLEN, now)

    def _over_delivery_limit(self, entry: Entry, now: float) -> bool:
        limit = entry.queue.settings.delivery_limit
        if limit is None or entry.attempts <= limit:
            return False
        self._die(entry, x_death.DELIVERY_LIMIT, now)
        return True

    def _die(self, entry: Entry, reason: str, now: float) -> None:
        queue = entry.queue
        if self.observer is not None:
            self.keeper.fetch(entry)
            self.observer.died(entry, reason, now)
        if queue.settings.dead_letter_exchange is None or queue.deleted:
            queue.dropped += 1
        else:
            queue.dead_lettered += 1
            self._dead.append((entry, reason))
            return  # settled behind its dead letter, so that the store is never without both
        self.keeper.settled(entry)

    def route_dead(self, now: float) -> None:
        """Publish the dead letters there are, and those that these cause, without recursion."""
        if self._routing_dead:
            return
        self._routing_dead = True
        try:
            while self._dead:
                entry, reason = self._dead.popleft()
                self._route_one_dead(entry, reason, now)
        finally:
            self._routing_dead = False

    def _route_one_dead(self, entry: Entry, reason: str, now: float) -> None:
        queue = entry.queue
        exchange = queue.settings.dead_letter_exchange
        assert exchange is not None, "only entries with a dead-letter exchange are put in _dead"
        message = deadletter.dead_letter(
            self.keeper.fetch(entry),
            queue=queue.name,
            reason=reason,
            exchange=exchange,
            routing_key=queue.settings.dead_letter_routing_key,
            now=now,
        )
        headers = message.properties.headers or NO_HEADERS
        keys = [message.routing_key, *(headers.get("CC") or ()), *(headers.get("BCC") or ())]
        observer = self.observer
        if observer is not None:
            observer.origin = entry
        targets = self._vhosts[queue.vhost].route(exchange, keys, headers)
        for target in targets:
            if not x_death.is_cycle(message.properties.headers, target.name, reason):
                self.put(target, message, now)
            elif observer is not None:
                observer.lost_dead_letter(entry, message, REASON_CYCLE, now)
        if observer is not None:
            observer.origin = None
            if not targets:
                observer.lost_dead_letter(entry, message, REASON_UNROUTABLE, now)
        self.keeper.settled(entry)
