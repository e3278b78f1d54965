"""Commands in, ordered effects out: the one door to the core.

Connections and channels are numbered by the engine; a channel's number is unique in the engine,
so it alone names the channel. Whoever runs the engine calls `take_effects` after its commands and
carries them out in order, and calls `tick` when `next_deadline` has come. A command that AMQP
refuses raises `ReplyError` and changes nothing; closing the channel is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_client.core.administration import Administration
from broker_client.core.consuming import REPLY_TO
from broker_client.core.effects import Confirm, Deliver, Effect, Return
from broker_client.core.observer import Observer
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.replies import precondition_failed
from broker_client.core.settings import EngineSettings
from broker_client.core.snapshots import QueueStats
from broker_client.core.topology import NOTHING
from broker_client.core.transaction import Transaction
from broker_client.core.vhost import VHost
from broker_client.message import Delivery, Outgoing, Returned

_SCANNED_AT_A_TIME = 1_000
"""Messages timed out or released at one visit of a scan, at most."""
_OURS = frozenset(("CC", "BCC", "x-delay", "x-delivery-count"))
"""Headers that mean something to a publish."""
_REPLY_ADDRESS = f"{REPLY_TO}."


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
        self._effects = self._dispatch.effects
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
        taken = self._effects[:]
        self._effects.clear()
        self._dispatch.keeper.page_out()
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
    def late_settles(self) -> int:
        """Settlements ignored since their delivery had timed out before (parity X-02)."""
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

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on; harmless when repeated.

        Raises:
            ReplyError: 406 on a channel in transaction mode.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            raise precondition_failed("cannot switch from tx to confirm mode")
        state.confirms = True

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

    # ---------------------------------------------------------------- publishing

    def publish(self, channel: int, message: Outgoing, now: float) -> None:
        """Route, store in every queue, deliver; then return it or confirm it.

        With the header `x-delay` (milliseconds) the message waits in each queue it is routed to,
        and becomes ready when the time is over; see docs/core.md for why there.

        Raises:
            ReplyError: 404 or 403 for the exchange, 406 for bad CC, BCC, x-delay or expiration,
                or for a reply_to that asks for direct replies without a consumer of them.
        """
        state = self._channels[channel]
        properties = message.properties
        if properties.expiration is not None:
            _check_expiration(properties.expiration)
        if properties.reply_to == REPLY_TO:
            message = _with_reply_address(state, message)
        if state.transaction is not None:
            vhost = self.vhosts[state.vhost]
            vhost.check_publish(message.exchange)
            self._prepare(message)
            state.transaction.publishes.append(message)
            return
        self._publish(state, message, now)

    def _publish(self, state: ChannelState, message: Outgoing, now: float) -> None:
        vhost = self.vhosts[state.vhost]
        headers = message.properties.headers
        delay = 0.0
        queues: tuple[Queue, ...] | None
        if headers and not _OURS.isdisjoint(headers):
            vhost.check_publish(message.exchange)
            message, keys, delay = self._prepare(message)
            queues = vhost.route(message.exchange, keys, headers)
        else:
            queues = vhost.routes.get(message[:2])
            if queues is None:
                queues = vhost.route_publish(message.exchange, message.routing_key)
            if queues is None:
                queues = vhost.route(message.exchange, (message.routing_key,), headers or NOTHING)
        observer = self._dispatch.observer
        if observer is not None:
            observer.published(state, message, now)
        acked = True
        if delay:
            for queue in queues:
                self._dispatch.put_later(queue, message, now + delay, now)
        else:
            for queue in queues:
                if not self._dispatch.put(queue, message, now):
                    acked = False
        if not queues and not self._reply(message):
            self._unroutable(state, message, now)
        if state.confirms:
            self._confirm(state, acked)

    def _prepare(self, message: Outgoing) -> tuple[Outgoing, list[str], float]:
        """The message as it is kept, its routing keys, and its delay.

        CC and BCC add routing keys (RabbitMQ's sender-selected distribution). BCC stays in the
        headers while the message is here, since its dead letters go there too, and is taken off
        as it is delivered. An x-delay is negated, as RabbitMQ's plugin does, so that a copy of
        the headers does not delay again; a count of deliveries is for queues to make.
        """
        headers = dict(message.properties.headers or {})
        keys = [message.routing_key]
        for name in ("CC", "BCC"):
            more = headers.get(name, [])
            if not isinstance(more, list) or not all(isinstance(key, str) for key in more):
                raise precondition_failed(f"header '{name}' is not an array of strings")
            keys.extend(more)
        delay = self._delay(headers["x-delay"]) if "x-delay" in headers else 0.0
        changed = headers.pop("x-delivery-count", None) is not None
        if delay:
            headers["x-delay"] = -headers["x-delay"]
        if delay or changed:
            message = message._replace(properties=message.properties._replace(headers=headers))
        return message, keys, delay

    def _delay(self, milliseconds: Any) -> float:
        """Seconds; none where the header was negated by an earlier delay."""
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int):
            raise precondition_failed(f"x-delay {milliseconds!r} is not an integer")
        most = int(self.settings.max_publish_delay * 1000)
        if milliseconds > most:
            raise precondition_failed(f"x-delay {milliseconds} is above the most allowed, {most}")
        return max(0, milliseconds) / 1000

    def _unroutable(self, state: ChannelState, message: Outgoing, now: float) -> None:
        if self.observer is not None:
            self.observer.unroutable(state, message, now)
        if message.mandatory:
            exchange, routing_key, body, properties, _ = message
            headers = properties.headers
            if headers and "BCC" in headers:
                shown = {name: value for name, value in headers.items() if name != "BCC"}
                properties = properties._replace(headers=shown)
            returned = Returned(312, "NO_ROUTE", exchange, routing_key, body, properties)
            self._effects.append(Return(state.id, returned))

    def _reply(self, message: Outgoing) -> bool:
        """Hand a direct reply to who asked; False when it is none, or nobody waits for it."""
        if message.exchange or not message.routing_key.startswith(_REPLY_ADDRESS):
            return False
        state = self._repliers.get(message.routing_key[len(_REPLY_ADDRESS) :])
        if state is None:
            return False
        _, routing_key, body, properties, _ = message
        tag = state.ledger.issue()
        delivery = Delivery(state.reply_tag, tag, False, "", routing_key, body, properties, 1)
        self._effects.append(Deliver(state.id, delivery))
        return True

    # ---------------------------------------------------------------- transactions

    def tx_select(self, channel: int) -> None:
        """Hold publishes and settlements back until `tx_commit`; harmless when repeated.

        Raises:
            ReplyError: 406 on a channel with confirms.
        """
        state = self._channels[channel]
        if state.confirms:
            raise precondition_failed("cannot switch from confirm to tx mode")
        if state.transaction is None:
            state.transaction = Transaction()

    def tx_commit(self, channel: int, now: float) -> None:
        """Carry out what was held back: publishes first, then settlements (RabbitMQ).

        Raises:
            ReplyError: 406 on a channel that is not in transaction mode.
        """
        state, transaction = self._transaction(channel)
        state.transaction = None
        for message in transaction.publishes:
            if message.exchange in self.vhosts[state.vhost].exchanges:
                self._publish(state, message, now)
            else:
                self._unroutable(state, message, now)  # deleted since
        ledger = state.ledger
        for tags, acked, requeue, delay in transaction.settlements:
            entries = [entry for tag in tags if (entry := ledger.settle(tag)) is not None]
            self._dispatch.late_settles += len(tags) - len(entries)
            if acked:
                for entry in entries:
                    self._dispatch.ack(entry, now)
            else:
                self._give_away(entries, requeue, delay, now)
        state.transaction = Transaction()

    def tx_rollback(self, channel: int) -> None:
        """Forget what was held back; deliveries stay in flight, and can be settled again.

        Raises:
            ReplyError: 406 on a channel that is not in transaction mode.
        """
        state, _ = self._transaction(channel)
        state.transaction = Transaction()

    def _transaction(self, channel: int) -> tuple[ChannelState, Transaction]:
        state = self._channels[channel]
        if state.transaction is None:
            raise precondition_failed("channel is not transactional")
        return state, state.transaction

    # ---------------------------------------------------------------- confirms

    def _confirm(self, state: ChannelState, acked: bool) -> None:
        state.publish_seq = seq = state.publish_seq + 1
        effects = self._effects
        if effects:
            last = effects[-1]
            if type(last) is Confirm and last.channel == state.id and last.acked is acked:
                effects[-1] = Confirm(state.id, last.first, seq, acked)
                return
        effects.append(Confirm(state.id, seq, seq, acked))


def _check_expiration(expiration: str) -> None:
    if not (expiration.isascii() and expiration.isdigit()):
        raise precondition_failed(f"invalid expiration '{expiration}': not a whole number of ms")


def _with_reply_address(state: ChannelState, message: Outgoing) -> Outgoing:
    """RabbitMQ: the pseudo-queue's name is replaced by an address that leads to this channel."""
    if state.reply_token is None:
        raise precondition_failed("fast reply consumer does not exist")
    address = f"{_REPLY_ADDRESS}{state.reply_token}"
    return message._replace(properties=message.properties._replace(reply_to=address))
