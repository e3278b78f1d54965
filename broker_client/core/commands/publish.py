"""Commands of publishers: publish, now or later, in a transaction or not, with confirms or not."""

from __future__ import annotations

import sys
from typing import Any

from broker_client.core.commands.consume import REPLY_TO, ConsumeCommands
from broker_client.core.commands.topology import NOTHING
from broker_client.core.effects import Confirm, Deliver, Return
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.records import Append
from broker_client.core.replies import precondition_failed
from broker_client.core.settings import EngineSettings
from broker_client.core.transaction import Transaction
from broker_client.errors import ReplyError
from broker_client.message import Delivery, Outgoing, Returned

_OURS = frozenset(("CC", "BCC", "x-delay"))
"""Headers that mean something to a publish."""
_LONGEST_EXPIRATION = 315_360_000_000  # milliseconds; RabbitMQ: ten years of 365 days
_REPLY_ADDRESS = f"{REPLY_TO}."
_new = tuple.__new__  # a named tuple's own constructor is a Python call


class PublishCommands(ConsumeCommands):
    """The part of the engine that publishers talk to."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._effects = self._dispatch.effects
        self._largest_body = settings.max_message_size or sys.maxsize

    # ---------------------------------------------------------------- publishing

    def publish(self, channel: int, message: Outgoing, now: float) -> None:
        """Route, store in every queue, deliver; then return it or confirm it.

        With the header `x-delay` (milliseconds) the message waits in each queue it is routed to,
        and becomes ready when the time is over; see docs/core.md for why there.

        Raises:
            ReplyError: 404 or 403 for the exchange, 406 for a body that is too large, for bad CC,
                BCC, x-delay or expiration, or for a reply_to that asks for direct replies without
                a consumer of them.
        """
        state = self._channels[channel]
        properties = message.properties
        if len(message.body) > self._largest_body:
            raise self._too_large(message)
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
        vhost = self.vhosts[state.vhost]
        headers = properties.headers
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
        # RabbitMQ: a direct reply reaches no queue, so a mandatory one comes back all the same.
        if not queues and (not self._reply(message) or message.mandatory):
            self._unroutable(state, message, now)
        if state.confirms:
            self._confirm(state, acked)

    def _too_large(self, message: Outgoing) -> ReplyError:
        return precondition_failed(
            f"message size {len(message.body)} is larger than configured max size "
            f"{self._largest_body}"
        )

    def _prepare(self, message: Outgoing) -> tuple[Outgoing, list[str], float]:
        """The message as it is kept, its routing keys, and its delay.

        CC and BCC add routing keys (RabbitMQ's sender-selected distribution). BCC stays in the
        headers while the message is here, since its dead letters go there too, and is taken off
        as it is delivered. An x-delay is negated, as RabbitMQ's plugin does, so that a copy of
        the headers does not delay again.
        """
        headers = dict(message.properties.headers or {})
        keys = [message.routing_key]
        for name in ("CC", "BCC"):
            more = headers.get(name, [])
            if not isinstance(more, list) or not all(isinstance(key, str) for key in more):
                raise precondition_failed(f"header '{name}' is not an array of strings")
            keys.extend(more)
        delay = self._delay(headers["x-delay"]) if "x-delay" in headers else 0.0
        if delay:
            headers["x-delay"] = -headers["x-delay"]
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
        if self._dispatch.observer is not None:
            self._dispatch.observer.unroutable(state, message, now)
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
                self.publish(channel, message, now)
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

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on; harmless when repeated.

        Raises:
            ReplyError: 406 on a channel in transaction mode.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            raise precondition_failed("cannot switch from tx to confirm mode")
        state.confirms = True

    def _confirm(self, state: ChannelState, acked: bool) -> None:
        state.publish_seq = first = last = state.publish_seq + 1
        effects = self._effects
        # Joined to the confirm before it: the last effect, or the last but the record of this
        # message, behind which it then waits. A thousand confirms are carried out as one.
        between = effects.pop() if effects and type(effects[-1]) is Append else None
        if effects:
            before = effects[-1]
            if type(before) is Confirm and before.channel == state.id and before.acked is acked:
                first = before.first
                del effects[-1]
        if between is not None:
            effects.append(between)
        effects.append(_new(Confirm, (state.id, first, last, acked)))


def _check_expiration(expiration: str) -> None:
    if not (expiration.isascii() and expiration.isdigit()):
        raise precondition_failed(f"invalid expiration '{expiration}': not a whole number of ms")
    if int(expiration) > _LONGEST_EXPIRATION:
        raise precondition_failed(f"invalid expiration '{expiration}': value too big")


def _with_reply_address(state: ChannelState, message: Outgoing) -> Outgoing:
    """RabbitMQ: the pseudo-queue's name is replaced by an address that leads to this channel."""
    if state.reply_token is None:
        raise precondition_failed("fast reply consumer does not exist")
    address = f"{_REPLY_ADDRESS}{state.reply_token}"
    return message._replace(properties=message.properties._replace(reply_to=address))
