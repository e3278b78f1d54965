"""Commands of consumers: start and stop, take, settle, give back, touch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from functools import partial
from itertools import filterfalse
from typing import TypedDict

from broker_client.core.arguments import (
    Arguments,
    consumer_message_timeout,
    consumer_priority,
)
from broker_client.core.bulk import Bulk
from broker_client.core.commands.topology import NOTHING
from broker_client.core.delivering import time_limit
from broker_client.core.direct_reply import REPLY_TO, DirectReplies
from broker_client.core.queue import NEVER, ChannelState, Entry, QueueConsumer
from broker_client.core.replies import (
    access_refused,
    not_allowed,
    not_implemented,
    unknown_delivery_tag,
)
from broker_client.core.settle_results import Done, NotInFlight, NotOwner, SettleResult
from broker_client.core.state import State
from broker_client.core.transaction import Settlement
from broker_client.core.transitions import Transitions
from broker_client.events.delivery_event import REASON_RECOVERED, REASON_REJECTED
from broker_client.message import Delivery


class BasicConsumeArguments(TypedDict, total=False):
    """Options of basic.consume."""

    consumer_tag: str
    no_ack: bool
    exclusive: bool
    arguments: Arguments | None


class ConsumeCommands:
    """Start and stop consumers, take messages, settle deliveries."""

    def __init__(
        self, state: State, transitions: Transitions, bulk: Bulk, replies: DirectReplies
    ) -> None:
        self._state, self._transitions, self._replies = state, transitions, replies
        self._bulk = bulk
        self._channels = state.channels

    # ---------------------------------------------------------------- consumers

    def qos(self, channel: int, prefetch: int, now: float = 0.0, *, shared: bool = False) -> None:
        """Set how many unsettled deliveries are allowed; 0 is no limit.

        Args:
            channel: whose consumers.
            prefetch: to each consumer started after this; where `shared`, to all
                consumers of the channel together, and at once (basic.qos, global).
            now: the time; needed where `shared`.
            shared: one limit for all.
        """
        state = self._channels[channel]
        if shared:
            self._transitions.share_prefetch(state, prefetch, now)
        else:
            state.prefetch = prefetch

    def flow(self, channel: int, active: bool, now: float) -> None:
        """Stop deliveries to the consumers of a channel, or go on with them (channel.flow).

        What is in flight stays there; `get` goes on, and so do replies to requests, which wait in
        no queue.
        """
        self._transitions.set_flow(self._channels[channel], active, now)

    def consume(
        self,
        channel: int,
        queue: str,
        now: float,
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
    ) -> str:
        """Start a consumer; returns its tag.

        Args:
            channel: gets the deliveries.
            queue: where from; `amq.rabbitmq.reply-to` for replies to this channel's requests.
            now: the time.
            consumer_tag: its name on the channel; one is made when it is empty.
            no_ack: settle as it is sent.
            exclusive: allow no other consumer.
            arguments: `x-priority`, and `x-message-timeout`: milliseconds a delivery to this
                consumer may be in flight (nsq's msg_timeout).

        Raises:
            ReplyError: 404 for the queue, 403 when it is in exclusive use, 405, 406 for a bad
                argument, 530 (connection) for a tag in use.
        """
        state = self._channels[channel]
        if consumer_tag and (consumer_tag in state.consumers or consumer_tag == state.reply_tag):
            raise not_allowed(f"attempt to reuse consumer tag '{consumer_tag}'")
        if queue == REPLY_TO:
            return self._replies.consume(state, consumer_tag, no_ack)
        target = self._state.queue(channel, queue)
        arguments = arguments or NOTHING
        priority = consumer_priority(arguments, queue, state.vhost)
        timeout = consumer_message_timeout(
            arguments, queue, self._state.settings.max_message_timeout
        )
        ends, has_own_timeout = False, timeout is not None
        if timeout is None:
            timeout, ends = time_limit(self._state.settings, target, state)
        taken = any(consumer.exclusive for consumer in target.consumers)
        if taken or (exclusive and (target.consumers or target.settings.single_active)):
            raise access_refused(f"queue '{queue}' in vhost '{state.vhost}' in exclusive use")
        tag = consumer_tag or f"amq.ctag-{self._state.next_id()}"
        consumer = QueueConsumer(
            tag,
            state,
            target,
            no_ack=no_ack,
            exclusive=exclusive,
            priority=priority,
            timeout=timeout,
            closes_on_timeout=ends and not target.settings.cancels_on_timeout,
            cancelled_on_timeout=ends and target.settings.cancels_on_timeout,
            since=now,
            has_own_timeout=has_own_timeout,
        )
        self._transitions.add_consumer(consumer, now)
        return tag

    def cancel(self, channel: int, consumer_tag: str, now: float) -> None:
        """Stop a consumer, its deliveries staying in flight; no error when unknown."""
        state = self._channels[channel]
        if consumer_tag and consumer_tag == state.reply_tag:
            self._replies.stop(state)
            return
        consumer = state.consumers.get(consumer_tag)
        if consumer is not None:
            self._transitions.remove_consumer(consumer)
            self._transitions.consumer_left(consumer.queue, now)

    def get(
        self, channel: int, queue: str, now: float, *, no_ack: bool = False
    ) -> tuple[Delivery, int] | None:
        """Take the head and the number still ready after it; None when nothing is ready.

        Raises:
            ReplyError: 404 for the queue, 405 for another's exclusive queue.
        """
        target = self._state.queue(channel, queue)
        delivery = self._transitions.take(target, self._channels[channel], no_ack, now)
        return None if delivery is None else (delivery, len(target.ready))

    # ---------------------------------------------------------------- settling, AMQP's way

    def ack(self, channel: int, delivery_tag: int, now: float, *, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            tags = self._tags(state, delivery_tag, multiple)
            state.transaction.settle(Settlement(tags, True, False))
            return
        if not multiple:
            entry = state.ledger.settle(delivery_tag)
            if entry is not None:
                self._transitions.ack(entry, now)
                return
        entries = self._settle(state, delivery_tag, multiple)
        self._bulk.settle_each(entries, self._transitions.ack, now)

    def ack_each(self, channel: int, delivery_tags: Iterable[int], now: float) -> None:
        """Settle each of the deliveries; then deliver to the freed prefetch.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before; those before it are settled.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            for tag in delivery_tags:
                self.ack(channel, tag, now)
            return
        settle = state.ledger.settle
        entries: list[Entry] = []
        try:
            for tag in delivery_tags:
                entry = settle(tag)
                if entry is None:
                    entries += self._settle(state, tag, False)
                else:
                    entries.append(entry)
        finally:
            self._transitions.ack_each(entries, now)

    def nack(
        self,
        channel: int,
        delivery_tag: int,
        now: float,
        *,
        requeue: bool = True,
        multiple: bool = False,
        delay: float | None = None,
    ) -> None:
        """Give deliveries away, back to where they were, or to the tail after `delay` seconds.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            tags = self._tags(state, delivery_tag, multiple)
            state.transaction.settle(Settlement(tags, False, requeue, delay))
            return
        entries = self._settle(state, delivery_tag, multiple)
        self._give_away(state, entries, requeue, delay, now)

    def release(
        self, channel: int, delivery_tag: int, now: float, *, multiple: bool = False
    ) -> None:
        """Give a delivery, or all up to it, back to where it was: it does not count as an attempt.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before.
        """
        state = self._channels[channel]
        if state.transaction is not None:
            self.nack(channel, delivery_tag, now, multiple=multiple)
        else:
            self._bulk.release(state, self._settle(state, delivery_tag, multiple), now)

    def _give_away(
        self,
        state: ChannelState,
        entries: Collection[Entry],
        requeue: bool,
        delay: float | None,
        now: float,
    ) -> None:
        """Reject deliveries, defer them or requeue them, taken from their ledger."""
        if not requeue:
            self._bulk.settle_each(entries, self._transitions.reject, now)
        elif delay is not None:
            defer = partial(self._transitions.defer, delay)
            self._bulk.settle_each(entries, defer, now)
        else:
            self._bulk.requeue(state, entries, now, REASON_REJECTED)

    def recover(self, channel: int, now: float, *, requeue: bool = True) -> None:
        """Requeue everything the channel has in flight (basic.recover).

        Raises:
            ReplyError: 540 (connection) without `requeue`, as RabbitMQ.
        """
        if not requeue:
            raise not_implemented("requeue=false")
        state = self._channels[channel]
        self._state.finish_commits(state)
        self._bulk.requeue(state, state.ledger.settle_all(), now, REASON_RECOVERED)

    # ---------------------------------------------------------------- settling, nsq's way

    def finish(self, channel: int, delivery_tag: int, now: float) -> SettleResult:
        """Settle one delivery for good (nsq's FIN)."""
        state = self._channels.get(channel)
        if state is not None and state.committing:
            self._state.finish_commits(state)
        entry = None if state is None else state.ledger.settle(delivery_tag)
        if entry is None:
            return self._too_late(state, delivery_tag)
        self._transitions.ack(entry, now)
        return Done()

    def requeue(
        self, channel: int, delivery_tag: int, now: float, *, delay: float = 0.0
    ) -> SettleResult:
        """Give one delivery back (nsq's REQ): without `delay` to where it was, else to the tail
        after so many seconds, of which there are `max_requeue_timeout` at most."""
        state = self._channels.get(channel)
        if state is not None and state.committing:
            self._state.finish_commits(state)
        entry = None if state is None else state.ledger.settle(delivery_tag)
        if state is None or entry is None:
            return self._too_late(state, delivery_tag)
        self._give_away(state, [entry], True, delay if delay > 0 else None, now)
        return Done()

    def touch(self, channel: int, delivery_tag: int, now: float) -> SettleResult:
        """Give one delivery more time (nsq's TOUCH); `Done` has the seconds left."""
        state = self._channels.get(channel)
        entry = None if state is None else state.ledger.get(delivery_tag)
        if state is None or entry is None:
            return self._too_late(state, delivery_tag)
        settings = self._state.settings
        if entry.consumer is not None:
            timeout = entry.consumer.timeout
        else:
            timeout, _ = time_limit(settings, entry.queue, state)
        if not timeout:
            return Done(NEVER)
        at = min(now + timeout, entry.delivered_at + settings.max_message_timeout)
        return Done(max(0.0, state.ledger.extend(delivery_tag, at) - now))

    def _too_late(self, state: ChannelState | None, tag: int) -> SettleResult:
        entry = None if state is None else state.ledger.lapsed(tag)
        if entry is None:
            return NotInFlight(tag)
        self._state.late_settles += 1
        return NotOwner(tag) if entry.in_flight else NotInFlight(tag)

    # ---------------------------------------------------------------- inside

    def _settle(self, state: ChannelState, tag: int, multiple: bool) -> Collection[Entry]:
        ledger = state.ledger
        if multiple and tag == 0:
            return ledger.settle_all()  # AMQP 0-9-1 §1.8.3.13: all outstanding
        if tag not in ledger:
            if not ledger.forgives(tag):
                raise unknown_delivery_tag(tag)
            self._state.late_settles += 1
            return ledger.settle_through(tag) if multiple else []
        entry = ledger.settle(tag) if not multiple else None
        return [entry] if entry is not None else ledger.settle_through(tag)

    def _tags(self, state: ChannelState, tag: int, multiple: bool) -> tuple[int, ...]:
        """The deliveries of a settlement in a transaction; each may be settled once in it."""
        self._state.finish_commits(state)
        transaction, ledger = state.transaction, state.ledger
        assert transaction is not None, "called in a transaction only"
        if not (multiple and tag == 0):
            if tag in transaction.tags or (tag not in ledger and not ledger.forgives(tag)):
                raise unknown_delivery_tag(tag)
            if not multiple:
                return (tag,)
        tags = ledger.tags()
        if tag:
            del tags[bisect_right(tags, tag) :]
        return tuple(filterfalse(transaction.tags.__contains__, tags))
