"""Harnesses for subscriptions and single deliveries, with a fake vhost and publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from broker_client.ackornack import AckOrNack
from broker_client.config import Forward, SubscriptionConfig
from broker_client.config.loader import load_config
from broker_client.connection.vhost import Vhost
from broker_client.consuming.checks import Checks
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.recovery import Recovery
from broker_client.consuming.reports import Reports
from broker_client.consuming.setup import ConsumingSetup, ConsumingStores
from broker_client.consuming.unacked import Unacked
from broker_client.message import Delivery, Message, Outgoing, Properties
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup
from broker_client.subscription import Subscription
from broker_client.transport.base import Capabilities
from tests.support.links import FakeChannel, FakeLink
from tests.support.warp import settle

Kept = tuple[Message, Any, AckOrNack]


def a_setup(
    url: str = "embedded://",
    queue: dict[str, int] | None = None,
    options: dict[str, Any] | None = None,
) -> ConsumingSetup:
    """The set-up that a Broker derives from a whole configuration, of a subscription `s`."""
    config = load_config(
        {
            "vhosts": {
                "/": {
                    "connection": {"url": url},
                    "queues": {"q": {"options": {"arguments": queue or {}}}},
                    "subscriptions": {"s": {"queue": "q", "options": options or {}}},
                }
            }
        }
    )
    return ConsumingStores(config, {}).setup(config.subscriptions["s"])


def a_message(tag: int) -> Message:
    delivery = Delivery("ctag", tag, False, "x", "k", b"", Properties())
    return Message(delivery, queue="q", vhost="/", touch=lambda tag: 0.0)


class SubscriptionHarness:
    """Use it as ``async with SubscriptionHarness(prefetch=5) as harness``.

    Args:
        setup: what else `ConsumingSetup` shall say.
        capabilities: of the link.
        settings: of the subscription ``orders`` to the queue ``fulfil``.
    """

    def __init__(
        self,
        *,
        setup: Mapping[str, Any] | None = None,
        capabilities: Capabilities | None = None,
        **settings: Any,
    ) -> None:
        self._capabilities = capabilities or Capabilities()
        self.link = FakeLink(capabilities=self._capabilities)
        self.up = asyncio.Event()
        self.up.set()
        self.republished: list[Outgoing] = []
        self.tasks = TaskGroup("test")
        config = SubscriptionConfig.model_validate(
            {"name": "orders", "queue": "fulfil", "retry": {"min": 1.0, "max": 8.0}, **settings}
        )
        parts = {"queue": config.queue, **(setup or {})}
        self.subscription = Subscription(
            config,
            cast(Vhost, self),
            cast(Publisher, self),
            self.tasks,
            setup=ConsumingSetup(config, **parts),
        )
        self.heard: list[tuple[str, tuple[Any, ...]]] = []
        self.kept: list[Kept] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.subscription.cancel()
        await self.tasks.cancel()

    # ------------------------------------------------------------------ the vhost, the broker

    async def wait_up(self) -> FakeLink:
        await self.up.wait()
        return self.link

    async def restore_topology(self) -> None:
        """Nothing is declared."""

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        self.republished.append(outgoing)

    async def forward_copy(
        self, message: Message, headers: Mapping[str, Any], strategy: Forward
    ) -> None:
        raise AssertionError("nothing here forwards")

    def replace_link(self) -> None:
        """Lose the link; a new one is up at once."""
        old, self.link = self.link, FakeLink(capabilities=self._capabilities)
        old.lose()

    # ------------------------------------------------------------------ the test

    @property
    def channel(self) -> FakeChannel:
        return self.link.consuming()

    def listen(self, *events: str) -> None:
        for event in events:
            self.subscription.on(event, self._hearer(event))

    def _hearer(self, event: str) -> Callable[..., None]:
        return lambda *args: self.heard.append((event, args))

    def events(self) -> list[str]:
        return [event for event, _ in self.heard]

    async def consume(self, handler: Callable[..., Any] | None = None) -> FakeChannel:
        """Start with `handler`, which by default keeps its messages; returns the channel."""
        self.subscription.on("message", handler or (lambda *args: self.kept.append(args)))
        await settle()
        return self.channel

    def contents(self) -> list[Any]:
        return [content for _, content, _ in self.kept]


class RecordingPublisher:
    """A publisher that keeps copies, and confirms each at once, or fails."""

    def __init__(self) -> None:
        self.republished: list[Outgoing] = []
        self.forwarded: list[tuple[Message, Mapping[str, Any], Forward]] = []
        self.failure: Exception | None = None
        self.before_confirm: Callable[[], object] = lambda: None

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        self.republished.append(outgoing)
        self._confirm()

    async def forward_copy(
        self, message: Message, headers: Mapping[str, Any], strategy: Forward
    ) -> None:
        self.forwarded.append((message, headers, strategy))
        self._confirm()

    def _confirm(self) -> None:
        self.before_confirm()
        if self.failure is not None:
            raise self.failure


class _Events(Emitter):
    EVENTS = Subscription.EVENTS


class SettlingHarness:
    """One delivery of queue ``fulfil`` with tag 7, and its settlement.

    Without a chain of its own its message is requeued at once.

    Args:
        headers: of the message.
        exchange: it was published to.
        routing_key: it was published with.
        dead_letter_exchange: of the queue.
        capabilities: of the broker.
        recovery: the subscription's own chain.
        properties: of the message.
    """

    def __init__(
        self,
        headers: dict[str, Any] | None = None,
        *,
        exchange: str = "orders",
        routing_key: str = "placed",
        dead_letter_exchange: str | None = "dlx",
        capabilities: Capabilities | None = None,
        max_hops: int | None = None,
        recovery: list[dict[str, Any]] | None = None,
        **properties: Any,
    ) -> None:
        self.channel = FakeChannel(capabilities=capabilities or Capabilities())
        self.publisher = RecordingPublisher()
        config = SubscriptionConfig.model_validate(
            {
                "name": "orders",
                "queue": "fulfil",
                "recovery": [{"strategy": "nack", "requeue": True}]
                if recovery is None
                else recovery,
                "max_hops": max_hops,
            }
        )
        setup = ConsumingSetup(config, "fulfil", dead_letter_exchange=dead_letter_exchange)
        self.events = events = _Events(TaskGroup("test"))
        self.reported: dict[str, list[Any]] = {}
        for event in ("ack_lost", "already_settled", "recovery_failed"):
            errors = self.reported[event] = []
            events.on(event, lambda *args, errors=errors: errors.append(args[-1]))
        reports = Reports("orders", events)
        self.unacked = Unacked(setup, Checks(setup, reports), TaskGroup("test"), reports)
        self.recovery = Recovery(
            setup, cast(Publisher, self.publisher), self.unacked, TaskGroup("test"), reports
        )
        self.recovery.can_defer = self.channel.capabilities.deferred_requeue
        given: dict[str, Any] = {"content_type": "text/plain", "message_id": "m1", "priority": 3}
        given |= properties
        self.message = self._deliver(
            7, exchange, routing_key, Properties(headers=headers, **given)
        ).message

    def _deliver(
        self, tag: int, exchange: str, routing_key: str, properties: Properties
    ) -> AckOrNack:
        delivery = Delivery("ctag", tag, False, exchange, routing_key, b"body", properties)
        message = Message(delivery, queue="fulfil", vhost="/", touch=lambda tag: 0.0)
        ack_or_nack = AckOrNack(self.recovery, self.channel, message)
        self.unacked.add(ack_or_nack)
        if tag == 7:
            self.settle = ack_or_nack
        return ack_or_nack

    async def settle_all_through_the_next(self) -> None:
        """A later delivery arrives, and its handler acks all up to it."""
        await self._deliver(8, "orders", "placed", Properties())(all=True)

    @property
    def sent(self) -> list[tuple[Any, ...]]:
        """The settlements on the wire."""
        return self.channel.settled

    @property
    def outcomes(self) -> list[DeliveryOutcome]:
        """The outcomes of deliveries."""
        return [outcome for outcome, count in self.unacked.counts.items() for _ in range(count)]


class GatedHandler:
    """A handler that waits for `open`, and then acks."""

    def __init__(self) -> None:
        self.running: list[str | None] = []
        self.most = 0
        self.begun: list[str | None] = []
        self._open = asyncio.Event()
        self._turns = asyncio.Semaphore(0)

    async def __call__(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        self.begun.append(message.message_id)
        self.running.append(message.message_id)
        self.most = max(self.most, len(self.running))
        await self._turns.acquire()
        self.running.remove(message.message_id)
        await ack_or_nack()

    async def let(self, count: int) -> None:
        """Let `count` handlers, running or future, continue."""
        for _ in range(count):
            self._turns.release()
        await settle()
