"""Settling a delivery, once: ack it, or run a chain of recovery strategies.

The strategies and the headers they write are rascal's (R-170 to R-182), with its flaws mended:
`ack` acks (C-05), a copy is mandatory and confirmed before the original is acked (C-12), a
strategy that fails passes on to the next and never acks, and the last resort is a nack without
requeue (C-04), which a dead-letter exchange catches.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from broker_client.config import Ack, Forward, Nack, Republish, Strategy, strategies_from
from broker_client.errors import (
    AlreadySettledError,
    BrokerClientError,
    ChannelClosedError,
    RecoveryFailedError,
    StaleDeliveryError,
)
from broker_client.message import RASCAL, Message, Outgoing
from broker_client.transport.base import Channel

log = logging.getLogger("broker_client.ackornack")

_ERROR_TEXT_LIMIT = 1024  # characters; R-177
_LAST_RESORT = Nack()


class Republisher(Protocol):
    """Whoever can publish a copy; given to the subscription by its broker."""

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        """Publish to a queue of `vhost`; returns once confirmed, raises `PublishError` if not."""
        ...

    async def forward_copy(
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
    ) -> None:
        """Publish through a publication; returns once confirmed, raises if not."""
        ...


class SettleOwner(Protocol):
    """The subscription a delivery belongs to."""

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
    def settled(self, settle: AckOrNack, how: str) -> None: ...
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
        "error",
        "message",
        "requeues",
    )

    def __init__(self, owner: SettleOwner, channel: Channel, message: Message) -> None:
        self._owner = owner
        self._channel = channel
        self.message = message
        self._begun = False
        self._is_lost = False
        self.error: BaseException | str | None = None
        """What it was called with."""
        self.requeues = False
        """True when it gives the message back to its queue."""
        self._is_covered = False  # settled along with a later one (`all`)

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "settled" if self._begun else "open"
        return f"<AckOrNack {self.message.delivery.delivery_tag}: {state}>"

    @property
    def is_begun(self) -> bool:
        """True once it has been called."""
        return self._begun

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
        """
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
        for strategy in (*chain, _LAST_RESORT):
            try:
                if await self._apply(strategy, error, all):
                    return
            except BrokerClientError as failure:
                self._report_failure(strategy, str(failure))
            except Exception as failure:
                # A fault of ours must not keep the message, and a place in the prefetch, for good.
                log.exception("recovery %r of message %s", strategy, self.message.message_id)
                self._report_failure(strategy, f"{type(failure).__name__}: {failure}")

    def lose(self) -> None:
        """The delivery is not ours any more: its channel is gone, or its time ran out."""
        self._is_lost = True

    def cover(self) -> None:
        """The delivery was settled along with a later one."""
        self._begun = self._is_covered = True

    def _report_second_call(self) -> None:
        delivery = self.message.delivery
        self._owner.settled_twice(AlreadySettledError(delivery.delivery_tag, delivery.consumer_tag))

    def _report_failure(self, strategy: Strategy, reason: str) -> None:
        error = RecoveryFailedError(strategy.strategy, self.message.message_id, reason)
        self._owner.recovery_failed(error)

    # ------------------------------------------------------------------ strategies

    async def _apply(self, strategy: Strategy, error: BaseException | str, all: bool) -> bool:
        """Carry `strategy` out; False when it declines, its attempts being used up."""
        if self._declines(strategy):
            return False
        if isinstance(strategy, Nack) and self._can_defer(strategy) and not all:
            delay = strategy.defer or 0.0
            self.requeues = True
            self._settle("nacked", lambda tag: self._channel.requeue_later(tag, delay))
            return True
        if strategy.defer and not await self._owner.pause(strategy.defer):
            # We are closing: give it back now, rather than hold up the end.
            self.requeues = True
            self._settle("nacked", lambda tag: self._channel.nack(tag, requeue=True))
            return True
        match strategy:
            case Ack():
                self._ack(all)
            case Nack(requeue=requeue):
                self.requeues = requeue
                self._settle(
                    "nacked",
                    lambda tag: self._channel.nack(tag, requeue=requeue, multiple=all),
                    all,
                )
            case Republish():
                await self._republish(strategy, error)
            case Forward():
                await self._forward(strategy, error)
        return True

    def _declines(self, strategy: Strategy) -> bool:
        match strategy:
            case Republish(attempts=int() as attempts):
                return self.message.republished >= attempts
            case Forward(attempts=int() as attempts):
                return self.message.forwarded >= attempts
        return False

    def _can_defer(self, strategy: Nack) -> bool:
        return strategy.requeue and bool(strategy.defer) and self._owner.can_defer

    async def _republish(self, strategy: Republish, error: BaseException | str) -> None:
        message = self.message
        headers = recovery_headers(
            message,
            error,
            {"republished": message.republished + 1},
            restore=strategy.restore_routing_headers,
        )
        if self._still_ours():
            await self._owner.republisher.republish(
                message.vhost,
                Outgoing(
                    "",
                    message.queue,
                    message.body,
                    message.properties._replace(headers=headers),
                    mandatory=True,
                ),
            )
            self._settle("republished", self._channel.ack)

    async def _forward(self, strategy: Forward, error: BaseException | str) -> None:
        message = self.message
        headers = recovery_headers(
            message,
            error,
            {"forwarded": message.forwarded + 1},
            restore=strategy.restore_routing_headers,
        )
        if self._still_ours():
            await self._owner.republisher.forward_copy(
                strategy.publication, message, headers, strategy.routing_key
            )
            self._settle("forwarded", self._channel.ack)

    # ------------------------------------------------------------------ on the wire

    def _ack(self, all: bool) -> None:
        self._settle("acked", lambda tag: self._channel.ack(tag, multiple=all), all)

    def _settle(self, how: str, send: Callable[[int], None], all: bool = False) -> None:
        if not self._still_ours():
            return
        try:
            send(self.message.delivery.delivery_tag)
        except (ChannelClosedError, StaleDeliveryError) as error:
            self._owner.settle_lost(self, error)
        else:
            self._owner.settled(self, how + " all" if all else how)

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


def recovery_headers(
    message: Message,
    error: BaseException | str,
    counters: Mapping[str, int],
    *,
    restore: bool,
) -> dict[str, Any]:
    """Headers of the copy that a recovery strategy publishes (R-177).

    Made from the headers as delivered, never from those a handler may have changed. CC and BCC
    are left out: the copy goes to one place, not to all the first one went to.
    """
    headers = {
        key: copy.deepcopy(value)
        for key, value in (message.properties.headers or {}).items()
        if key not in ("CC", "BCC")
    }
    history = _table_at(headers, RASCAL)
    history.setdefault("originalQueue", message.queue)
    history.setdefault("originalVhost", message.vhost)
    history.setdefault("originalExchange", message.exchange)
    history.setdefault("originalRoutingKey", message.routing_key)
    history["restoreRoutingHeaders"] = restore
    _table_at(_table_at(history, "recovery"), message.queue).update(counters)
    history["error"] = {"message": _shortened(str(error))}
    code = getattr(error, "code", None)
    if isinstance(code, str | int):
        history["error"]["code"] = code
    return headers


def _table_at(table: dict[str, Any], key: str) -> dict[str, Any]:
    """The table under `key`, made anew where there is none: headers may come from anybody."""
    inner = table.get(key)
    if not isinstance(inner, dict):
        inner = table[key] = {}
    return inner


def _shortened(text: str) -> str:
    if len(text) <= _ERROR_TEXT_LIMIT:
        return text
    return text[: _ERROR_TEXT_LIMIT - 3] + "..."
