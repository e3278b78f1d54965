"""Recovery: a chain of strategies, tried in order, for a delivery whose handler failed.

The strategies and the headers they write are rascal's, with its flaws fixed:
`ack` acks, a copy is mandatory and confirmed before the original is acked, a
strategy that fails passes on to the next and never acks, and the last resort is a nack without
requeue, which a dead-letter exchange catches. Only where a copy could not be had because the
broker was away, full or silent does the message go back to its queue at the end of the chain:
that says nothing about the message, and without a dead-letter exchange it would be lost. A message
whose headers leave no room for its history goes back, too, as often as the strategy would have
copied it; where nothing is to be counted, its copy goes out without a history.

A broker dead-letters with the routing key of the copy it has, which for a republished message is
the name of its queue; a direct or topic exchange may not know that key and drop the message. Where
the configuration tells that it may, `nack` publishes the dead letter itself, with the first key,
and acks: at least once, as `republish` is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from enum import Enum

from broker_client.config import Ack, Forward, Nack, Republish, Strategy
from broker_client.connection.retry import growing
from broker_client.consuming import recovery_headers, replies
from broker_client.consuming.delivery import DeliveryOutcome, UnackedDelivery
from broker_client.consuming.recovery_copies import RecoveryCopies, is_unsendable
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.unacked import Unacked
from broker_client.errors import (
    BrokerClientError,
    InvalidMessageError,
    MessageReturnedError,
    PublishError,
    PublishRefusedError,
    RecoveryFailedError,
    described,
)
from broker_client.message import Message
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.tasks import TaskGroup

log: logging.Logger = logging.getLogger("broker_client.subscription")

_LAST_RESORT = Nack.model_construct()
_VERDICTS = (MessageReturnedError, PublishRefusedError)
"""Errors of a copy that another attempt would not avoid."""
_RETURNS_REMEMBERED = 10_000  # messages


class _End(Enum):
    """Result of one strategy."""

    SETTLED = "settled"
    NOT_DONE = "not done"
    UNDECIDED = "undecided"
    """The broker did not decide on the copy."""


class Recovery:
    """Settles the deliveries of one subscription: acks, or runs chains of recovery strategies."""

    def __init__(
        self,
        setup: ConsumingSetup,
        publisher: Publisher,
        unacked: Unacked,
        tasks: TaskGroup,
        reports: Reports,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            publisher: publishes copies.
            unacked: where the deliveries are until they are settled.
            tasks: owner of the tasks that recovery runs in.
            reports: notified of strategies that failed.
        """
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        """The event loop that deliveries are settled in."""
        self.can_defer = False
        """True while the broker itself requeues a message after a delay."""
        self.answers_failures = False
        """True where requests that fail are answered."""
        self.unacked = unacked
        self._setup = setup
        self._config = setup.config
        self._publisher = publisher
        self._copies = RecoveryCopies(setup, publisher)
        self._tasks = tasks
        self._reports = reports
        self._closing = asyncio.Event()
        self._returns: OrderedDict[str, int] = OrderedDict()
        self._deferred = 0  # recoveries that wait here, each in a place of the prefetch
        self._is_saturated = False

    def close(self) -> None:
        """End every wait for a `defer`: those messages are released at once."""
        self._closing.set()

    def ack(self, entry: UnackedDelivery, *, all: bool) -> None:
        """Ack `entry`; with `all`, every delivery of its channel up to it, too."""
        self.unacked.ack(entry, all=all)
        if self._returns:
            self._forget_returns(entry.message)

    async def run(
        self,
        entry: UnackedDelivery,
        chain: tuple[Strategy, ...],
        error: BaseException | str,
        *,
        all: bool,
        is_own: bool,
    ) -> None:
        """Try the strategies of `chain` until one has settled `entry`.

        A message that is dead-lettered is logged where the chain `is_own`, the subscription's; a
        handler that chose another knows what it did.

        Once begun, this runs to its end, also when the caller is cancelled.
        """
        running = self._tasks.spawn(
            self._run(entry, chain, error, all=all, is_own=is_own), "recovery"
        )
        await asyncio.shield(running)

    async def _run(
        self,
        entry: UnackedDelivery,
        chain: tuple[Strategy, ...],
        error: BaseException | str,
        *,
        all: bool,
        is_own: bool,
    ) -> None:
        last_resort = _LAST_RESORT
        for strategy in chain:
            end = await self._try(entry, strategy, error, all=all)
            if end is _End.SETTLED:
                break
            if end is _End.UNDECIDED:
                last_resort = self._requeue(entry.message)
        else:
            await self._try(entry, last_resort, error, all=all)
        if entry.is_refused:
            if is_own:
                self._log_dead_letter(entry.message, error)
            self._reports.emit("dead_lettered", entry.message, error)
        if self.answers_failures and entry.message.properties.reply_to:
            await self._answer(entry, error)

    def _log_dead_letter(self, message: Message, error: BaseException | str) -> None:
        text = described(error) if isinstance(error, BaseException) else error
        log.warning(
            "subscription %s: message %s was dead-lettered (dropped, if %s has no dead-letter "
            "exchange) after %d %s: %s",
            self._config.name,
            message.message_id,
            self._setup.queue,
            message.tries,
            "try" if message.tries == 1 else "tries",
            text,
        )

    async def _answer(self, entry: UnackedDelivery, error: BaseException | str) -> None:
        """Answer that the request failed: when the message is given up or, if the
        default chain would try forever, at the first failure."""
        message = entry.message
        match entry.outcome:
            case DeliveryOutcome.ACKED:
                is_due = True
            case DeliveryOutcome.NACKED:
                is_first = self._config.recovery is None and message.tries == 1
                is_due = entry.is_refused or is_first
            case _:
                is_due = self._config.options.no_ack
        if is_due:
            try:
                await self._publisher.republish(message.vhost, replies.failure(message, error))
            except BrokerClientError as failure:
                log.warning(
                    "message %s: its requester was not notified: %s", message.message_id, failure
                )

    def default_chain(self, message: Message) -> tuple[Strategy, ...]:
        """The configured chain; without one, requeue after a growing delay.

        The wait keeps a message that always fails from going round as fast as it can. A stream
        takes nothing back, so there the message is passed over.
        """
        if self._config.recovery is not None:
            return self._config.recovery
        return (self._requeue(message),)

    def _requeue(self, message: Message) -> Nack:
        """Requeue `message` after a growing delay; a stream cannot take a message back."""
        if self._setup.is_stream:
            return Nack()
        return Nack(
            requeue=True, defer=growing(self._config.requeue_defer, self.returns_of(message))
        )

    def returns_of(self, message: Message) -> int:
        """How often `message` was requeued after a failure, as far as remembered."""
        return self._returns.get(_key_of(message), 0)

    def _count_return(self, message: Message) -> None:
        key = _key_of(message)
        self._returns[key] = self._returns.pop(key, 0) + 1
        while len(self._returns) > _RETURNS_REMEMBERED:
            self._returns.popitem(last=False)

    def _forget_returns(self, message: Message) -> None:
        self._returns.pop(_key_of(message), None)

    # ------------------------------------------------------------------ strategies

    async def _try(
        self,
        entry: UnackedDelivery,
        strategy: Strategy,
        error: BaseException | str,
        *,
        all: bool,
    ) -> _End:
        try:
            return _End.SETTLED if await self._apply(entry, strategy, error, all) else _End.NOT_DONE
        except BrokerClientError as failure:
            self._report_failure(entry, strategy, str(failure))
            if is_unsendable(failure) and self._may_return(entry.message, strategy):
                return await self._try(entry, self._requeue(entry.message), error, all=all)
            is_decided = not isinstance(failure, PublishError) or isinstance(failure, _VERDICTS)
            return _End.NOT_DONE if is_decided else _End.UNDECIDED
        except Exception as failure:
            # A fault of ours must not keep the message, and a place in the prefetch, forever.
            log.exception("recovery %r of message %s", strategy, entry.message.message_id)
            self._report_failure(entry, strategy, described(failure))
            return _End.NOT_DONE

    def _report_failure(self, entry: UnackedDelivery, strategy: Strategy, reason: str) -> None:
        error = RecoveryFailedError(strategy.strategy, entry.message.message_id, reason)
        self._reports.warn("recovery_failed", error, text="%s", values=(error,))

    async def _apply(
        self, entry: UnackedDelivery, strategy: Strategy, error: BaseException | str, all: bool
    ) -> bool:
        """Carry out `strategy`; False if no attempt or hop is left."""
        if self._declines(entry.message, strategy):
            return False
        if isinstance(strategy, Nack) and self._can_defer(strategy) and not all:
            self._count_return(entry.message)
            self.unacked.requeue_later(entry, strategy.defer or 0.0)
            return True
        if strategy.defer and not await self._wait(strategy.defer):
            # We are closing: return it now, rather than hold up the end.
            self.unacked.release(entry)
            return True
        match strategy:
            case Ack():
                self.ack(entry, all=all)
            case Nack(requeue=requeue):
                if requeue:
                    self._count_return(entry.message)
                if requeue or all or not await self._dead_letter(entry):
                    self.unacked.nack(entry, requeue=requeue, all=all)
            case Republish():
                if self.unacked.is_ours(entry):
                    await self._copies.republish(entry.message, strategy, error)
                    self._copied(entry, DeliveryOutcome.REPUBLISHED)
            case Forward():
                if self.unacked.is_ours(entry):
                    await self._copies.forward(entry.message, strategy, error)
                    self._copied(entry, DeliveryOutcome.FORWARDED)
        return True

    def _declines(self, message: Message, strategy: Strategy) -> bool:
        if isinstance(strategy, Republish | Forward) and self._has_no_hop_left(message):
            return True
        match strategy:
            case Republish(attempts=int() as attempts):
                return message.republished >= attempts
            case Forward(attempts=int() as attempts):
                return message.forwarded >= attempts
        return False

    def _has_no_hop_left(self, message: Message) -> bool:
        """True if `max_hops` is reached: attempts count per queue, not per ring of queues."""
        most = self._config.max_hops
        return most is not None and recovery_headers.hops(message) >= most

    def _may_return(self, message: Message, strategy: Strategy) -> bool:
        """True if `message` is requeued in place of a copy that has no room for its history: as
        often as `strategy` would have made one.

        Without a number of attempts the copy has no history either, so it would never be made.
        """
        if not isinstance(strategy, Republish | Forward) or self._setup.is_stream:
            return False
        return strategy.attempts is not None and self.returns_of(message) < strategy.attempts

    def _can_defer(self, strategy: Nack) -> bool:
        return strategy.requeue and bool(strategy.defer) and self.can_defer

    async def _wait(self, seconds: float) -> bool:
        """Wait for a `defer`; False as soon as the subscription ends."""
        self._deferred += 1
        self._check_saturation()
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return True
        finally:
            self._deferred -= 1
            self._check_saturation()
        return False

    def _check_saturation(self) -> None:
        """Report, once, that waiting recoveries hold every place of the prefetch."""
        limits = [self._config.prefetch, self._config.channel_prefetch]
        limit = min((each for each in limits if each), default=None)
        was, self._is_saturated = self._is_saturated, limit is not None and self._deferred >= limit
        if self._is_saturated and not was:
            self._reports.warn(
                "prefetch_saturated",
                self._deferred,
                text="%d messages wait for their defer and fill the prefetch; "
                "nothing else is delivered meanwhile",
                values=(self._deferred,),
            )

    async def _dead_letter(self, entry: UnackedDelivery) -> bool:
        """Dead-letter as the broker does, but with the original routing key and sound deaths.

        False leaves it to the broker: it can do that, or no exchange is known.
        """
        target = self._copies.dead_letter_target(entry.message)
        if target is None or not self.unacked.is_ours(entry):
            return target is not None
        try:
            await self._copies.dead_letter(entry.message, *target)
        except (PublishRefusedError, InvalidMessageError) as failure:
            # The broker can do more: RabbitMQ drops dead letters for an exchange that is missing,
            # and headers that no client may send are none to it.
            self._report_failure(entry, _LAST_RESORT, str(failure))
            return False
        except BrokerClientError as failure:
            self._report_failure(entry, _LAST_RESORT, str(failure))
            self.unacked.release(entry)  # to refuse it now would lose it
            return True
        self.unacked.ack(entry, DeliveryOutcome.NACKED)
        return True

    def _copied(self, entry: UnackedDelivery, outcome: DeliveryOutcome) -> None:
        self.unacked.ack(entry, outcome)
        self._forget_returns(entry.message)


def _key_of(message: Message) -> str:
    return message.message_id or f"{message.vhost}/{message.queue}/{hash(message.body)}"
