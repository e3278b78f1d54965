"""Commands in, ordered effects out: the one door to the core.

Connections and channels are numbered by the engine; a channel's number is unique in the engine,
so it alone names the channel. Whoever runs the engine calls `take_effects` after its commands and
carries them out in order, and calls `tick` when `next_deadline` has come. A command that AMQP
refuses raises `ReplyError` and changes nothing; closing the channel is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_client.core.commands.admin import Administration
from broker_client.core.effects import Effect
from broker_client.core.observer import Observer
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.settings import EngineSettings
from broker_client.core.snapshots import QueueStats
from broker_client.core.vhost import VHost

_SCANNED_AT_A_TIME = 1_000
"""Messages timed out or released at one visit of a scan, at most."""


class Connection:
    """One connection and its channels."""

    __slots__ = ("channels", "id", "vhost")

    def __init__(self, id: int, vhost: VHost) -> None:
        self.id, self.vhost = id, vhost
        self.channels: dict[int, ChannelState] = {}


class Engine(Administration):
    """Decides; does nothing itself."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        new_token: Callable[[], str] | None = None,
    ) -> None:
        """
        Args:
            settings: limits.
            new_token: makes the secret part of direct reply-to addresses; by default they are
                numbered, and so can be guessed.
        """
        super().__init__(settings or EngineSettings())
        self._make_token = new_token
        self._connections: dict[int, Connection] = {}

    def __repr__(self) -> str:
        return (
            f"<Engine connections={len(self._connections)} channels={len(self._channels)} "
            f"queues={self.queue_count}>"
        )

    @property
    def observer(self) -> Observer | None:
        """Who is told what happens to messages; set it before the first message."""
        return self._dispatch.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._dispatch.observer = observer

    def _new_token(self) -> str:
        return super()._new_token() if self._make_token is None else self._make_token()

    # ---------------------------------------------------------------- running

    def take_effects(self) -> list[Effect]:
        """What must be done now, in this order; the caller owns the list."""
        self._dispatch.keeper.page_out()
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    @property
    def is_unfinished(self) -> bool:
        """More could be delivered at once than a step of it delivers: call `proceed`, when the
        effects taken so far have been carried out."""
        return self._dispatch.is_unfinished

    def proceed(self, now: float) -> None:
        """Deliver the next step; `tick` does it too."""
        self._dispatch.proceed(now)

    def next_deadline(self) -> float | None:
        """When to call `tick`, or None."""
        return self._dispatch.schedule.next_deadline()

    def tick(self, now: float) -> None:
        """Do what is due: message time-outs, deferred messages, TTLs, unused queues."""
        self._dispatch.proceed(now)
        for owner in self._dispatch.schedule.pop_due(now):
            self._visit(owner, now, None)

    def scan(self, now: float, most: int) -> tuple[int, int]:
        """Do what is due at up to `most` queues and channels, those longest overdue first.

        Of each, so many messages at most that one does not hold up the others; what is left is
        due at the next call. Returns how many were looked at, and at how many something was due.
        """
        owners = self._dispatch.schedule.take_due(now, most)
        dirty = sum(self._visit(owner, now, _SCANNED_AT_A_TIME) for owner in owners)
        return len(owners), dirty

    def _visit(self, owner: Queue | ChannelState, now: float, limit: int | None) -> bool:
        dispatch = self._dispatch
        if isinstance(owner, ChannelState):
            closing = dispatch.must_close(owner, now)
            if closing is not None:
                self._effects.append(closing)
                self.close_channel(owner.id, now)
                return True
            dirty = dispatch.time_out(owner, now, limit)
            dispatch.schedule.look_again(owner)
            return dirty
        if owner.deleted:
            return False
        expires = owner.settings.expires
        if expires is not None and not owner.consumers and owner.last_used + expires <= now:
            self._delete_queue(owner)
            return True
        gone = owner.dropped + owner.dead_lettered
        dirty = dispatch.release_deferred(owner, now, limit)
        dispatch.schedule.look_again(owner)
        return dirty or owner.dropped + owner.dead_lettered > gone

    def stats(self, now: float | None = None) -> tuple[QueueStats, ...]:
        """A snapshot of every queue, by vhost and name.

        Args:
            now: the time, for what is counted over the last minutes; left out, that is told as
                of the last time that was passed in.
        """
        return tuple(
            queue.stats(now)
            for _, vhost in sorted(self.vhosts.items())
            for _, queue in sorted(vhost.queues.items())
        )

    @property
    def queue_count(self) -> int:
        return sum(len(vhost.queues) for vhost in self.vhosts.values())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def resident_bytes(self) -> int:
        """Bodies held in memory; a copy in each queue counts."""
        return self._dispatch.keeper.resident_bytes

    @property
    def is_short_of_memory(self) -> bool:
        """True above the watermark: who publishes had better stop until it is below again."""
        high = self.settings.memory_high_watermark
        return high > 0 and self._dispatch.keeper.resident_bytes > high

    @property
    def late_settles(self) -> int:
        """Settlements ignored since their delivery had timed out before."""
        return self._dispatch.late_settles

    def check_conservation(self) -> None:
        """Raise AssertionError if a queue has lost or doubled a message."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.check_conservation()

    # ---------------------------------------------------------------- connections, channels

    def open_connection(self, vhost: str) -> int:
        """A new connection; its vhost comes into being with the first."""
        if vhost not in self.vhosts:
            self._add_vhost(vhost)
        id = self._next_id()
        self._connections[id] = Connection(id, self.vhosts[vhost])
        return id

    def open_channel(self, connection: int, *, confirm: bool = False) -> int:
        """A new channel of `connection`."""
        owner = self._connections[connection]
        channel = ChannelState(self._next_id(), connection, owner.vhost.name)
        channel.confirms = confirm
        owner.channels[channel.id] = channel
        self._channels[channel.id] = channel
        return channel.id

    def close_channel(self, channel: int, now: float) -> None:
        """End its consumers and requeue what it had in flight; harmless when closed."""
        state = self._channels.pop(channel, None)
        if state is None:
            return
        del self._connections[state.connection].channels[channel]
        self._close(state, now)

    def close_connection(self, connection: int, now: float) -> None:
        """Close its channels and delete its exclusive queues; harmless when closed."""
        owner = self._connections.pop(connection, None)
        if owner is None:
            return
        for state in owner.channels.values():
            del self._channels[state.id]
            self._close(state, now)
        for queue in [q for q in owner.vhost.queues.values() if q.owner == connection]:
            self._delete_queue(queue)

    def _close(self, state: ChannelState, now: float) -> None:
        # Consumers first, so that nothing is given back to the channel that gives it back.
        left = [consumer.queue for consumer in state.consumers.values()]
        for consumer in list(state.consumers.values()):
            self._dispatch.remove_consumer(consumer)
        self._dispatch.give_back(state.ledger.settle_all(), now)
        self._dispatch.schedule.forget(state)
        self._forget_replies(state)
        if self.observer is not None:
            self.observer.channel_closed(state.id)
        for queue in left:
            self._consumer_left(queue, now)
