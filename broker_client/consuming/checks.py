"""Checks before a handler is called: redeliveries and duplicates.

A store is asked for each delivery as it arrives, so that slow answers do not add up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from broker_client.consuming.deduplication import HandledIds
from broker_client.consuming.delivery import DeliveryOutcome, UnackedDelivery
from broker_client.consuming.redeliveries import RedeliveryCounter
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup
from broker_client.errors import (
    BrokerClientError,
    InvalidContentError,
    OperationTimeoutError,
    RedeliveriesExceededError,
    RedeliveriesUncountedError,
    described,
)
from broker_client.message import Message
from broker_client.runtime.tasks import ends_task

log: logging.Logger = logging.getLogger("broker_client.subscription")

T = TypeVar("T")


class Passed(Enum):
    """Result of the checks for an accepted delivery."""

    YES = "to be handled"
    DUPLICATE = "handled before"


class DeliveryRefusal(NamedTuple):
    """The reason why a delivery is not handled."""

    events: tuple[str, ...]
    """Events that report it: the first one with listeners is emitted."""
    error: BrokerClientError


def unreadable(error: InvalidContentError) -> DeliveryRefusal:
    """The refusal of a body that cannot be decrypted, decoded or validated."""
    return DeliveryRefusal(("invalid_content", "invalid_message"), error)


class Checks:
    """Checks deliveries before they are handled."""

    def __init__(self, setup: ConsumingSetup, reports: Reports) -> None:
        self._config = setup.config
        self._counter = setup.counter
        deduplicate = setup.config.deduplicate
        timeout = deduplicate.timeout if deduplicate is not None else math.inf
        self._handled = None if setup.handled is None else Deduplication(setup.handled, timeout)
        self._reports = reports

    @property
    def are_needed(self) -> bool:
        """True if deliveries have to be checked at all."""
        has_any = self._counter is not None or self._handled is not None
        return has_any and not self._config.options.no_ack

    def must_ask(self, entry: UnackedDelivery) -> bool:
        """True if a store must be asked whether to handle `entry`."""
        message = entry.message
        if message.message_id is None:
            message.redeliveries = 0
            return False
        if self._counter is not None and not message.redelivered:
            message.redeliveries = 0
        return self._handled is not None or (self._counter is not None and message.redelivered)

    def line_up(self, entry: UnackedDelivery) -> None:
        """Put `entry` behind the copies of its message that arrived before it; `ask` follows."""
        if self._handled is not None:
            self._handled.line_up(self._key(entry), entry)

    async def ask(self, entry: UnackedDelivery) -> Passed | DeliveryRefusal:
        """Decide whether `entry` must be handled."""
        if self._counter is not None and entry.message.redelivered:
            refusal = await self._count(entry, self._counter)
            if refusal is not None:
                return refusal
        if self._handled is None or await self._is_first(entry, self._handled):
            return Passed.YES
        return Passed.DUPLICATE

    def _key(self, entry: UnackedDelivery) -> str:
        return f"{self._config.name}/{entry.message.message_id}"

    # ------------------------------------------------------------------ redeliveries

    async def _count(
        self, entry: UnackedDelivery, counter: RedeliveryCounter
    ) -> DeliveryRefusal | None:
        """Count a redelivery, unless the broker counts itself."""
        message, limits = entry.message, self._config.redeliveries
        attempts = message.attempts
        if attempts is not None:
            message.redeliveries = attempts - 1
        else:
            try:
                async with asyncio.timeout(limits.timeout):
                    count: object = await counter.increment(self._key(entry))
                if not isinstance(count, int):
                    return self._uncounted(message, f"its answer is a {type(count).__name__}")
                message.redeliveries = count
            except TimeoutError:
                return self._uncounted(message, f"no answer within {limits.timeout:g} s")
            except BaseException as error:  # a store of the user's choice
                if ends_task(error):
                    raise
                log.debug("subscription %s: counter", self._config.name, exc_info=True)
                return self._uncounted(message, described(error))
        if message.redeliveries <= limits.limit:
            return None
        exceeded = RedeliveriesExceededError(message.message_id, message.redeliveries, limits.limit)
        return DeliveryRefusal(("redeliveries_exceeded", "redeliveries_error"), exceeded)

    def _uncounted(self, message: Message, reason: str) -> DeliveryRefusal | None:
        """Refuse it if there is a listener; otherwise handle it: it is not at fault."""
        error = RedeliveriesUncountedError(message.message_id, reason)
        if self._reports.listeners("redeliveries_error"):
            return DeliveryRefusal(("redeliveries_error",), error)
        self._reports.error(error)
        return None

    # ------------------------------------------------------------------ deduplication

    async def _is_first(self, entry: UnackedDelivery, handled: Deduplication) -> bool:
        try:
            return await handled.begin(self._key(entry), entry)
        except BaseException as error:  # a store of the user's choice
            if ends_task(error):
                raise
            self._reports.error(error)
            return True  # rather twice than not at all

    def ended(
        self, entry: UnackedDelivery, outcome: DeliveryOutcome
    ) -> Coroutine[Any, Any, None] | None:
        """`entry` is no longer unacked; returns what must be stored for it."""
        if self._handled is None or entry.message.message_id is None:
            return None
        key = self._key(entry)
        is_handled = outcome is DeliveryOutcome.ACKED and entry.error is None
        if is_handled and self._handled.has(key, entry):
            return self._remember(key, entry, self._handled)
        self._handled.end(key, entry)
        return None

    async def _remember(self, key: str, entry: UnackedDelivery, handled: Deduplication) -> None:
        try:
            await handled.remember(key)
        except BaseException as error:  # a store of the user's choice
            if ends_task(error):
                raise
            self._reports.error(error)
        finally:
            handled.end(key, entry)


class Deduplication:
    """Ids of handled messages, and of those being handled.

    Of copies that arrive together, each waits to see what becomes of those before it. Deliveries
    are handled in the order in which they arrive, so copies must be asked about in this order too:
    else one waits for the handler of another, which waits for it to be handled first.
    """

    def __init__(self, handled: HandledIds, timeout: float) -> None:
        """
        Args:
            handled: the store.
            timeout: seconds it has to answer; one that never does would hold up everything.
        """
        self._handled, self._timeout = handled, timeout
        self._lines: dict[str, dict[UnackedDelivery, asyncio.Event]] = {}
        """Of each key, its unacked deliveries in the order of their arrival; each is told when it
        is the first, or has ended."""

    def line_up(self, key: str, entry: UnackedDelivery) -> None:
        """Note `entry`, until `end`."""
        turn = asyncio.Event()
        line = self._lines.setdefault(key, {})
        if not line:
            turn.set()
        line[entry] = turn

    async def begin(self, key: str, entry: UnackedDelivery) -> bool:
        """Wait until no copy is before `entry`; False if one of them was handled, or `entry` has
        ended."""
        turn = self._lines.get(key, {}).get(entry)
        if turn is not None:
            await turn.wait()
        if not self.has(key, entry):
            return False
        try:
            is_new = not await self._in_time(self._handled.contains(key))
        except BaseException:
            self.end(key, entry)
            raise
        if not is_new or not entry.is_open:
            self.end(key, entry)
        return is_new

    def has(self, key: str, entry: UnackedDelivery) -> bool:
        """True when it is `entry` that is being handled for `key`."""
        return next(iter(self._lines.get(key, ())), None) is entry

    async def remember(self, key: str) -> None:
        """Record that `key` has been handled."""
        await self._in_time(self._handled.add(key))

    async def _in_time(self, question: Coroutine[Any, Any, T]) -> T:
        deadline = asyncio.timeout(self._timeout if self._timeout < math.inf else None)
        try:
            async with deadline:
                return await question
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise OperationTimeoutError("store of handled ids", self._timeout) from error

    def end(self, key: str, entry: UnackedDelivery) -> None:
        """Take `entry` out of its line."""
        line = self._lines.get(key, {})
        turn = line.pop(entry, None)
        if turn is None:
            return
        turn.set()
        if line:
            next(iter(line.values())).set()
        else:
            del self._lines[key]
