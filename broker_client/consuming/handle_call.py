"""Middleware around handlers: what it is called with, and the chain of one subscription."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.settlements import Settlements
from broker_client.events.delivery_event import trace_id_of
from broker_client.message import Message
from broker_client.runtime.emitter import Listener, WrappedListener
from broker_client.runtime.middleware import Next, chained
from broker_client.runtime.slotted import slotted

Invoke = Callable[[Message, Any, AckOrNack], Awaitable[Any]]
"""Calls a handler."""


@slotted(frozen=False, eq=False)
class HandleCall:
    """One delivery on its way through the middleware to its handler."""

    subscription: str
    """Name of the subscription."""
    message: Message
    content: Any
    """The content as the handler gets it; middleware may replace it."""
    ack_or_nack: AckOrNack
    trace_id: str | None
    """Trace id of the message (W3C ``traceparent``), or of the span around its handler."""
    _settlements: Settlements = field(repr=False)
    _has_returned: bool = field(default=False, init=False, repr=False)

    def when_settled(self, then: Callable[[DeliveryOutcome], None]) -> None:
        """Call `then` with the outcome once the message is settled or lost; at once if it is.

        Not called for a subscription with `no_ack`, where nothing is settled.
        """
        entry = self.ack_or_nack
        if entry.outcome is not None:
            then(entry.outcome)
        elif not entry.is_lost:
            self._settlements.watch(self.message, then)


HandleNext = Next[HandleCall, Any]
"""What middleware calls to continue: ``result = await call_next(call)``."""

HandleMiddleware = Callable[[HandleCall, HandleNext], Awaitable[Any]]
"""An async function around each call of a handler; it returns the result of `call_next`."""


class HandlerChain:
    """The middleware around the handlers of one subscription."""

    def __init__(
        self, subscription: str, middleware: Sequence[HandleMiddleware], settlements: Settlements
    ) -> None:
        """
        Args:
            subscription: its name.
            middleware: the outermost first.
            settlements: tell how a delivery ended.
        """
        self._subscription = subscription
        self._middleware = middleware
        self._settlements = settlements

    def around(self, invoke: Invoke) -> Invoke:
        """A function that calls a handler by `invoke`, inside the middleware."""
        run = self._runner(invoke)

        def call(message: Message, content: Any, ack_or_nack: AckOrNack) -> Awaitable[Any]:
            return run(self._call(message, content, ack_or_nack))

        return call

    def around_listener(self, listener: Listener) -> Listener:
        """A `message` listener that calls `listener` inside the middleware.

        A listener settles its message itself. If middleware does not call it, or handles what it
        raised, the message counts as handled, and is acked here.
        """

        async def invoke(message: Message, content: Any, ack_or_nack: AckOrNack) -> Any:
            result = listener(message, content, ack_or_nack)
            return await result if inspect.isawaitable(result) else result

        run = self._runner(invoke)

        async def listen(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            call = self._call(message, content, ack_or_nack)
            await run(call)
            if not call._has_returned and not ack_or_nack.is_begun:  # noqa: SLF001 - of this module
                await ack_or_nack()

        return WrappedListener(listener, listen)

    def _call(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> HandleCall:
        trace_id = trace_id_of(message.properties.headers)
        return HandleCall(
            self._subscription, message, content, ack_or_nack, trace_id, self._settlements
        )

    def _runner(self, invoke: Invoke) -> HandleNext:
        async def run(call: HandleCall) -> Any:
            result = await invoke(call.message, call.content, call.ack_or_nack)
            call._has_returned = True  # noqa: SLF001 - of this module
            return result

        return chained(self._middleware, run)
