"""Commands of consumers: start and stop, take, settle, give back, touch."""

from __future__ import annotations

from broker_client.core.arguments import Arguments, consumer_message_timeout
from broker_client.core.commands.topology import NOTHING, Declared
from broker_client.core.outcomes import Done, NotInFlight, NotOwner, Outcome
from broker_client.core.queue import ChannelState, Consumer, Entry, Queue
from broker_client.core.replies import (
    access_refused,
    not_allowed,
    not_implemented,
    precondition_failed,
    unknown_delivery_tag,
)
from broker_client.core.restore import Recovery
from broker_client.core.settings import EngineSettings
from broker_client.core.transaction import Settlement
from broker_client.events.delivery_event import REASON_RECOVERED, REASON_REJECTED
from broker_client.message import Delivery

REPLY_TO = "amq.rabbitmq.reply-to"
"""The queue that is none: who consumes from it gets the replies to his own requests."""


class ConsumeCommands(Recovery):
    """The part of the engine that consumers talk to."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._repliers: dict[str, ChannelState] = {}

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
            self._dispatch.limit(state, prefetch, now)
        else:
            state.prefetch = prefetch

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
            return self._consume_replies(state, consumer_tag, no_ack)
        target = self._queue(channel, queue)
        arguments = arguments or NOTHING
        priority = arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise precondition_failed(f"Invalid arguments for consumer priority: {priority!r}")
        timeout = consumer_message_timeout(arguments, queue, self.settings.max_message_timeout)
        taken = any(consumer.exclusive for consumer in target.consumers)
        if taken or (exclusive and (target.consumers or target.settings.single_active)):
            raise access_refused(f"queue '{queue}' in vhost '{state.vhost}' in exclusive use")
        tag = consumer_tag or f"amq.ctag-{self._next_id()}"
        consumer = Consumer(
            tag,
            state,
            target,
            no_ack=no_ack,
            exclusive=exclusive,
            priority=priority,
            timeout=self._dispatch.timeout_of(target) if timeout is None else timeout,
            closes_on_timeout=timeout is None and target.settings.consumer_timeout is not None,
            now=now,
        )
        self._dispatch.add_consumer(consumer, now)
        return tag

    def _consume_replies(self, state: ChannelState, consumer_tag: str, no_ack: bool) -> str:
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        if state.reply_token is not None:
            raise precondition_failed("reply consumer already set")
        state.reply_token = token = self._new_token()
        state.reply_tag = consumer_tag or f"amq.ctag-{self._next_id()}"
        self._repliers[token] = state
        return state.reply_tag

    def _new_token(self) -> str:
        return str(self._next_id())

    def _forget_replies(self, state: ChannelState) -> None:
        if state.reply_token is not None:
            del self._repliers[state.reply_token]
            state.reply_token, state.reply_tag = None, ""

    def check_queue(self, channel: int, name: str, now: float) -> Declared:
        """Raises:
        ReplyError: 404 when there is none, 405 for another connection's exclusive queue.
        """
        if name == REPLY_TO or name.removeprefix(f"{REPLY_TO}.") in self._repliers:
            return Declared(name, 0, 1)
        return super().check_queue(channel, name, now)

    def cancel(self, channel: int, consumer_tag: str, now: float) -> None:
        """Stop a consumer, its deliveries staying in flight; harmless when unknown."""
        state = self._channels[channel]
        if consumer_tag and consumer_tag == state.reply_tag:
            self._forget_replies(state)
            return
        consumer = state.consumers.get(consumer_tag)
        if consumer is not None:
            self._dispatch.remove_consumer(consumer)
            self._consumer_left(consumer.queue, now)

    def get(
        self, channel: int, queue: str, now: float, *, no_ack: bool = False
    ) -> tuple[Delivery, int] | None:
        """Take the head and the number still ready after it; None when nothing is ready.

        Raises:
            ReplyError: 404 for the queue, 405 for another's exclusive queue.
        """
        target = self._queue(channel, queue)
        delivery = self._dispatch.take(target, self._channels[channel], no_ack, now)
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
                self._dispatch.ack(entry, now)
                return
        for entry in self._settle(state, delivery_tag, multiple):
            self._dispatch.ack(entry, now)

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
        self._give_away(self._settle(state, delivery_tag, multiple), requeue, delay, now)

    def _give_away(
        self, entries: list[Entry], requeue: bool, delay: float | None, now: float
    ) -> None:
        if not requeue:
            for entry in entries:
                self._dispatch.discard(entry, now)
        elif delay is not None:
            for entry in entries:
                self._dispatch.defer(entry, delay, now)
        else:
            self._dispatch.give_back(entries, now, REASON_REJECTED)

    def recover(self, channel: int, now: float, *, requeue: bool = True) -> None:
        """Requeue everything the channel has in flight (basic.recover).

        Raises:
            ReplyError: 540 (connection) without `requeue`, as RabbitMQ.
        """
        if not requeue:
            raise not_implemented("requeue=false")
        state = self._channels[channel]
        self._dispatch.give_back(state.ledger.settle_all(), now, REASON_RECOVERED)

    def touch(self, channel: int, delivery_tag: int, now: float) -> float:
        """Extend a delivery's time in flight; returns the seconds it has left.

        Raises:
            StaleDeliveryError: it is not in flight on this channel.
        """
        return self._dispatch.touch(self._channels[channel], delivery_tag, now)

    # ---------------------------------------------------------------- settling, nsq's way

    def finish(self, channel: int, delivery_tag: int, now: float) -> Outcome:
        """Settle one delivery for good (nsq's FIN)."""
        state = self._channels.get(channel)
        entry = None if state is None else state.ledger.settle(delivery_tag)
        if entry is None:
            return self._too_late(state, delivery_tag)
        self._dispatch.ack(entry, now)
        return Done()

    def requeue(
        self, channel: int, delivery_tag: int, now: float, *, delay: float = 0.0
    ) -> Outcome:
        """Give one delivery back (nsq's REQ): without `delay` to where it was, else to the tail
        after so many seconds, of which there are `max_requeue_timeout` at most."""
        state = self._channels.get(channel)
        entry = None if state is None else state.ledger.settle(delivery_tag)
        if entry is None:
            return self._too_late(state, delivery_tag)
        self._give_away([entry], True, delay if delay > 0 else None, now)
        return Done()

    def extend(self, channel: int, delivery_tag: int, now: float) -> Outcome:
        """Give one delivery more time (nsq's TOUCH)."""
        state = self._channels.get(channel)
        if state is None or delivery_tag not in state.ledger:
            return self._too_late(state, delivery_tag)
        return Done(self._dispatch.touch(state, delivery_tag, now))

    def _too_late(self, state: ChannelState | None, tag: int) -> Outcome:
        entry = None if state is None else state.ledger.lapsed(tag)
        if entry is None:
            return NotInFlight(tag)
        self._dispatch.late_settles += 1
        return NotOwner(tag) if entry.out else NotInFlight(tag)

    # ---------------------------------------------------------------- inside

    def _settle(self, state: ChannelState, tag: int, multiple: bool) -> list[Entry]:
        ledger = state.ledger
        if multiple and tag == 0:
            return ledger.settle_all()  # AMQP 0-9-1 §1.8.3.13: all outstanding
        if tag not in ledger:
            if not ledger.forgives(tag):
                raise unknown_delivery_tag(tag)
            self._dispatch.late_settles += 1
            return ledger.settle_through(tag) if multiple else []
        entry = ledger.settle(tag) if not multiple else None
        return [entry] if entry is not None else ledger.settle_through(tag)

    def _tags(self, state: ChannelState, tag: int, multiple: bool) -> tuple[int, ...]:
        """What a settlement in a transaction is about; each may be settled once in it."""
        transaction, ledger = state.transaction, state.ledger
        assert transaction is not None, "called in a transaction only"
        if not (multiple and tag == 0):
            if tag in transaction.tags or (tag not in ledger and not ledger.forgives(tag)):
                raise unknown_delivery_tag(tag)
            if not multiple:
                return (tag,)
        return tuple(
            each
            for each, _ in ledger.items()
            if (tag == 0 or each <= tag) and each not in transaction.tags
        )

    def _consumer_left(self, queue: Queue, now: float) -> None:
        if queue.deleted or queue.consumers:
            self._dispatch.pump(queue, now)  # another may have become active
        elif queue.auto_delete:
            self._delete_queue(queue)  # with its last consumer
        else:
            self._used(queue, now)
