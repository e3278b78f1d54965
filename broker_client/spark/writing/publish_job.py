"""Publishing that is done only when everything is confirmed, for tasks of an executor.

A task hands over its messages and waits for the last confirm. A window of messages at most is
unconfirmed; what is nacked, or lost with its channel, is sent again with the same message id. The
link stays open from task to task.

When the broker closes the channel or the connection because of a message, it does not say which:
what was unconfirmed is sent one at a time until the culprit is found. It fails the task, or is set
aside, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

from broker_client.errors import InvalidMessageError, TransportError
from broker_client.message import Outgoing, Returned
from broker_client.runtime.slotted import slotted
from broker_client.spark.errors import SinkError
from broker_client.spark.writing.dead_copies import invalid_copy, unroutable_copy
from broker_client.spark.writing.publishing_link import PublishingLink
from broker_client.transport.base import Channel
from broker_client.transport.closes import Meaning, meaning_of
from broker_client.transport.confirms import ConfirmLedger

log: logging.Logger = logging.getLogger("broker_client.spark.sink")

_BATCH = 200  # publishes written at once: enough to fill a socket, few enough to start soon
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds before sending again
_IDS_SHOWN = 5
_INVALID_LOGGED = 10  # of a task
_LONGEST_EXPIRATION = 2**32 - 1  # milliseconds; RabbitMQ closes the channel over more (406)

OnFailure = Literal["raise", "drop", "dead"]
"""What happens to a message: its task fails, it is only counted, or it goes to the dead queue."""


@slotted
class PublishLimits:
    """How a job publishes.

    Args:
        window: messages unconfirmed at a time.
        confirm_timeout: seconds without any confirm after which the link is given up.
        retries: further attempts for each message.
        connect_timeout: seconds.
        unroutable: what to do with messages that no queue takes.
        invalid: what to do with messages that AMQP cannot carry, or the broker refuses.
        dead_queue: needed for ``dead``.
    """

    window: int
    confirm_timeout: float
    retries: int
    connect_timeout: float
    unroutable: OnFailure = "raise"
    invalid: OnFailure = "raise"
    dead_queue: str | None = None


@slotted(frozen=False)
class PublishCounts:
    """Outcome counts of the messages of a job."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    nacked: int = 0
    invalid: int = 0
    retried: int = 0
    max_in_flight: int = 0


class _Unconfirmed:
    """A message on its way, and how often it was sent."""

    __slots__ = ("attempts", "is_dead", "message", "returned")

    def __init__(self, message: Outgoing) -> None:
        self.message = message
        self.attempts = 0
        self.is_dead = False  # a copy for the dead queue
        self.returned: Returned | None = None

    @property
    def message_id(self) -> str:
        return self.message.properties.message_id or ""


class PublishJob:
    """The publishes of one task. Call `send` any number of times, then `finish`."""

    def __init__(self, link: PublishingLink, limits: PublishLimits) -> None:
        self._link = link
        self._limits = limits
        self._channel: Channel | None = None
        self._ledger: ConfirmLedger[_Unconfirmed] = ConfirmLedger()
        self._by_id: dict[str, _Unconfirmed] = {}
        self._again: list[_Unconfirmed] = []
        self._wake = asyncio.Event()
        self._lost: TransportError | None = None
        self._fatal: SinkError | None = None
        self._pause = _FIRST_PAUSE
        self.counts: PublishCounts = PublishCounts()

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Publish `messages`; returns when all of them are sent, not yet confirmed.

        Raises:
            SinkError: one cannot be published, or was not confirmed in time and often enough.
        """
        position = 0
        self.counts.published += len(messages)
        messages = [each for each in messages if self._is_sound(each)]
        while position < len(messages):
            await self._wait_while_full()
            room = min(self._limits.window - self._in_flight, _BATCH)
            entries = [_Unconfirmed(message) for message in messages[position : position + room]]
            position += len(entries)
            await self._transmit(entries)

    async def finish(self) -> None:
        """Wait until every message is confirmed.

        Raises:
            SinkError: as `send`.
        """
        while self._in_flight:
            await self._progress()
        self._check()

    # ------------------------------------------------------------------ sending

    def _is_sound(self, message: Outgoing) -> bool:
        """False for a message that is set aside at once."""
        expiration = message.properties.expiration
        if message.body is None:
            fault = "its body is null"
        elif expiration is not None and not _is_expiration(expiration):
            fault = f"its expiration {expiration[:40]!r} is not a number of milliseconds"
        else:
            return True
        self._set_aside(_Unconfirmed(message), fault)
        return False

    @property
    def _in_flight(self) -> int:
        return len(self._ledger) + len(self._again)

    async def _wait_while_full(self) -> None:
        # Half a window at a time: one confirm must not cost one write.
        if self._in_flight >= self._limits.window:
            while self._in_flight > self._limits.window // 2:
                await self._progress()
        self._check()

    async def _transmit(self, entries: list[_Unconfirmed]) -> None:
        """Put `entries` on the wire and into the ledger."""
        try:
            channel = await self._usable_channel()
        except TransportError as error:
            raise self._failed(str(error), entries) from error
        first = channel.next_publish_seq
        self._ledger.add(first, entries)
        for entry in entries:
            entry.attempts += 1
            self._by_id[entry.message_id] = entry
        self.counts.max_in_flight = max(self.counts.max_in_flight, self._in_flight)
        try:
            await channel.publish([entry.message for entry in entries])
        except InvalidMessageError as error:  # found as they are encoded: none of them was sent
            self._ledger.settle(first, first + len(entries) - 1)
            if len(entries) == 1:
                self._set_aside(entries[0], str(error))
                return
            middle = len(entries) // 2
            await self._transmit(entries[:middle])
            await self._transmit(entries[middle:])
        except TransportError as error:
            self._lose(error)

    async def _usable_channel(self) -> Channel:
        channel = await self._link.channel(self._limits.connect_timeout)
        if channel is not self._channel:
            if self._ledger:
                self._retry_all()
            self._channel = channel
            channel.on_confirm = self._confirmed
            channel.on_return = self._returned
            channel.on_close = self._lose
        return channel

    async def _progress(self) -> None:
        """Wait for news, and do what they call for."""
        self._check()
        if self._again:
            await self._send_again()
        if not self._ledger:
            return
        quiet = False
        if self._lost is None and not self._wake.is_set():
            try:
                async with asyncio.timeout(self._limits.confirm_timeout):
                    await self._wake.wait()
            except TimeoutError:
                quiet = True
        self._wake.clear()
        self._check()
        if quiet and self._ledger:
            self._lost = self._silent()
        if self._lost is not None:
            reason, self._lost = self._lost, None
            if _is_about_a_message(reason):
                await self._find_culprits(self._ledger.take_all())
                return
            log.warning("%d publishes in doubt: %s; sending them again", len(self._ledger), reason)
            self._forget_link()
            self._retry_all()

    async def _find_culprits(self, suspects: list[_Unconfirmed]) -> None:
        """Send `suspects` one at a time, since the broker refuses one of them."""
        for position, entry in enumerate(suspects):
            self._check()
            await self._transmit([entry])
            await self._settled()
            reason, self._lost = self._lost, None
            if reason is None:
                continue
            self._forget_link()
            if not _is_about_a_message(reason):
                self._again = [*self._ledger.take_all(), *suspects[position + 1 :], *self._again]
                return
            self._ledger.take_all()
            self._set_aside(entry, str(reason))

    async def _settled(self) -> None:
        """Wait until nothing is unconfirmed, or the link is lost or silent."""
        while self._ledger and self._lost is None:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._limits.confirm_timeout):
                    await self._wake.wait()
            except TimeoutError:
                self._lose(self._silent())

    def _silent(self) -> TransportError:
        return TransportError(f"no confirm for {self._limits.confirm_timeout:g} s")

    def _forget_link(self) -> None:
        self._channel = None
        self._link.drop()

    async def _send_again(self) -> None:
        entries, self._again = self._again, []
        spent = [entry for entry in entries if entry.attempts > self._limits.retries]
        if spent:
            times = self._limits.retries + 1
            raise self._failed(f"not confirmed in {times} attempts", spent)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.counts.retried += len(entries)
        for start in range(0, len(entries), _BATCH):
            await self._transmit(entries[start : start + _BATCH])

    def _retry_all(self) -> None:
        """All that is unconfirmed goes out again, in order."""
        self._again = [*self._ledger.take_all(), *self._again]

    # ------------------------------------------------------------------ news from the channel

    def _confirmed(self, first: int, last: int, acked: bool) -> None:
        for entry in self._ledger.settle(first, last):
            if not acked:
                self.counts.nacked += 1
                self._again.append(entry)
                continue
            self._by_id.pop(entry.message_id, None)
            if entry.returned is not None:
                self._unroutable(entry, entry.returned)
            else:
                self.counts.confirmed += 1
        if acked:
            self._pause = _FIRST_PAUSE
        self._wake.set()

    def _returned(self, message: Returned) -> None:
        entry = self._by_id.get(message.properties.message_id or "")
        if entry is not None:
            entry.returned = message

    def _unroutable(self, entry: _Unconfirmed, returned: Returned) -> None:
        self.counts.returned += 1
        reason = (
            f"returned by exchange {returned.exchange!r}: {returned.reply_code} "
            f"{returned.reply_text}; no queue is bound for {returned.routing_key!r}"
        )
        self._end(entry, self._limits.unroutable, reason, unroutable_copy(entry.message, returned))

    def _set_aside(self, entry: _Unconfirmed, reason: str) -> None:
        """End `entry`, which AMQP cannot carry or the broker refuses."""
        self.counts.invalid += 1
        self._by_id.pop(entry.message_id, None)
        if self.counts.invalid <= _INVALID_LOGGED:
            log.warning("message %.255s is set aside: %s", entry.message_id, reason)
        self._end(entry, self._limits.invalid, reason, invalid_copy(entry.message, reason))
        self._wake.set()

    def _end(self, entry: _Unconfirmed, fate: OnFailure, reason: str, copy: Outgoing) -> None:
        dead_queue = self._limits.dead_queue
        if entry.is_dead or fate == "raise":
            self._fatal = self._fatal or self._failed(reason, [entry])
        elif fate == "dead":
            assert dead_queue is not None, "the options see to it"
            dead = _Unconfirmed(copy._replace(exchange="", routing_key=dead_queue, mandatory=True))
            dead.is_dead = True
            self._again.append(dead)

    def _lose(self, error: TransportError) -> None:
        self._lost = self._lost or error
        self._wake.set()

    # ------------------------------------------------------------------ errors

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def _failed(self, reason: str, entries: list[_Unconfirmed]) -> SinkError:
        self._link.drop()  # the next task must not meet our confirms
        ids = [entry.message_id for entry in entries]
        return SinkError(reason, ids[:_IDS_SHOWN], len(ids))


def _is_about_a_message(error: TransportError) -> bool:
    return meaning_of(error) in (Meaning.REFUSED, Meaning.MISSING)


def _is_expiration(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:20]) <= _LONGEST_EXPIRATION
