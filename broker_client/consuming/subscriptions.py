"""The subscriptions of a Broker, and what runs around their handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from broker_client.config import ShovelConfig, SubscriptionConfig
from broker_client.connection.vhost import Vhost
from broker_client.consuming.delivery_log import DeliveryLog
from broker_client.consuming.handle_call import HandleMiddleware
from broker_client.consuming.handler_signature import Handler
from broker_client.consuming.setup import ConsumingStores
from broker_client.consuming.shovels import Shovel
from broker_client.errors import InvalidMiddlewareError
from broker_client.events.log import EventLog
from broker_client.events.stats import SubscriptionStats
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from broker_client.subscription import Subscription

H = TypeVar("H", bound=Handler)


class Subscriptions:
    """Makes subscriptions, and knows those that have not ended."""

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        publisher: Publisher,
        stores: ConsumingStores,
        broker: Emitter,
        tasks: TaskGroup,
    ) -> None:
        """
        Args:
            vhosts: by name.
            publisher: publishes copies and replies.
            stores: set up each subscription.
            broker: notified of failures (`error`) that belong to no single subscription.
            tasks: owner of the handlers' tasks.
        """
        self._vhosts, self._publisher, self._stores = vhosts, publisher, stores
        self._broker, self._tasks = broker, tasks
        self.event_log: EventLog | None = None
        """Where to write what happens to each delivery."""
        self._made: list[Subscription] = []
        self._ending: tuple[Subscription, ...] = ()  # those that `close` cancels
        self._handled: dict[str, Subscription] = {}  # the last one of `handle`, by name
        self._middleware: list[tuple[HandleMiddleware, frozenset[str]]] = []
        self._shovelled: set[Subscription] = set()  # they have no handlers of the user

    def __repr__(self) -> str:
        return f"<Subscriptions {self.present!r}>"

    @property
    def present(self) -> tuple[Subscription, ...]:
        """Those that were made and have not ended."""
        return tuple(each for each in self._made if not each.is_ended)

    def stats(self) -> dict[str, SubscriptionStats]:
        """Statistics by name; further subscriptions of one name are ``name (2)`` and so on."""
        found: dict[str, SubscriptionStats] = {}
        for subscription in self._made:
            key, number = subscription.name, 1
            while key in found:
                number += 1
                key = f"{subscription.name} ({number})"
            found[key] = subscription.stats()
        return found

    # ------------------------------------------------------------------ making

    def make(self, config: SubscriptionConfig) -> Subscription:
        """A new subscription, with the middleware that was added before."""
        events = self.event_log
        subscription = Subscription(
            config,
            self._vhosts[config.vhost],
            self._publisher,
            self._tasks,
            setup=self._stores.setup(config),
            log=None if events is None else DeliveryLog(events, config),
            middleware=[
                each for each, names in self._middleware if not names or config.name in names
            ],
        )
        self._forget_ended()
        self._made.append(subscription)
        return subscription

    def handler(
        self,
        config: SubscriptionConfig,
        *,
        type: str | None,
        headers: Mapping[str, Any] | None,
        publish: str | None,
    ) -> Callable[[H], H]:
        """A decorator as `Broker.handle` describes."""

        def decorate(handler: H) -> H:
            subscription = self._handled.get(config.name)
            is_shared = subscription is not None and (
                type is not None or bool(headers) or subscription.has_conditions
            )
            if subscription is None or not is_shared or subscription.is_cancelled:
                subscription = self._handled[config.name] = self.make(config)
            return subscription.handle(handler, type=type, headers=headers, publish=publish)

        return decorate

    def shovel(self, config: ShovelConfig, source: SubscriptionConfig) -> None:
        """Start a shovel that takes the messages of `source`."""
        subscription = self.make(source)
        self._shovelled.add(subscription)
        Shovel(config, self._publisher, self._broker).start(subscription)

    def add_middleware(self, middleware: HandleMiddleware, names: frozenset[str]) -> None:
        """Run `middleware` around each call of a handler from now on.

        Raises:
            InvalidMiddlewareError: a subscription that it is for was made before.
        """
        for each in self.present:
            if (not names or each.name in names) and each not in self._shovelled:
                raise InvalidMiddlewareError(
                    middleware.__qualname__ if callable(middleware) else repr(middleware),
                    f"subscription {each.name!r} was made before it; add middleware first",
                )
        self._middleware.append((middleware, names))

    # ------------------------------------------------------------------ ending

    async def cancel(self) -> None:
        """Cancel all concurrently; each drains as `Subscription.cancel` does."""
        caller = asyncio.current_task()
        if self._made:
            results = await asyncio.gather(
                *(each.cancel_for(caller) for each in self._made), return_exceptions=True
            )
            for result in results:
                if isinstance(result, Exception):
                    self._broker.emit("error", result, "")
        self._forget_ended()

    async def close(self) -> None:
        """`cancel`, for the last time."""
        self._ending = tuple(self._made)
        await self.cancel()

    def has_handler(self, task: asyncio.Task[Any] | None) -> bool:
        """True when `task` is a running handler of those that `close` cancels."""
        return any(each.is_handled_by(task) for each in self._ending)

    async def end(self, caller: asyncio.Task[Any] | None) -> None:
        """Stop at once what `close` did not, such as when it was cancelled."""
        for each in (*self._ending, *self._made):
            await each.end(caller)

    def _forget_ended(self) -> None:
        self._made = list(self.present)

    def bounced(self) -> list[Resubscribed]:
        """Of each that has a consumer: waits until it has another."""
        return [Resubscribed(each) for each in self._made if each.is_subscribed]


class Resubscribed:
    """Waits until a subscription has its consumer again."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._again = asyncio.Event()
        subscription.once("subscribed", lambda *_: self._again.set())

    async def wait(self, deadline: float) -> bool:
        """True once it is subscribed again, is so as soon as its handlers are done, or was
        cancelled; False when time is up (loop time)."""
        while not (
            self._again.is_set() or self.subscription.is_cancelled or self.subscription.awaits_room
        ):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):  # a cancelled subscription tells nobody
                await asyncio.wait_for(self._again.wait(), min(left, 0.1))
        return True
