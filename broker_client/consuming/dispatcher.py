"""Passes deliveries to handlers: checks, waiting, decoding, calling.

Deliveries are handed over in the order they came. With a `concurrency`, or while the subscription
is held, they wait here, unstarted, and can be released.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import Awaitable
from contextvars import copy_context
from time import perf_counter
from types import CoroutineType
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.codec import content
from broker_client.codec.claim_check import claim_of
from broker_client.codec.compression import decompress
from broker_client.codec.encryption import decrypt
from broker_client.config import Nack
from broker_client.config.values import rate_of
from broker_client.consuming.checks import Checks, DeliveryRefusal, Passed, unreadable
from broker_client.consuming.handler_run import HandlerTasks
from broker_client.consuming.rate_limit import RateLimit
from broker_client.consuming.recovery import Recovery
from broker_client.consuming.recovery_headers import is_to_be_nacked, noted_error, unflagged
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup
from broker_client.errors import (
    BodyMissingError,
    ClaimCheckError,
    HandlerError,
    InvalidContentError,
    InvalidHeadersError,
    described,
)
from broker_client.message import RASCAL, Delivery, Message
from broker_client.runtime.tasks import PROGRAM_ENDS, TaskGroup, raise_in_loop
from broker_client.transport.base import Channel

log: logging.Logger = logging.getLogger("broker_client.subscription")


class Dispatcher:
    """Passes deliveries to the listeners of a subscription, and isolates their failures."""

    def __init__(
        self,
        setup: ConsumingSetup,
        checks: Checks,
        recovery: Recovery,
        handlers: TaskGroup,
        reports: Reports,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            checks: say whether a delivery is to be handled.
            recovery: settles deliveries, and knows those that are unacked.
            handlers: owner of the tasks that handlers run in.
            reports: knows the listeners, and is notified of what goes wrong.
        """
        self._setup = setup
        self._config = setup.config
        self._queue, self._vhost = setup.queue, setup.config.vhost
        self._content_type = setup.config.content_type
        self._decompress = setup.config.decompress
        self._no_ack = setup.config.options.no_ack
        self._loop_lag = setup.config.loop_lag or math.inf
        self._concurrency = setup.config.concurrency
        self._prefetch = setup.config.prefetch
        self._checks = checks if checks.are_needed else None
        self._recovery = recovery
        self._unacked = recovery.unacked
        self._handlers = handlers
        self._handler_tasks: HandlerTasks[AckOrNack] = HandlerTasks(
            handlers,
            f"subscription {setup.config.name}: handler",
            self._handler_ended,
            self._loop_lag,
            self._loop_blocked,
        )
        self._reports = reports
        self.handler_errors: int = 0
        self._notes = {"originalQueue": setup.queue, "originalVhost": self._config.vhost}
        self._waiting: deque[tuple[AckOrNack, asyncio.Task[bytes | bool] | None]] = deque()
        self._running = 0  # messages with handlers running, stale ones included
        self._is_held = False
        self._is_ending = False
        self._context = copy_context()
        self._is_limited = bool(self._concurrency or setup.config.rate)
        rate = setup.config.rate
        self._rate = None if rate is None else RateLimit(*rate_of(rate))
        self._rate_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    # ------------------------------------------------------------------ arriving

    def deliver(self, channel: Channel, delivery: Delivery) -> None:
        """Accept a delivery from `channel`."""
        headers = delivery.properties.headers
        flag = claim = None
        if headers and RASCAL in headers:
            claim = claim_of(delivery.properties)
            if not self._no_ack:
                flag = is_to_be_nacked(delivery, self._setup.queue)
            if flag is False:
                delivery = unflagged(delivery, self._setup.queue)
        unacked = self._unacked
        message = Message(
            delivery, self._queue, self._vhost, unacked.touch_on(channel), self._notes
        )
        if delivery.redelivered:
            message.returns = self._recovery.returns_of(message)
        ack_or_nack = AckOrNack(self._recovery, channel, message)
        unacked.add(ack_or_nack)
        if unacked.position is not None and not unacked.position.take(delivery):
            unacked.skip(ack_or_nack)
        elif flag:
            # It carries the error of its first time round to the dead-letter exchange.
            self._handlers.spawn(ack_or_nack(noted_error(message), Nack()), "immediate nack")
        elif (
            self._checks is not None
            or claim is not None
            or self._waiting
            or ((self._is_limited or self._is_held or unacked.stale) and not self._has_room())
        ):
            self._wait(ack_or_nack, claim)
        else:
            self._start(ack_or_nack)

    def _wait(self, ack_or_nack: AckOrNack, claim: object) -> None:
        checks, answer = self._checks, None
        if checks is not None and not checks.must_ask(ack_or_nack):
            checks = None
        if checks is not None:
            checks.line_up(ack_or_nack)
        if checks is not None or claim is not None:
            answer = self._handlers.spawn(self._prepare(ack_or_nack, checks, claim), "checks")
            answer.add_done_callback(self._checked)
        ack_or_nack.is_waiting = True
        self._waiting.append((ack_or_nack, answer))
        self._start_waiting()

    async def _prepare(
        self, ack_or_nack: AckOrNack, checks: Checks | None, claim: object
    ) -> bytes | bool:
        """Run the checks, and fetch a body that is in a store.

        Returns whether the message is to be handled, or the body to handle.
        """
        if checks is not None and not await self._check(ack_or_nack, checks):
            return False
        if claim is None:
            return True
        try:
            if self._setup.bodies is None:
                raise BodyMissingError(f"subscription {self._config.name!r} has no claim_check")
            return await self._setup.bodies.fetch(claim)
        except InvalidContentError as error:
            self._refuse(ack_or_nack, unreadable(error))
        except ClaimCheckError as error:
            self._failed(ack_or_nack, error)
        return False

    async def _check(self, ack_or_nack: AckOrNack, checks: Checks) -> bool:
        """Run the checks and deal with a refusal; True if the message is to be handled."""
        verdict = await checks.ask(ack_or_nack)
        if isinstance(verdict, DeliveryRefusal):
            self._refuse(ack_or_nack, verdict)
        elif verdict is Passed.DUPLICATE and ack_or_nack.is_open:
            self._unacked.skip(ack_or_nack)
            self._reports.emit("duplicate", ack_or_nack.message)
        return verdict is Passed.YES

    def _checked(self, answer: asyncio.Task[bytes | bool]) -> None:
        self._start_waiting()

    def _has_room(self) -> bool:
        """False while the limit of concurrent handlers, or the rate, is reached; True takes one
        start of the rate.

        Handlers of deliveries that were lost count too. Else each lost channel would add as many
        handlers as the prefetch allows.
        """
        if self._is_held or (self._concurrency and self._running >= self._concurrency):
            return False
        if self._unacked.stale and self._prefetch and self._running >= self._prefetch:
            return False
        return self._rate is None or self._take_start(self._rate)

    def _take_start(self, rate: RateLimit) -> bool:
        """False if the rate is reached; waiting messages are checked again in time."""
        loop = asyncio.get_running_loop()
        wait = rate.take(loop.time())
        if wait and self._rate_timer is None:
            self._rate_timer = loop.call_later(wait, self._rate_again)
        return not wait

    def _rate_again(self) -> None:
        self._rate_timer = None
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start waiting messages, in order, as far as the limit allows."""
        waiting = self._waiting
        while waiting:
            ack_or_nack, answer = waiting[0]
            if answer is not None and not answer.done():
                return
            if answer is not None and (answer.cancelled() or not answer.result()):
                waiting.popleft()[0].is_waiting = False  # taken care of
                continue
            if not self._has_room():
                return
            waiting.popleft()
            ack_or_nack.is_waiting = False
            if ack_or_nack.is_open or self._no_ack:
                fetched = None if answer is None else answer.result()
                self._start(ack_or_nack, fetched if isinstance(fetched, bytes) else None)

    # ------------------------------------------------------------------ holding

    def hold(self) -> None:
        """Start no more handlers. Without acks nothing can be released, so all is handled."""
        self._is_held = not self._no_ack

    def end(self) -> None:
        """Handlers are about to be cancelled, and their messages return to the queue."""
        self._is_ending = True

    def resume(self) -> None:
        """Start again."""
        self._is_held = False
        self._start_waiting()

    def take_waiting(self) -> list[AckOrNack]:
        """Messages that were not started, to be released; none without acks."""
        if self._no_ack:
            return []
        waiting, self._waiting = self._waiting, deque()
        for ack_or_nack, answer in waiting:
            ack_or_nack.is_waiting = False
            if answer is not None:
                answer.cancel()
        return [ack_or_nack for ack_or_nack, _ in waiting]

    # ------------------------------------------------------------------ handing over

    def _start(self, ack_or_nack: AckOrNack, fetched: bytes | None = None) -> None:
        message = ack_or_nack.message
        delivery = message.delivery
        body, content_type = delivery.body, delivery.properties.content_type
        if fetched is not None:
            body = fetched
        try:
            if delivery.fault:
                raise InvalidHeadersError(delivery.fault)
            headers = delivery.properties.headers
            if headers and RASCAL in headers:
                body, content_type = decrypt(self._setup.profiles, body, delivery.properties)
            if self._decompress is not None and delivery.properties.content_encoding:
                encoding = delivery.properties.content_encoding
                body = decompress(body, encoding, self._decompress)
            content_type = self._content_type or content_type
            value = body if content_type is None else content.decode(body, content_type)
        except InvalidContentError as error:
            self._refuse(ack_or_nack, unreadable(error))
        except Exception as error:  # noqa: BLE001 - such as no package to decrypt with
            self._failed(ack_or_nack, error)
        else:
            self._hand_over("message", ack_or_nack, message, value, ack_or_nack)

    def _refuse(self, ack_or_nack: AckOrNack, refusal: DeliveryRefusal) -> None:
        """Pass a refused message to the listeners of the refusal's events;
        report its error and nack it where there are none."""
        for event in refusal.events:
            if self._reports.listeners(event):
                self._hand_over(event, ack_or_nack, refusal.error, ack_or_nack.message, ack_or_nack)
                return
        self._reports.error(refusal.error)
        self._handlers.spawn(ack_or_nack(refusal.error, Nack()), "nack")

    def _hand_over(self, event: str, ack_or_nack: AckOrNack, *args: Any) -> None:
        """Call the handlers: listeners whose failure means that the message needs recovery.

        Each has a context of its own, a copy of the subscriber's: what one sets no other sees.
        """
        for listener in tuple(self._reports.listeners(event)):
            context = self._context.copy()
            begun = perf_counter()
            try:
                result = context.run(listener, *args)
            except PROGRAM_ENDS as error:
                raise_in_loop(error)  # unsettled, the message goes back as the program ends
                return
            except BaseException as error:  # noqa: BLE001 - user code behind a fence
                self._failed(ack_or_nack, error)
                continue
            if type(result) is not CoroutineType:
                if not inspect.isawaitable(result):
                    if (taken := perf_counter() - begun) > self._loop_lag:
                        self._loop_blocked(taken)
                    continue
                result = _awaited(result)
            if not ack_or_nack.handlers:
                self._running += 1
            ack_or_nack.handlers += 1
            self._handler_tasks.start(result, ack_or_nack, context)

    def _handler_ended(
        self,
        ack_or_nack: AckOrNack,
        task: asyncio.Task[Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        ack_or_nack.handlers -= 1
        if not ack_or_nack.handlers:
            self._running -= 1
            if ack_or_nack.is_lost:
                self._unacked.handlers_ended(ack_or_nack)
        if error is None:
            if type(result) is DeliveryRefusal:
                self._refuse(ack_or_nack, result)
        elif isinstance(error, asyncio.CancelledError):
            self._cancelled(ack_or_nack, task, error)
        elif not isinstance(error, PROGRAM_ENDS):
            self._failed(ack_or_nack, error)
        if self._waiting:
            self._start_waiting()

    def _cancelled(
        self, ack_or_nack: AckOrNack, task: asyncio.Task[Any], error: asyncio.CancelledError
    ) -> None:
        """A handler was cancelled, or what it waited for. Nothing else settles its message."""
        if not ack_or_nack.is_begun and not self._is_ending and not _all_are_cancelled(task):
            self._failed(ack_or_nack, error)

    def _failed(self, ack_or_nack: AckOrNack, cause: BaseException) -> None:
        message = ack_or_nack.message
        self.handler_errors += 1
        error = HandlerError(self._config.name, message.message_id, described(cause))
        error.__cause__ = cause
        self._reports.error(error)
        if not ack_or_nack.is_begun:
            self._handlers.spawn(ack_or_nack(cause), "recovery")

    def _loop_blocked(self, seconds: float) -> None:
        self._reports.warn(
            "loop_blocked",
            seconds,
            self._config.name,
            text="a handler kept the event loop busy for %.3g s; use await, or a thread",
            values=(seconds,),
        )


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _all_are_cancelled(ended: asyncio.Task[Any]) -> bool:
    """True while the program ends and `asyncio.run` cancels whatever is left but `ended`."""
    return all(task.cancelling() for task in asyncio.all_tasks() if task is not ended)
