"""The way of a delivery to its handlers: looked at, made to wait, read, handed over.

Deliveries are handed over in the order they came. With a `concurrency`, or while the subscription
is held, they wait here, unstarted, and can be given back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from types import CoroutineType
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.codec import content
from broker_client.codec.encryption import decrypt
from broker_client.config import Nack
from broker_client.consuming import recovery_headers as copies
from broker_client.consuming.checks import Inspection
from broker_client.consuming.loop_lag import watched
from broker_client.consuming.setup import ConsumingSetup
from broker_client.consuming.stream_position import StreamPosition
from broker_client.consuming.unacked import Emit, Unsettled
from broker_client.errors import (
    BrokerClientError,
    HandlerError,
    InvalidContentError,
    UnsupportedError,
)
from broker_client.message import RASCAL, Delivery, Message
from broker_client.runtime.emitter import Listener
from broker_client.runtime.tasks import PROGRAM_ENDS, TaskGroup, raise_in_loop
from broker_client.transport.base import Channel

log = logging.getLogger("broker_client.subscription")

Listeners = Callable[[str], Sequence[Listener]]
_INVALID = ("invalid_content", "invalid_message")


class Intake:
    """Brings deliveries to the listeners of a subscription, behind a fence."""

    def __init__(
        self,
        setup: ConsumingSetup,
        in_hand: Unsettled,
        handlers: TaskGroup,
        emit: Emit,
        listeners: Listeners,
    ) -> None:
        """
        Args:
            setup: of the subscription.
            in_hand: keeps what is delivered until it is settled.
            handlers: owner of the tasks that handlers run in.
            emit: where reports go.
            listeners: the listeners of an event.
        """
        self._setup = setup
        self._config = setup.config
        self._no_ack = setup.config.options.no_ack
        self._loop_lag = setup.config.loop_lag
        self._concurrency = setup.config.concurrency
        self._in_hand = in_hand
        self._handlers = handlers
        self._task_name = f"subscription {setup.config.name}: handler"
        self._emit = emit
        self._listeners = listeners
        self._inspection = Inspection(setup, emit, self.refuse)
        self._inspects = self._inspection.is_needed and not self._no_ack
        self.position = StreamPosition() if setup.is_stream else None
        """Where reading has got to; None where the queue is no stream."""
        if self._inspects or self.position is not None:
            in_hand.on_end.append(self._ended)
        self._notes = {"originalQueue": setup.queue, "originalVhost": self._config.vhost}
        self._waiting: deque[tuple[AckOrNack, asyncio.Task[bool] | None]] = deque()
        self._running = 0  # messages with handlers running; counted where there is a limit
        self._is_held = False

    def __len__(self) -> int:
        return len(self._waiting)

    # ------------------------------------------------------------------ arriving

    def deliver(self, channel: Channel, delivery: Delivery) -> None:
        """A delivery has come by `channel`."""
        headers = delivery.properties.headers
        flag = None
        if headers and RASCAL in headers and not self._no_ack:
            flag = copies.is_to_be_nacked(delivery, self._setup.queue)
            if flag is False:
                delivery = copies.unflagged(delivery, self._setup.queue)
        message = Message(
            delivery,
            queue=self._setup.queue,
            vhost=self._config.vhost,
            touch=self._in_hand.touch_by(channel),
            notes=self._notes,
        )
        settle = AckOrNack(self._in_hand, channel, message)
        self._in_hand.add(settle)
        if self.position is not None and not self.position.take(delivery):
            settle.skip()
        elif flag:
            # It carries the error of its first time round to the dead-letter exchange.
            self._handlers.spawn(settle("immediate nack", Nack()), "immediate nack")
        elif self._inspects or self._waiting or not self._has_room():
            self._wait(settle)
        else:
            self._start(settle)

    def _wait(self, settle: AckOrNack) -> None:
        question = self._inspection.begin(settle) if self._inspects else None
        answer = None
        if question is not None:
            answer = self._handlers.spawn(question, "inspection")
            answer.add_done_callback(self._answered)
        self._waiting.append((settle, answer))
        self._pump()

    def _answered(self, answer: asyncio.Task[bool]) -> None:
        self._pump()

    def _has_room(self) -> bool:
        limit = self._concurrency
        return not self._is_held and (limit is None or self._running < limit)

    def _pump(self) -> None:
        waiting = self._waiting
        while waiting:
            settle, answer = waiting[0]
            if answer is not None and not answer.done():
                return
            if answer is not None and (answer.cancelled() or not answer.result()):
                waiting.popleft()  # taken care of
                continue
            if not self._has_room():
                return
            waiting.popleft()
            if settle.is_open or self._no_ack:
                self._start(settle)

    # ------------------------------------------------------------------ holding

    def hold(self) -> None:
        """Start nothing from now on. Without acks there is no giving back: all is handled."""
        self._is_held = not self._no_ack

    def go_on(self) -> None:
        """Start again."""
        self._is_held = False
        self._pump()

    def give_back(self) -> None:
        """Return to the queue what has not been started."""
        if self._no_ack:
            return
        waiting, self._waiting = self._waiting, deque()
        for settle, answer in waiting:
            if answer is not None:
                answer.cancel()
            settle.give_back()

    # ------------------------------------------------------------------ handing over

    def _start(self, settle: AckOrNack) -> None:
        message = settle.message
        delivery = message.delivery
        body, content_type = delivery.body, delivery.properties.content_type
        try:
            headers = delivery.properties.headers
            if headers and RASCAL in headers:
                body, content_type = decrypt(self._setup.profiles, body, delivery.properties)
            value = content.decode(body, self._config.content_type or content_type)
        except InvalidContentError as error:
            self.refuse(_INVALID, settle, error)
        except UnsupportedError as error:  # no package to decrypt with: the message is good
            self._failed(settle, error)
        else:
            self._hand_over("message", settle, message, value, settle)

    def refuse(self, events: tuple[str, ...], settle: AckOrNack, error: BrokerClientError) -> None:
        """Leave a message that handlers do not get to the listeners of the first of `events`
        that has any; else report the error and nack."""
        for event in events:
            if self._listeners(event):
                self._hand_over(event, settle, error, settle.message, settle)
                return
        self._emit("error", error)
        self._handlers.spawn(settle(error, Nack()), "nack")

    def reject(self, error: InvalidContentError, message: Message, settle: AckOrNack) -> None:
        """A body that its handler cannot take."""
        self.refuse(_INVALID, settle, error)

    def _hand_over(self, event: str, settle: AckOrNack, *args: Any) -> None:
        """Call the handlers: listeners whose failure means that the message needs recovery."""
        limit = self._loop_lag
        tasks: list[asyncio.Task[None]] | None = None if self._concurrency is None else []
        for listener in tuple(self._listeners(event)):
            begun = perf_counter()
            try:
                result = listener(*args)
            except PROGRAM_ENDS as error:
                raise_in_loop(error)  # unsettled, the message goes back as the program ends
                return
            except BaseException as error:  # noqa: BLE001 - user code behind a fence
                self._failed(settle, error)
                continue
            if type(result) is CoroutineType:
                if limit:
                    result = watched(result, limit, self._loop_blocked)
            elif not inspect.isawaitable(result):
                if limit and (taken := perf_counter() - begun) > limit:
                    self._loop_blocked(taken)
                continue
            task = self._handlers.attend(self._finish(result, settle), self._task_name)
            if tasks is not None:
                tasks.append(task)
        if tasks:
            self._running += 1
            self._free_after(tasks)

    def _free_after(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let the next message start once all of `tasks`, one message's handlers, have ended."""
        left = len(tasks)

        def ended(task: asyncio.Task[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._running -= 1
                self._pump()

        for task in tasks:
            task.add_done_callback(ended)

    async def _finish(self, work: Awaitable[Any], settle: AckOrNack) -> None:
        try:
            await work
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._failed(settle, error)  # something it waited for was cancelled
        except (*PROGRAM_ENDS, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - user code behind a fence
            self._failed(settle, error)
        finally:
            self._handlers.leave()

    def _failed(self, settle: AckOrNack, cause: BaseException) -> None:
        message = settle.message
        self._in_hand.counts["errors"] += 1
        error = HandlerError(self._config.name, message.message_id, _described(cause))
        error.__cause__ = cause
        self._emit("error", error)
        if not settle.is_begun:
            self._handlers.spawn(settle(cause), "recovery")

    def _loop_blocked(self, seconds: float) -> None:
        if not self._emit("loop_blocked", seconds, self._config.name):
            log.warning(
                "subscription %s: a handler kept the event loop busy for %.3g s; "
                "use await, or a thread",
                self._config.name,
                seconds,
            )

    # ------------------------------------------------------------------ ending

    def _ended(self, settle: AckOrNack, how: str) -> None:
        if self.position is not None:
            if how in ("lost", "timed_out", "released"):
                self.position.returned(settle.message.delivery)
            else:
                self.position.settled(settle.message.delivery)
        if self._inspects:
            writing = self._inspection.ended(settle, how)
            if writing is not None:
                self._handlers.spawn(writing, "remember")


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
