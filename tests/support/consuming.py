"""A subscription whose vhost and broker are the test itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from broker_client.ackornack import AckOrNack
from broker_client.config import SubscriptionConfig
from broker_client.consuming.setup import ConsumingSetup
from broker_client.message import Message, Outgoing
from broker_client.runtime.tasks import TaskGroup
from broker_client.subscription import Subscription
from broker_client.transport.base import Capabilities
from tests.support.links import FakeChannel, FakeLink
from tests.support.warp import settle

Kept = tuple[Message, Any, AckOrNack]


class ConsumerDesk:
    """Use it as ``async with ConsumerDesk(prefetch=5) as desk``.

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
            config, self, self, self.tasks, setup=ConsumingSetup(config, **parts)
        )
        self.heard: list[tuple[str, tuple[Any, ...]]] = []
        self.kept: list[Kept] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
    ) -> None:
        raise AssertionError("nothing here forwards")

    def replace_link(self) -> None:
        """Lose the link; the next is up at once."""
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
        """Start with `handler`, which by default keeps what it gets; returns the channel."""
        self.subscription.on("message", handler or (lambda *args: self.kept.append(args)))
        await settle()
        return self.channel

    def contents(self) -> list[Any]:
        return [content for _, content, _ in self.kept]


class Gate:
    """A handler that runs until it is told to go on, and then acks."""

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
        """Have `count` of those that run, or will, go on."""
        for _ in range(count):
            self._turns.release()
        await settle()
