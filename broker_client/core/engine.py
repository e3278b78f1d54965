"""Commands in, ordered effects out: the entry point of the core.

The commands are grouped by who gives them: `topology`, `publishing`, `consuming`, `admin`. All
work on one state, move messages by the same transitions, and take the time as `now`. The owner of
the engine calls `take_effects` after its commands, carries the effects out in order, and calls
`tick` when `next_deadline` has come. A command that AMQP refuses raises `ReplyError` and changes
nothing; closing the channel is up to the caller.

Connections and channels are numbered by the engine; a channel's number is unique in the engine,
so it alone names the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from broker_client.core.access import Users
from broker_client.core.bulk import Bulk
from broker_client.core.commands.admin import AdminCommands
from broker_client.core.commands.consume import ConsumeCommands
from broker_client.core.commands.policies import PolicyCommands
from broker_client.core.commands.publish import PublishCommands
from broker_client.core.commands.topology import TopologyCommands
from broker_client.core.delivering import consumer_timed_out
from broker_client.core.direct_reply import DirectReplies
from broker_client.core.effects import Effect
from broker_client.core.long_work import LongWork
from broker_client.core.observer import Observer
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.records import MessageSource
from broker_client.core.replies import connection_limit_reached, vhost_not_found
from broker_client.core.restore import Restoring
from broker_client.core.settings import EngineSettings
from broker_client.core.state import State
from broker_client.core.transitions import Transitions
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.core.virtual_host import MAX_CONNECTIONS, VirtualHost, check_short
from broker_client.events.delivery_event import REASON_CONNECTION_LOST
from broker_client.runtime.slotted import slotted

if TYPE_CHECKING:
    from broker_client.core.snapshots import QueueStats

_SCANNED_AT_A_TIME = 250
"""Messages timed out or released by one scan, at most."""


@slotted(frozen=False)
class ClientConnection:
    """One connection and its channels."""

    vhost: VirtualHost
    channels: dict[int, ChannelState] = field(default_factory=dict)


class Engine:
    """Decides what happens; carries nothing out."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        new_token: Callable[[], str] | None = None,
        observer: Observer | None = None,
        source: MessageSource | None = None,
    ) -> None:
        """
        Args:
            settings: limits.
            new_token: makes the last part of direct reply-to addresses, and of the names of
                queues declared without one; by default they are numbered, and can be guessed.
            observer: notified of what happens to messages.
            source: where messages are read back that memory is too short for; without one, all
                stay in memory.
        """
        self.state: State = State(settings or EngineSettings(), new_token, observer, source)
        """Its state; nothing outside of the core may change it."""
        self._transitions = Transitions(self.state)
        self._bulk = bulk = Bulk(self.state, self._transitions)
        self._replies = replies = DirectReplies(self.state)
        parts = self.state, self._transitions
        self.topology: TopologyCommands = TopologyCommands(*parts, replies)
        self.consuming: ConsumeCommands = ConsumeCommands(*parts, bulk, replies)
        self.publishing: PublishCommands = PublishCommands(*parts, bulk, replies)
        self.admin: AdminCommands = AdminCommands(*parts, bulk)
        self.policies: PolicyCommands = PolicyCommands(self.state, self._transitions)
        self.users: Users = Users(self.state.note)
        self.restoring: Restoring = Restoring(self.state, self.users)
        self._connections: dict[int, ClientConnection] = {}

    def __repr__(self) -> str:
        return (
            f"<Engine connections={len(self._connections)} channels={self.channel_count} "
            f"queues={self.queue_count}>"
        )

    # ---------------------------------------------------------------- running

    def take_effects(self) -> list[Effect]:
        """The effects to carry out now, in this order; the caller owns the list."""
        return self.state.take_effects()

    @property
    def has_effects(self) -> bool:
        """True if there are effects to take."""
        return self.state.has_effects

    @property
    def long_work(self) -> LongWork:
        """What commands have begun: call its `proceed` while it is pending, and answer no command
        before all that was begun by then is done."""
        return self.state.long_work

    @property
    def has_more_to_do(self) -> bool:
        """True if there is long work, or something unfinished."""
        return self.state.long_work.is_pending or self._transitions.is_unfinished

    @property
    def is_unfinished(self) -> bool:
        """More could be delivered at once, or is beyond a queue's length, than a step does: call
        `proceed`, when the effects taken so far have been carried out."""
        return self._transitions.is_unfinished

    def proceed(self, now: float) -> None:
        """Take the next step; `tick` does it too."""
        self._transitions.proceed(now)

    def next_deadline(self) -> float | None:
        """When to call `tick`, or None."""
        return self.state.schedule.next_deadline()

    def tick(self, now: float) -> None:
        """Do what is due: message time-outs, deferred messages, TTLs, unused queues."""
        self._transitions.proceed(now)
        for owner in self.state.schedule.pop_due(now):
            self._visit(owner, now, None)

    def scan(self, now: float, most: int) -> tuple[int, int]:
        """Do what is due at up to `most` queues and channels, those longest overdue first.

        Of each, so many messages at most that one does not hold up the others; what is left is
        due at the next call. Returns how many were looked at, and at how many something was due.
        """
        owners = self.state.schedule.take_due(now, most)
        each = _SCANNED_AT_A_TIME // max(1, len(owners))
        dirty = sum(self._visit(owner, now, each) for owner in owners)
        return len(owners), dirty

    def _visit(self, owner: Queue | ChannelState, now: float, limit: int | None) -> bool:
        if isinstance(owner, ChannelState):
            closing = consumer_timed_out(self.state.settings, owner, now)
            if closing is not None:
                self.state.end_confirms()  # those of what it has published come before
                self.state.effects.append(closing)
                self.close_channel(owner.id, now)
                return True
            dirty = self._transitions.time_out(owner, now, limit)
            self.state.schedule.look_again(owner)
            return dirty
        if owner.deleted:
            return False
        expires = owner.settings.expires
        if expires is not None and not owner.consumers and owner.last_used + expires <= now:
            self._transitions.delete_queue(owner)
            return True
        gone = owner.dropped + owner.dead_lettered
        dirty = self._transitions.release_due(owner, now, limit)
        self.state.schedule.look_again(owner)
        return dirty or owner.dropped + owner.dead_lettered > gone

    # ---------------------------------------------------------------- figures

    def stats(self, now: float | None = None) -> tuple[QueueStats, ...]:
        """A snapshot of every queue, by vhost and name.

        Args:
            now: the time, for what is counted over the last minutes; without it, these are as
                of the last time that was passed in.
        """
        return tuple(
            queue.stats(now)
            for _, vhost in sorted(self.state.vhosts.items())
            for _, queue in sorted(vhost.queues.items())
        )

    @property
    def queue_count(self) -> int:
        """Queues in all vhosts."""
        return sum(len(vhost.queues) for vhost in self.state.vhosts.values())

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def channel_count(self) -> int:
        """Open channels."""
        return len(self.state.channels)

    @property
    def is_short_of_memory(self) -> bool:
        """True above the watermark: publishers should wait until it is below again."""
        high = self.state.settings.memory_high_watermark
        return high > 0 and self.state.paging.resident_bytes > high

    @property
    def late_settles(self) -> int:
        """Settlements ignored since their delivery had timed out before."""
        return self.state.late_settles

    def check_conservation(self) -> None:
        """Raise AssertionError if a queue has lost or doubled a message."""
        for vhost in self.state.vhosts.values():
            for queue in vhost.queues.values():
                queue.check_conservation()

    # ---------------------------------------------------------------- connections, channels

    def add_vhost(self, name: str) -> bool:
        """Add a vhost; returns False where there is one.

        Raises:
            ReplyError: 406 for a name of more than 255 bytes.
        """
        if name in self.state.vhosts:
            return False
        check_short("vhost name", name)
        self.state.add_vhost(name)
        return True

    def vhost_metadata(self, name: str) -> VHostMetadata:
        """The metadata of a vhost.

        Raises:
            ReplyError: 530 where there is no such vhost.
        """
        return self._vhost(name).metadata

    def set_vhost_metadata(self, name: str, metadata: VHostMetadata) -> None:
        """Replace the metadata of a vhost; existing queues keep their types.

        Raises:
            InvalidVHostError: it cannot be as given; nothing is changed.
            ReplyError: 530 where there is no such vhost.
        """
        self._vhost(name).set_metadata(metadata)

    def _vhost(self, name: str) -> VirtualHost:
        vhost = self.state.vhosts.get(name)
        if vhost is None:
            raise vhost_not_found(name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost, whose connections are closed, with everything in it."""
        vhost = self.state.vhosts[name]
        assert not self.connections_to(name), "close the connections first"
        self._bulk.delete_queues_of(vhost)
        self.users.forget_vhost(name)
        self.state.delete_vhost(name)

    def connections_to(self, vhost: str) -> tuple[int, ...]:
        """The open connections to `vhost`."""
        owners = self._connections.items()
        return tuple(id for id, owner in owners if owner.vhost.name == vhost)

    def open_connection(self, vhost: str, *, create: bool = True, user: str = "") -> int:
        """A new connection.

        Args:
            vhost: name of its vhost.
            create: add the vhost where there is none.
            user: whose connection it is, for the text of a refusal.

        Raises:
            ReplyError: 530 where there is no such vhost, and none is to be added, or where it has
                as many connections as it may.
        """
        vhosts = self.state.vhosts
        if vhost not in vhosts:
            if not create:
                raise vhost_not_found(vhost)
            self.state.add_vhost(vhost)
        most = vhosts[vhost].limits.get(MAX_CONNECTIONS, -1)
        if 0 <= most <= len(self.connections_to(vhost)):
            raise connection_limit_reached(vhost, user, most)
        id = self.state.next_id()
        self._connections[id] = ClientConnection(vhosts[vhost])
        return id

    def open_channel(
        self,
        connection: int,
        *,
        confirm: bool = False,
        number: int = 0,
        consumer_timeout: float | None = None,
    ) -> int:
        """A new channel of `connection`.

        Args:
            connection: whose channel it is.
            confirm: confirm its publishes.
            number: of the channel as its client knows it; by default the engine's own.
            consumer_timeout: seconds that a delivery may be in flight before the channel is
                closed, 0 for no limit; by default it is given back after `message_timeout`.
        """
        owner = self._connections[connection]
        id = self.state.next_id()
        channel = ChannelState(
            id, connection, owner.vhost.name, confirm, number or id, consumer_timeout
        )
        owner.channels[channel.id] = channel
        self.state.channels[channel.id] = channel
        return channel.id

    def close_channel(self, channel: int, now: float) -> None:
        """End its consumers and requeue what it had in flight; no effect when it is closed."""
        closing = self.state.channels.get(channel)
        if closing is None:
            return
        self.state.finish_commits(closing)
        del self.state.channels[channel]
        del self._connections[closing.connection].channels[channel]
        self._close(closing, now)

    def channels_of(self, connection: int) -> tuple[int, ...]:
        """The open channels of `connection`; none when it is closed."""
        owner = self._connections.get(connection)
        return () if owner is None else tuple(owner.channels)

    def close_connection(self, connection: int, now: float) -> None:
        """Close its channels and delete its exclusive queues; no effect when it is closed."""
        owner = self._connections.get(connection)
        if owner is None:
            return
        for channel in owner.channels.values():
            self.state.finish_commits(channel)
        del self._connections[connection]
        for channel in owner.channels.values():
            del self.state.channels[channel.id]
            self._close(channel, now)
        for queue in [q for q in owner.vhost.queues.values() if q.owner == connection]:
            self._transitions.delete_queue(queue)

    def _close(self, channel: ChannelState, now: float) -> None:
        # Consumers first, so that nothing is given back to the channel that gives it back.
        left = [consumer.queue for consumer in channel.consumers.values()]
        for consumer in list(channel.consumers.values()):
            self._transitions.remove_consumer(consumer)
        self._bulk.requeue(channel, channel.ledger.settle_all(), now, REASON_CONNECTION_LOST)
        self.state.schedule.forget(channel)
        self._replies.stop(channel)
        if channel.transaction is not None:
            self.publishing.discard(channel.transaction)
        if self.state.observer is not None:
            self.state.observer.channel_closed(channel.id)
        for queue in left:
            self._transitions.consumer_left(queue, now)
