"""Whether a delivery may go to its handler: counted, and not handled before.

What needs a store is asked for each delivery as it arrives, so that one slow answer does not add
to the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker_client.ackornack import AckOrNack
from broker_client.consuming.deduplication import HandledIds
from broker_client.consuming.redeliveries import RedeliveryCounter
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.unacked import Emit
from broker_client.errors import (
    BrokerClientError,
    OperationTimeoutError,
    RedeliveriesExceededError,
    RedeliveriesUncountedError,
)

log = logging.getLogger("broker_client.subscription")

T = TypeVar("T")

Refuse = Callable[[tuple[str, ...], AckOrNack, BrokerClientError], None]
"""Hand a delivery to the listeners of the first of these events that has any, else nack it."""


class Inspection:
    """Looks at deliveries before handlers do."""

    def __init__(self, setup: ConsumingSetup, emit: Emit, refuse: Refuse) -> None:
        self._config = setup.config
        self._counter = setup.counter
        deduplicate = setup.config.deduplicate
        patience = deduplicate.timeout if deduplicate is not None else math.inf
        self._once = None if setup.handled is None else Once(setup.handled, patience)
        self._emit = emit
        self._refuse = refuse

    @property
    def is_needed(self) -> bool:
        return self._counter is not None or self._once is not None

    def begin(self, settle: AckOrNack) -> Coroutine[Any, Any, bool] | None:
        """What says whether the message goes on; None where it does without asking anybody.

        False of it means that the message has been taken care of.
        """
        message = settle.message
        if message.message_id is None:
            message.redeliveries = 0
            return None
        counter = self._counter
        if counter is None or not message.redelivered:
            if counter is not None:
                message.redeliveries = 0
            if self._once is None:
                return None
            counter = None
        return self._inspect(settle, counter)

    async def _inspect(self, settle: AckOrNack, counter: RedeliveryCounter | None) -> bool:
        if counter is not None and not await self._may_come_again(settle, counter):
            return False
        return self._once is None or await self._is_first(settle, self._once)

    # ------------------------------------------------------------------ redeliveries

    async def _may_come_again(self, settle: AckOrNack, counter: RedeliveryCounter) -> bool:
        """A broker that counts itself is believed."""
        message, limits = settle.message, self._config.redeliveries
        attempts = message.attempts
        if attempts is not None:
            message.redeliveries = attempts - 1
        else:
            try:
                async with asyncio.timeout(limits.timeout):
                    message.redeliveries = await counter.increment(self._key(settle))
            except TimeoutError:
                self._uncounted(settle, f"no answer within {limits.timeout:g} s")
                return False
            except Exception as error:
                log.debug("subscription %s: counter", self._config.name, exc_info=True)
                self._uncounted(settle, f"{type(error).__name__}: {error}")
                return False
        if message.redeliveries <= limits.limit:
            return True
        exceeded = RedeliveriesExceededError(message.message_id, message.redeliveries, limits.limit)
        self._refuse(("redeliveries_exceeded", "redeliveries_error"), settle, exceeded)
        return False

    def _uncounted(self, settle: AckOrNack, reason: str) -> None:
        error = RedeliveriesUncountedError(settle.message.message_id, reason)
        self._refuse(("redeliveries_error", "redeliveries_exceeded"), settle, error)

    def _key(self, settle: AckOrNack) -> str:
        return f"{self._config.name}/{settle.message.message_id}"

    # ------------------------------------------------------------------ deduplication

    async def _is_first(self, settle: AckOrNack, once: Once) -> bool:
        try:
            if await once.begin(self._key(settle), settle):
                return True
        except Exception as error:  # noqa: BLE001 - a store of the user's choice
            self._emit("error", error)
            return True  # rather twice than not at all
        if settle.is_open:
            settle.skip()
            self._emit("duplicate", settle.message)
        return False

    def ended(self, settle: AckOrNack, how: str) -> Coroutine[Any, Any, None] | None:
        """A delivery is in hand no more; returns what has to be written down for it."""
        if self._once is None or settle.message.message_id is None:
            return None
        key = self._key(settle)
        if how == "acked" and settle.error is None and self._once.has(key, settle):
            return self._remember(key, settle, self._once)
        self._once.end(key, settle)
        return None

    async def _remember(self, key: str, settle: AckOrNack, once: Once) -> None:
        try:
            await once.remember(key)
        except Exception as error:  # noqa: BLE001 - a store of the user's choice
            self._emit("error", error)
        finally:
            once.end(key, settle)


class Once:
    """Ids that were handled, and those that are being handled: of two copies that arrive
    together, the second waits to see what becomes of the first."""

    def __init__(self, handled: HandledIds, patience: float) -> None:
        """
        Args:
            handled: the store.
            patience: seconds it has to answer.
        """
        self._handled, self._patience = handled, patience
        self._in_hand: dict[str, tuple[AckOrNack, asyncio.Event]] = {}

    async def begin(self, key: str, settle: AckOrNack) -> bool:
        """True when `settle` is to be handled, and has `key` in hand from now on."""
        while (other := self._in_hand.get(key)) is not None:
            await other[1].wait()
        self._in_hand[key] = (settle, asyncio.Event())
        try:
            is_new = not await self._in_time(self._handled.contains(key))
        except BaseException:
            self.end(key, settle)
            raise
        if not is_new or not settle.is_open:
            self.end(key, settle)
        return is_new

    def has(self, key: str, settle: AckOrNack) -> bool:
        """True when it is `settle` that has `key` in hand."""
        return self._in_hand.get(key, (None,))[0] is settle

    async def remember(self, key: str) -> None:
        """`key` has been handled."""
        await self._in_time(self._handled.add(key))

    async def _in_time(self, question: Coroutine[Any, Any, T]) -> T:
        """A store that never answers would hold up everything behind it."""
        deadline = asyncio.timeout(self._patience if self._patience < math.inf else None)
        try:
            async with deadline:
                return await question
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise OperationTimeoutError("store of handled ids", self._patience) from error

    def end(self, key: str, settle: AckOrNack) -> None:
        """`settle` has `key` in hand no more, if it had."""
        if self.has(key, settle):
            self._in_hand.pop(key)[1].set()
