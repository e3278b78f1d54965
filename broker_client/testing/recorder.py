"""Records what a program published and handled, for assertions in its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field
from typing import Any

from broker_client.broker import Broker
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.handle_call import HandleCall, HandleNext
from broker_client.message import Message
from broker_client.publication import Publication
from broker_client.publishing.publish_call import PublishCall, PublishNext
from broker_client.runtime.slotted import slotted

_TIMEOUT = 5.0  # seconds to wait for something to be recorded


@slotted(frozen=False, eq=False)
class Published:
    """One publish or forward."""

    publication: str
    content: Any
    routing_key: str
    headers: dict[str, Any]
    message_id: str
    outcome: str = ""
    """The event it ended with: `success`, `return` or `error`; empty until then."""


@slotted(frozen=False, eq=False)
class Handled:
    """One call of a handler."""

    subscription: str
    content: Any
    message: Message
    error: BaseException | None = None
    """What the handler raised."""
    outcome: str = ""
    """How the delivery ended, such as `acked` or `nacked`; empty until then."""
    is_dead_lettered: bool = field(default=False, repr=False)


class Recorder:
    """Middleware that notes every publish and every call of a handler, in order."""

    def __init__(self, broker: Broker) -> None:
        self._published: list[Published] = []
        self._handled: list[Handled] = []
        self._changed: asyncio.Event = asyncio.Event()
        broker.middleware("publish")(self._publish)
        broker.middleware("handle")(self._handle)

    def __repr__(self) -> str:
        return f"<Recorder: {len(self._published)} published, {len(self._handled)} handled>"

    # ------------------------------------------------------------------ what was recorded

    def published(self, publication: str | None = None) -> list[Published]:
        """The publishes through `publication`, or all, whatever their outcome."""
        return [each for each in self._published if publication in (None, each.publication)]

    def handled(self, subscription: str | None = None) -> list[Handled]:
        """What handlers of `subscription`, or all, have handled: the messages that were acked."""
        return [each for each in self.calls(subscription) if each.outcome == "acked"]

    def dead_lettered(self, subscription: str | None = None) -> list[Handled]:
        """Messages that were refused without requeue, after the attempts that recovery allows."""
        return [each for each in self.calls(subscription) if each.is_dead_lettered]

    def calls(self, subscription: str | None = None) -> list[Handled]:
        """Every call of a handler, those that failed included."""
        return [each for each in self._handled if subscription in (None, each.subscription)]

    # ------------------------------------------------------------------ waiting

    async def until(
        self,
        condition: Callable[[], object],
        timeout: float = _TIMEOUT,
        what: str = "the condition",
    ) -> None:
        """Return once `condition()` is true; it is asked whenever something was recorded.

        Args:
            condition: looks at this recorder.
            timeout: seconds; of virtual time, where the test has that.
            what: is waited for, to name it in the error.

        Raises:
            AssertionError: it did not become true; tells what was recorded.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            raise AssertionError(
                f"waited {timeout:g} s for {what}; published: {self._published}, "
                f"calls of handlers: {self._handled}"
            ) from None

    async def wait_handled(
        self, subscription: str, count: int = 1, timeout: float = _TIMEOUT
    ) -> list[Handled]:
        """`handled`, once there are `count` of them. Raises as `until` does."""
        what = f"{count} messages handled by {subscription!r}"
        await self.until(lambda: len(self.handled(subscription)) >= count, timeout, what)
        return self.handled(subscription)

    async def wait_dead_lettered(
        self, subscription: str, count: int = 1, timeout: float = _TIMEOUT
    ) -> list[Handled]:
        """`dead_lettered`, once there are `count` of them. Raises as `until` does."""
        what = f"{count} messages dead-lettered by {subscription!r}"
        await self.until(lambda: len(self.dead_lettered(subscription)) >= count, timeout, what)
        return self.dead_lettered(subscription)

    async def wait_published(
        self, publication: str, count: int = 1, timeout: float = _TIMEOUT
    ) -> list[Published]:
        """`published`, once `count` of them have ended. Raises as `until` does."""

        def ended() -> list[Published]:
            return [each for each in self.published(publication) if each.outcome]

        what = f"{count} publishes through {publication!r}"
        await self.until(lambda: len(ended()) >= count, timeout, what)
        return ended()

    # ------------------------------------------------------------------ middleware

    async def _publish(self, call: PublishCall, call_next: PublishNext) -> Publication:
        publication = await call_next(call)
        outgoing = publication.outgoing
        record = Published(
            call.publication,
            call.content,
            outgoing.routing_key,
            dict(outgoing.properties.headers or {}),
            publication.message_id,
        )
        self._published.append(record)
        self._changed.set()

        def ended(publication: Publication) -> None:
            record.outcome = publication.event
            self._changed.set()

        publication.observe(ended)
        return publication

    async def _handle(self, call: HandleCall, call_next: HandleNext) -> Any:
        record = Handled(call.subscription, call.content, call.message)
        self._handled.append(record)

        def settled(outcome: DeliveryOutcome) -> None:
            record.is_dead_lettered = call.ack_or_nack.is_refused
            record.outcome = outcome.value
            self._changed.set()

        call.when_settled(settled)
        self._changed.set()
        try:
            return await call_next(call)
        except BaseException as error:
            record.error = error
            raise
