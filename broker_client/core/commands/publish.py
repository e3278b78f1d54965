"""Commands of publishers: publish, now or later, in a transaction or not, with confirms or not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from broker_client.amqp.properties import ReceivedProperties
from broker_client.amqp.tables import has_none_of, replaced
from broker_client.core.arguments import LONGEST_EXPIRATION, wire_type
from broker_client.core.bulk import Bulk
from broker_client.core.commands.topology import NOTHING
from broker_client.core.dead_lettering import OUR_DEATHS
from broker_client.core.delivering import HIDDEN, without
from broker_client.core.direct_reply import REPLY_TO, DirectReplies
from broker_client.core.effects import Return
from broker_client.core.queue import ChannelState, Entry, Queue
from broker_client.core.records import TransactionBegun, TransactionEnded
from broker_client.core.replies import precondition_failed
from broker_client.core.state import State
from broker_client.core.transaction import Settlement, Transaction
from broker_client.core.transitions import Transitions
from broker_client.errors import ReplyError
from broker_client.events.delivery_event import REASON_REJECTED
from broker_client.message import Headers, Outgoing, Properties, Returned

_OURS = frozenset(("CC", "BCC", "x-delay", OUR_DEATHS))
"""Headers that affect a publish."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FEW_DIGITS = len(str(LONGEST_EXPIRATION))
_PUBLISH = 15
"""What a publish of a transaction costs; see `STEP`."""
_SHORT = 25  # publishes and settlements that are one step
_MOST_DIGITS = 255  # of a short string; Python refuses to read numbers of thousands


class PublishCommands:
    """Publish, confirm, and hold back what belongs to a transaction."""

    def __init__(
        self,
        state: State,
        transitions: Transitions,
        bulk: Bulk,
        replies: DirectReplies,
    ) -> None:
        self._state, self._transitions, self._replies = state, transitions, replies
        self._bulk = bulk
        self._channels, self._vhosts = state.channels, state.vhosts
        self._observer = state.observer
        self._largest_body = state.settings.message_size_limit or sys.maxsize

    # ---------------------------------------------------------------- publishing

    def publish(self, channel: int, message: Outgoing, now: float) -> None:
        """As `publish_each`, for one."""
        self.publish_each(channel, (message,), now)

    def publish_each(self, channel: int, messages: Iterable[Outgoing], now: float) -> None:
        """Route, store in every queue, deliver; then return it or confirm it: one after the other,
        up to the first that is refused.

        With the header `x-delay` (milliseconds) a message waits in each queue it is routed to,
        and becomes ready when the time is over; see docs/core.md for why there.

        Raises:
            ReplyError: 404 or 403 for the exchange, 406 for a body that is too large, for bad CC,
                BCC, x-delay or expiration, or for a reply_to that asks for direct replies without
                a consumer of them.
        """
        state = self._channels[channel]
        vhost = self._vhosts[state.vhost]
        put, largest = self._transitions.put, self._largest_body
        for message in messages:
            properties = message.properties
            if len(message.body) > largest:
                raise self._too_large(message)
            if properties.expiration is not None:
                _check_expiration(properties.expiration)
            if properties.reply_to == REPLY_TO:
                message = self._replies.with_address(state, message)
            if state.transaction is not None:
                vhost.check_publish(message.exchange)
                self._prepare(message)
                state.transaction.publishes.append(message)
                continue
            headers = properties.headers
            delay = 0.0
            queues: tuple[Queue, ...] | None
            if headers is not None and not _has_none(properties, headers, _OURS):
                vhost.check_publish(message.exchange)
                message, keys, delay = self._prepare(message)
                queues = vhost.route(message.exchange, keys, headers)
            else:
                queues = vhost.routes.get(message[:2])
                if queues is None:
                    queues = vhost.route_publish(message.exchange, message.routing_key)
                if queues is None:
                    queues = vhost.route(
                        message.exchange, (message.routing_key,), headers or NOTHING
                    )
            if self._observer is not None:
                self._observer.published(state, message, now)
            acked = True
            if delay:
                for queue in queues:
                    self._transitions.put_later(queue, message, now + delay, now)
            else:
                for queue in queues:
                    if not put(queue, message, now):
                        acked = False
            if not queues and not self._is_answer(message):
                self._unroutable(state, message, now)
            if state.confirms:
                if state.confirms_from and state.confirms_ack is acked:
                    state.publish_seq += 1  # as `State.confirm`, for all but the first of a run
                else:
                    self._state.confirm(state, acked)

    def _is_answer(self, message: Outgoing) -> bool:
        """Deliver a direct reply; False when `message` is to come back where it is mandatory.

        RabbitMQ: up to 4.2 the address of a reply is not a queue, so a mandatory one comes back
        although it arrives; from then on none comes back whose address was given out.
        """
        delivered = self._replies.deliver(message)
        if self._state.settings.compatibility < (4, 3):
            return delivered and not message.mandatory
        return delivered or self._replies.gave_out(message)

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
            if not isinstance(more, list):
                raise precondition_failed(
                    f'invalid message: {{unacceptable_type_in_header,"{name}",{wire_type(more)}}}'
                )
            keys.extend(key for key in more if isinstance(key, str))  # RabbitMQ skips the others
        delay = self._delay(headers.get("x-delay"))
        negated = {"x-delay": -int(headers["x-delay"])} if delay else {}
        if negated or headers.get(OUR_DEATHS) is not None:
            properties = message.properties
            if type(properties) is ReceivedProperties and properties.headers is not None:
                kept = replaced(properties.headers, (OUR_DEATHS,), negated)
            else:
                kept = replaced(headers, (OUR_DEATHS,), negated)
            message = message._replace(properties=properties._replace(headers=kept))
        return message, keys, delay

    def _delay(self, milliseconds: Any) -> float:
        """Seconds; none where the header was negated by an earlier delay, or is not a number.

        RabbitMQ's plugin reads a number in text as such, and ignores what is none.
        """
        if isinstance(milliseconds, str) and milliseconds.isascii() and milliseconds.isdecimal():
            milliseconds = int(milliseconds[:20])
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int):
            return 0.0
        most = int(self._state.settings.max_publish_delay * 1000)
        if milliseconds > most:
            raise precondition_failed(f"x-delay {milliseconds} is above the most allowed, {most}")
        return max(0, milliseconds) / 1000

    def _unroutable(self, state: ChannelState, message: Outgoing, now: float) -> None:
        if self._observer is not None:
            self._observer.unroutable(state, message, now)
        if message.mandatory:
            exchange, routing_key, body, properties = message[:4]
            headers = properties.headers
            if headers is not None and not (
                type(properties) is ReceivedProperties and has_none_of(headers, HIDDEN)
            ):
                hide = replaced if type(properties) is ReceivedProperties else without
                properties = properties._replace(headers=hide(headers, HIDDEN))
            returned = Returned(312, "NO_ROUTE", exchange, routing_key, body, properties)
            self._state.effects.append(Return(state.id, returned))

    # ---------------------------------------------------------------- transactions

    def tx_select(self, channel: int) -> None:
        """Hold publishes and settlements back until `tx_commit`; may be called more than once.

        Raises:
            ReplyError: 406 on a channel with confirms.
        """
        state = self._channels[channel]
        if state.confirms:
            raise precondition_failed("cannot switch from confirm to tx mode")
        if state.transaction is None:
            state.transaction = Transaction()

    def tx_commit(self, channel: int, now: float) -> None:
        """Carry out the transaction: publishes first, then settlements (RabbitMQ).

        A long one is carried out in steps, while others publish and consume; a store keeps all of
        it, or nothing. Whatever else the channel asks for waits until it is done.

        Raises:
            ReplyError: 406 on a channel that is not in transaction mode.
        """
        state, transaction = self._transaction(channel)
        state.transaction = Transaction()
        state.committing += 1
        self._state.long_work.begin(self._commit_each(state, transaction), now)

    def _commit_each(self, state: ChannelState, transaction: Transaction) -> Iterator[int]:
        is_long = len(transaction.publishes) + len(transaction.tags) > _SHORT
        if is_long:
            self._state.note(TransactionBegun())
        for message in _first_to_last(transaction.publishes):
            self._publish_now(state, message)
            yield _PUBLISH
        for settlement in transaction.settlements:
            yield from self._settle_each(state, settlement)
        state.committing -= 1
        if is_long:
            self._state.note(TransactionEnded())

    def _publish_now(self, state: ChannelState, message: Outgoing) -> None:
        now = self._state.long_work.now
        following, state.transaction = state.transaction, None
        try:
            self.publish(state.id, message, now)
        except ReplyError:
            self._unroutable(state, message, now)  # its exchange is deleted since
        finally:
            state.transaction = following

    def _settle_each(self, state: ChannelState, settlement: Settlement) -> Iterator[int]:
        tags, acked, requeue, delay = settlement
        transitions = self._transitions
        if acked:
            return self._bulk.settling(self._taken(state, tags), transitions.ack)
        if not requeue:
            return self._bulk.settling(self._taken(state, tags), transitions.reject)
        if delay is not None:
            defer = partial(transitions.defer, delay)
            return self._bulk.settling(self._taken(state, tags), defer)
        entries = self._taken(state, reversed(tags))
        return self._bulk.returning(state.sources(), entries, REASON_REJECTED)

    def _taken(self, state: ChannelState, tags: Iterable[int]) -> Iterator[Entry]:
        settle = state.ledger.settle
        for tag in tags:
            entry = settle(tag)
            if entry is None:
                self._state.late_settles += 1  # it timed out since, or was purged
            else:
                yield entry

    def tx_rollback(self, channel: int) -> None:
        """Discard the transaction; deliveries stay in flight, and can be settled again.

        Raises:
            ReplyError: 406 on a channel that is not in transaction mode.
        """
        state, transaction = self._transaction(channel)
        state.transaction = Transaction()
        self.discard(transaction)

    def discard(self, transaction: Transaction) -> None:
        """Free the messages of a transaction that is not to be carried out, many in steps."""
        discarded = _first_to_last(transaction.publishes)
        self._state.long_work.begin(1 for _ in discarded)

    def _transaction(self, channel: int) -> tuple[ChannelState, Transaction]:
        state = self._channels[channel]
        if state.transaction is None:
            raise precondition_failed("channel is not transactional")
        return state, state.transaction

    # ---------------------------------------------------------------- confirms

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on; may be called more than once.

        Raises:
            ReplyError: 406 on a channel in transaction mode.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            raise precondition_failed("cannot switch from tx to confirm mode")
        state.confirms = True


def _first_to_last(messages: list[Outgoing]) -> Iterator[Outgoing]:
    """One after the other, so that its memory goes with it."""
    messages.reverse()
    while messages:
        yield messages.pop()


def _check_expiration(expiration: str) -> None:
    """Refuse what is not a whole number of milliseconds, for RabbitMQ's reasons."""
    if expiration.isascii() and expiration.isdigit() and len(expiration) < _FEW_DIGITS:
        return
    number = _INTEGER.match(expiration)
    if number is None:
        reason = "no_integer"
    elif number.end() < len(expiration):
        reason = f'{{leftover_string,"{expiration[number.end() :]}"}}'
    elif expiration.startswith("-") and number[0].strip("-0"):
        reason = f"{{value_negative,-{number[0].lstrip('-0')}}}"
    elif len(number[0]) > _MOST_DIGITS or int(number[0]) > LONGEST_EXPIRATION:
        reason = f"{{value_too_large,{number[0].lstrip('+0')}}}"
    else:
        return
    raise precondition_failed(f"invalid expiration '{expiration}': {reason}")


def _has_none(properties: Properties, headers: Headers, names: frozenset[str]) -> bool:
    """True if `headers` has none of `names`.

    Headers of an application in this process are decoded for it, so that those that cannot be are
    refused here and not by their consumer; a server has checked those of its clients.
    """
    if type(properties) is ReceivedProperties:
        return has_none_of(headers, names)
    return names.isdisjoint(headers)
