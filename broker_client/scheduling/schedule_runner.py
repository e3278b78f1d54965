"""`ScheduleRunner`: one schedule, run by one of the processes that share it.

The schedule is kept in a durable queue of its own on the broker: one message with the last time
that was dealt with. The queue has a single active consumer, so one process at a time holds that
message, unsettled, and only this process publishes. When it goes, the broker gives the message to
the next. After each publish, a message with the new time takes the place of the old one, which is
acked once the new one has arrived.

A process that gets the message does not act yet: a crash between the two may have left two of them,
and the one with the later time counts. It publishes a marker to the queue, and acts when the marker
comes: by then it has seen everything that was in front of it. The first marker also shows a process
that the queue was empty, and the schedule is new.

Between the last time and its record there may be a crash: the next process publishes the message
for that time again. Its message id is made of the schedule's name and the time, so it is the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from broker_client.ackornack import AckOrNack
from broker_client.config import Nack, QueueConfig, SubscriptionConfig
from broker_client.config.scheduling import ScheduleConfig
from broker_client.config.topology import QueueOptions
from broker_client.errors import (
    PUBLISH_REFUSALS,
    BrokerClientError,
    BrokerClosedError,
    InvalidContentError,
    UsageError,
)
from broker_client.message import PERSISTENT, Message, Outgoing, Properties
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.clock import Clock
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from broker_client.scheduling.due_times import due_times, times_to_publish
from broker_client.subscription import Subscription

log: logging.Logger = logging.getLogger("broker_client.schedules")

SCHEDULE_HEADER = "x-schedule"
"""Header of a scheduled message: the name of its schedule."""

_LONGEST_WAIT = 60.0  # seconds; the clock may be set meanwhile
_RENEWED_AFTER = 300.0  # seconds; RabbitMQ closes a channel with a delivery unsettled for 30 min
_TRY_AGAIN = 1.0  # seconds
_STOP_TIMEOUT = 5.0  # seconds
_REFUSED: tuple[type[Exception], ...] = (*PUBLISH_REFUSALS, UsageError, InvalidContentError)


def schedule_queue(config: ScheduleConfig) -> QueueConfig:
    """The queue in which a schedule is kept."""
    arguments: dict[str, Any] = {
        "x-single-active-consumer": True,
        "x-message-timeout": 0,  # the built-in broker's: it is held until the next time
    }
    if config.queue_type == "quorum":
        arguments["x-queue-type"] = "quorum"
    return QueueConfig(name=_queue_name(config), options=QueueOptions(arguments=arguments))


def schedule_subscription(config: ScheduleConfig, vhost: str) -> SubscriptionConfig:
    """The consumer of that queue."""
    return SubscriptionConfig(
        name=_queue_name(config), vhost=vhost, queue=_queue_name(config), prefetch=0
    )


def _queue_name(config: ScheduleConfig) -> str:
    return f"broker_client.schedule.{config.name}"


class ScheduleRunner:
    """Takes part in one schedule."""

    def __init__(
        self,
        config: ScheduleConfig,
        publisher: Publisher,
        broker: Emitter,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        """
        Args:
            config: what was declared.
            publisher: publishes the messages, and what is kept.
            broker: notified of failures (`error`).
            clock: tells the time.
            tasks: owner of the task that waits for the next time.
        """
        self.config = config
        self._publisher = publisher
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._due = due_times(config)
        self._subscription: Subscription | None = None
        self._vhost = self._queue = ""
        self._marker = ""
        self._held: AckOrNack | None = None  # the message that makes this process the active one
        self._held_since = 0.0
        self._last: float | None = None
        self._work: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "active" if self.is_active else "standing by"
        return f"<ScheduleRunner {self.config.name}: {state}>"

    @property
    def is_active(self) -> bool:
        """True while this process publishes for the schedule."""
        return self._work is not None and not self._work.done()

    def start(self, subscription: Subscription) -> None:
        """Take part from now on, by the consumer `subscription`, which ends with this."""
        self._subscription = subscription
        self._vhost, self._queue = subscription.config.vhost, subscription.queue
        subscription.on("error", lambda error: self._broker.emit("error", error, self._vhost))
        subscription.on("subscribed", self._mark)
        subscription.on("message", self._received)

    async def stop(self) -> None:
        """Leave the schedule to the other processes. May be called more than once.

        A message on its way is recorded before, so that the next process does not repeat it.
        """
        self._stopped = True
        self._changed.set()
        if self._work is not None:
            await asyncio.wait([self._work], timeout=_STOP_TIMEOUT)
        held = self._let_go()
        if held is not None and held.is_open:
            await held("stopped", Nack(requeue=True))
        if self._subscription is not None:
            await self._subscription.cancel()

    # ------------------------------------------------------------------ becoming active

    def _let_go(self) -> AckOrNack | None:
        held, self._held = self._held, None
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        return held

    async def _mark(self) -> None:
        """Publish a marker to the queue; this process is active once that is delivered to it."""
        self._marker = marker = uuid4().hex
        await self._keep({"marker": marker}, lambda: not self._stopped and self._marker == marker)

    async def _received(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        if self._stopped:
            await ack_or_nack("stopped", Nack(requeue=True))
            return
        if self._held is not None and self._held.is_lost:
            self._let_go()  # with its channel; this one is delivered on another
        is_first = self._held is None and not self.is_active
        kept = content if isinstance(content, Mapping) else {}
        if isinstance(last := kept.get("last"), int | float):
            self._last = last if self._last is None else max(self._last, last)
            await self._hold(ack_or_nack)
            if is_first:
                await self._mark()
        elif kept.get("marker") == self._marker and not self.is_active:
            await self._hold(ack_or_nack)
            self._work = self._tasks.spawn(self._run(), f"schedule {self.config.name}")
        else:  # another process has begun to take part
            if is_first:
                await self._mark()
            await ack_or_nack()

    async def _hold(self, ack_or_nack: AckOrNack) -> None:
        """Hold this message instead of the one before."""
        before, self._held = self._held, ack_or_nack
        self._held_since = asyncio.get_running_loop().time()
        self._changed.set()
        if before is not None and before.is_open:
            await before()

    # ------------------------------------------------------------------ being active

    async def _run(self) -> None:
        log.info("%r: publishes from now on", self)
        await self._record(self._clock.now() if self._last is None else self._last)
        while not self._stopped and self._is_held():
            assert self._last is not None
            now = self._clock.now()
            for time in times_to_publish(self.config, self._due, self._last, now):
                if self._stopped or not await self._publish(time):
                    return
                await self._record(time)
            if self._due.after(self._last) <= now:  # what was missed, and is left out
                await self._record(self._due.latest(now))
            if not self._stopped:
                await self._wait()

    def _is_held(self) -> bool:
        return self._held is not None and self._held.is_open

    async def _wait(self) -> None:
        """Wait until the next time, or until a schedule has changed."""
        assert self._last is not None
        age = asyncio.get_running_loop().time() - self._held_since
        if age >= _RENEWED_AFTER:
            await self._record(self._last)
        left = self._due.after(self._last) - self._clock.now()
        self._changed.clear()
        if self._stopped:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(left, 0.0), _LONGEST_WAIT)):
                await self._changed.wait()

    async def _publish(self, time: float) -> bool:
        """Publish the message for `time`; False once another process is to do it."""
        moment = datetime.fromtimestamp(time, UTC)
        text = moment.isoformat().replace("+00:00", "Z")
        content = self.config.content
        if content is None:
            content = {"schedule": self.config.name, "time": text}
        while self._is_held():
            try:
                publication = await self._publisher.publish(
                    self.config.publication,
                    content,
                    self.config.routing_key,
                    {
                        "message_id": f"{self.config.name}@{text}",
                        "timestamp": moment,
                        "headers": {SCHEDULE_HEADER: self.config.name},
                    },
                )
                await publication
            except BrokerClosedError:
                return False
            except _REFUSED as error:  # it would be refused again
                self._broker.emit("error", error, self._vhost)
            except BrokerClientError as error:
                log.warning("%r: again in %g s: %s", self, _TRY_AGAIN, error)
                await asyncio.sleep(_TRY_AGAIN)
                continue
            return True
        return False

    async def _record(self, last: float) -> None:
        """Keep `last` on the broker, from where it comes back to be held."""
        self._last = last
        await self._keep({"last": last}, self._is_held)

    async def _keep(self, content: dict[str, Any], is_wanted: Callable[[], bool]) -> None:
        """Publish `content` to the queue of the schedule, again and again while it is wanted."""
        body = json.dumps(content).encode()
        properties = Properties(
            content_type="application/json", delivery_mode=PERSISTENT, message_id=uuid4().hex
        )
        message = Outgoing("", self._queue, body, properties, mandatory=True)
        while is_wanted():
            try:
                await self._publisher.republish(self._vhost, message)
            except BrokerClientError as error:
                if is_wanted():
                    log.warning("%r: again in %g s: %s", self, _TRY_AGAIN, error)
                await asyncio.sleep(_TRY_AGAIN)
            else:
                return
