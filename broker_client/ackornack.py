"""Settling a delivery, once: ack it, or run a chain of recovery strategies.

The strategies and the headers they write are rascal's, with its flaws mended:
`ack` acks, a copy is mandatory and confirmed before the original is acked, a
strategy that fails passes on to the next and never acks, and the last resort is a nack without
requeue, which a dead-letter exchange catches. Only where a copy could not be had because the
broker was away, full or silent does the message go back to its queue at the end of the chain:
that is no verdict on the message, and without a dead-letter exchange it would be lost.

A broker dead-letters with the routing key of the copy it has, which for a republished message is
the name of its queue; a direct or topic exchange may not know that key and drop the message. Where
the configuration tells that it may, `nack` publishes the dead letter itself, with the first key,
and acks: at least once, as `republish` is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from broker_client.config import Ack, Forward, Nack, Republish, Strategy, strategies_from
from broker_client.consuming import recovery_headers as copies
from broker_client.consuming.recovery_headers import recovery_headers
from broker_client.errors import (
    AlreadySettledError,
    BrokerClientError,
    ChannelClosedError,
    MessageReturnedError,
    PublishError,
    PublishRefusedError,
    RecoveryFailedError,
    StaleDeliveryError,
    WrongLoopError,
)
from broker_client.message import Message, Outgoing
from broker_client.transport.base import Channel

log = logging.getLogger("broker_client.ackornack")

__all__ = ["AckOrNack", "Republisher", "SettleOwner", "recovery_headers"]

_LAST_RESORT = Nack()
_VERDICTS = (MessageReturnedError, PublishRefusedError)
"""What says of a copy that it will fare no better another time."""


class _End(Enum):
    """How an attempt at one strategy ended."""

    SETTLED = "settled"
    NOT_DONE = "not done"
    NO_WORD = "no word"
    """The broker had no word on the copy."""


class Republisher(Protocol):
    """Whoever can publish a copy; given to the subscription by its broker."""

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        """Publish in `vhost` as given; returns once confirmed, raises `PublishError` if not."""
        ...

    async def forward_copy(
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
    ) -> None:
        """Publish `message` through a publication, with these headers instead of its own.

        Returns once confirmed, raises if not.
        """
        ...


class SettleOwner(Protocol):
    """Whoever keeps the deliveries of a subscription."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that deliveries are settled in."""
        ...

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange that may not know the key of a republished copy; None where none is."""
        ...

    @property
    def max_hops(self) -> int | None:
        """Copies that recovery may make of one message; None is no limit."""
        ...

    @property
    def can_defer(self) -> bool:
        """True when the broker itself gives a message back later."""
        ...

    @property
    def republisher(self) -> Republisher: ...

    async def pause(self, seconds: float) -> bool:
        """Wait; False when the subscription closed first."""
        ...

    def default_recovery(self, message: Message) -> tuple[Strategy, ...]: ...
    def another_try(self, message: Message) -> Nack:
        """What brings `message` back, where that can be done, and does not spin."""
        ...

    def settled(self, settle: AckOrNack, how: str) -> None: ...
    def settled_through(self, settle: AckOrNack, how: str) -> None: ...
    def settle_lost(self, settle: AckOrNack, error: BrokerClientError) -> None: ...
    def settled_twice(self, error: AlreadySettledError) -> None: ...
    def recovery_failed(self, error: RecoveryFailedError) -> None: ...


class AckOrNack:
    """What a handler calls, once, to settle its message."""

    __slots__ = (
        "_begun",
        "_channel",
        "_is_covered",
        "_is_lost",
        "_owner",
        "due",
        "error",
        "message",
        "requeues",
    )

    def __init__(self, owner: SettleOwner, channel: Channel, message: Message) -> None:
        self._owner = owner
        self._channel = channel
        self.message = message
        self.error: BaseException | str | None = None
        """What it was called with."""
        self.requeues = False
        """True when it gives the message back to its queue."""
        self.due = math.inf
        """Loop time at which to tell that its time is nearly over (`due.Dated`)."""
        self._begun = False
        self._is_lost = False
        self._is_covered = False  # settled along with a later one (`all`)

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "settled" if self._begun else "open"
        return f"<AckOrNack {self.message.delivery.delivery_tag}: {state}>"

    @property
    def is_begun(self) -> bool:
        """True once it has been called."""
        return self._begun

    @property
    def is_open(self) -> bool:
        """True while it is this handler's to settle."""
        return not self._begun and not self._is_lost

    async def __call__(
        self,
        error: BaseException | str | None = None,
        recovery: object = None,
        *,
        all: bool = False,
    ) -> None:
        """Settle the message.

        Args:
            error: None acks. Anything else begins recovery, and travels in the headers of copies.
            recovery: a strategy or a list of them, as objects or as the mappings of the YAML;
                None uses the subscription's own.
            all: settle every unsettled delivery of this channel up to this one, too.

        Raises:
            ConfigError: `recovery` names no strategy; nothing is settled then.
            WrongLoopError: called in another event loop; nothing is settled then.
        """
        if asyncio.get_running_loop() is not self._owner.loop:
            raise WrongLoopError("a message can be settled in its Broker's event loop only")
        chain: tuple[Strategy, ...] = ()
        if error is not None:
            chain = (
                self._owner.default_recovery(self.message)
                if recovery is None
                else strategies_from(recovery)
            )
        if self._begun:
            self._report_second_call()
            return
        self._begun = True
        self.error = error
        if error is None:
            self._ack(all)
            return
        last_resort = _LAST_RESORT
        for strategy in chain:
            end = await self._try(strategy, error, all)
            if end is _End.SETTLED:
                return
            if end is _End.NO_WORD:
                last_resort = self._owner.another_try(self.message)
        await self._try(last_resort, error, all)

    def give_back(self) -> None:
        """Return the message to its queue: its handler was not called."""
        if self._begun:
            return
        self._begun = True
        if not self._is_lost and self._channel.is_usable:
            self._release()

    def skip(self) -> None:
        """Ack the message without a handler: it was handled before."""
        if not self._begun:
            self._begun = True
            self._settle("skipped", self._channel.ack)

    def lose(self) -> None:
        """The delivery is not ours any more: its channel is gone, or its time ran out."""
        self._is_lost = True

    def cover(self, by: AckOrNack) -> None:
        """The delivery was settled along with `by`, a later one."""
        self._begun = self._is_covered = True
        self.error, self.requeues = by.error, by.requeues

    def _report_second_call(self) -> None:
        delivery = self.message.delivery
        self._owner.settled_twice(AlreadySettledError(delivery.delivery_tag, delivery.consumer_tag))

    def _report_failure(self, strategy: Strategy, reason: str) -> None:
        error = RecoveryFailedError(strategy.strategy, self.message.message_id, reason)
        self._owner.recovery_failed(error)

    # ------------------------------------------------------------------ strategies

    async def _try(self, strategy: Strategy, error: BaseException | str, all: bool) -> _End:
        try:
            return _End.SETTLED if await self._apply(strategy, error, all) else _End.NOT_DONE
        except BrokerClientError as failure:
            self._report_failure(strategy, str(failure))
            has_word = not isinstance(failure, PublishError) or isinstance(failure, _VERDICTS)
            return _End.NOT_DONE if has_word else _End.NO_WORD
        except Exception as failure:
            # A fault of ours must not keep the message, and a place in the prefetch, for good.
            log.exception("recovery %r of message %s", strategy, self.message.message_id)
            self._report_failure(strategy, f"{type(failure).__name__}: {failure}")
            return _End.NOT_DONE

    async def _apply(self, strategy: Strategy, error: BaseException | str, all: bool) -> bool:
        """Carry `strategy` out; False when it declines: no attempt, or no hop, is left."""
        if self._declines(strategy):
            return False
        if isinstance(strategy, Nack) and self._can_defer(strategy) and not all:
            delay = strategy.defer or 0.0
            self.requeues = True
            self._settle("nacked", lambda tag: self._channel.requeue_later(tag, delay))
            return True
        if strategy.defer and not await self._owner.pause(strategy.defer):
            # We are closing: give it back now, rather than hold up the end.
            self._release()
            return True
        match strategy:
            case Ack():
                self._ack(all)
            case Nack(requeue=requeue):
                if requeue or all or not await self._dead_letter():
                    self._nack(requeue=requeue, all=all)
            case Republish():
                await self._republish(strategy, error)
            case Forward():
                await self._forward(strategy, error)
        return True

    def _declines(self, strategy: Strategy) -> bool:
        if isinstance(strategy, Republish | Forward) and self._has_no_hop_left():
            return True
        match strategy:
            case Republish(attempts=int() as attempts):
                return self.message.republished >= attempts
            case Forward(attempts=int() as attempts):
                return self.message.forwarded >= attempts
        return False

    def _has_no_hop_left(self) -> bool:
        """Attempts count for each queue, so that a ring of queues could go round for ever."""
        most = self._owner.max_hops
        return most is not None and copies.hops(self.message) >= most

    def _can_defer(self, strategy: Nack) -> bool:
        return strategy.requeue and bool(strategy.defer) and self._owner.can_defer

    async def _dead_letter(self) -> bool:
        """Reject as the broker does, but with the key the message was first published with.

        False leaves it to the broker: the key is not lost, or no exchange is known.
        """
        message = self.message
        if not copies.has_lost_its_key(message):
            return False
        exchange = self._owner.dead_letter_exchange
        if exchange is None or not self._still_ours():
            return exchange is not None
        letter = copies.dead_letter(message, exchange)
        try:
            await self._owner.republisher.republish(message.vhost, letter)
        except PublishRefusedError as failure:
            # RabbitMQ drops dead letters for an exchange that is missing.
            self._report_failure(_LAST_RESORT, str(failure))
            return False
        except BrokerClientError as failure:
            self._report_failure(_LAST_RESORT, str(failure))
            self._release()  # to refuse it now would lose it
            return True
        self._settle("nacked", self._channel.ack)
        return True

    async def _republish(self, strategy: Republish, error: BaseException | str) -> None:
        if self._still_ours():
            outgoing = copies.republished(self.message, error, strategy)
            await self._owner.republisher.republish(self.message.vhost, outgoing)
            self._settle("republished", self._channel.ack)

    async def _forward(self, strategy: Forward, error: BaseException | str) -> None:
        message = self.message
        headers = recovery_headers(
            message,
            error,
            {"forwarded": message.forwarded + 1},
            restore=strategy.restore_routing_headers,
        )
        if strategy.x_death_fix:
            headers = copies.without_x_death(headers)
        properties, headers = copies.overridden(message.properties, strategy.options, headers)
        if self._still_ours():
            await self._owner.republisher.forward_copy(
                strategy.publication,
                message.with_properties(properties),
                headers,
                strategy.routing_key,
            )
            self._settle("forwarded", self._channel.ack)

    # ------------------------------------------------------------------ on the wire

    def _ack(self, all: bool) -> None:
        if all:
            self._settle("acked", lambda tag: self._channel.ack(tag, multiple=True), all=True)
        else:
            self._settle("acked", self._channel.ack)

    def _nack(self, *, requeue: bool, all: bool) -> None:
        self.requeues = requeue
        self._settle(
            "nacked",
            lambda tag: self._channel.nack(tag, requeue=requeue, multiple=all),
            all,
        )

    def _release(self) -> None:
        self.requeues = True
        self._settle("released", self._channel.release)

    def _settle(self, how: str, send: Callable[[int], None], all: bool = False) -> None:
        if not self._still_ours():
            return
        try:
            send(self.message.delivery.delivery_tag)
        except (ChannelClosedError, StaleDeliveryError) as error:
            self._owner.settle_lost(self, error)
            return
        if all:
            self._owner.settled_through(self, how)
        else:
            self._owner.settled(self, how)

    def _still_ours(self) -> bool:
        """False, and reported, when the delivery died with its channel or has timed out.

        A tag means nothing on another channel, so a late settle is never sent; the broker
        delivers the message again.
        """
        if self._is_covered:  # RabbitMQ: to settle a tag twice closes the channel
            self._report_second_call()
            return False
        if not self._is_lost and self._channel.is_usable:
            return True
        delivery = self.message.delivery
        self._owner.settle_lost(
            self, StaleDeliveryError(delivery.delivery_tag, delivery.consumer_tag)
        )
        return False
