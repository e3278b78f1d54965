"""Builders: a message, an engine with two connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from broker_client.core.arguments import Arguments
from broker_client.core.effects import Confirm, Deliver, Effect, Return
from broker_client.core.engine import Engine
from broker_client.core.exchange import Destination
from broker_client.core.settings import EngineSettings
from broker_client.core.snapshots import QueueStats
from broker_client.message import Delivery, Outgoing, Properties


def a_message(
    routing_key: str = "q",
    body: bytes = b"hello",
    *,
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> Outgoing:
    """A message to the default exchange, so by default for queue ``q``."""
    return Outgoing(exchange, routing_key, body, Properties(**properties), mandatory)


class EngineHarness:
    """An engine with a connection and a channel, and a time that the test controls.

    `channel` has confirms; `take` sorts the effects so that a test can look at one kind.
    """

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine(EngineSettings(**settings))
        self.now = 1_000.0
        self.connection = self.engine.open_connection("/")
        self.channel = self.engine.open_channel(self.connection, confirm=True)

    def queue(self, name: str = "q", *, channel: int | None = None, **options: Any) -> str:
        arguments = options.pop("arguments", None) or {
            f"x-{key.replace('_', '-')}": options.pop(key)
            for key in list(options)
            if key not in ("durable", "exclusive", "auto_delete")
        }
        return self.engine.topology.declare_queue(
            channel or self.channel, name, self.now, arguments=arguments, **options
        ).name

    def publish(self, *messages: Outgoing, channel: int | None = None) -> None:
        for message in messages:
            self.engine.publishing.publish(channel or self.channel, message, self.now)

    def consume(self, queue: str = "q", *, channel: int | None = None, **options: Any) -> str:
        return self.engine.consuming.consume(channel or self.channel, queue, self.now, **options)

    def get(self, queue: str = "q", **options: Any) -> Delivery | None:
        got = self.engine.consuming.get(self.channel, queue, self.now, **options)
        return got[0] if got else None

    def ack(self, tag: int, **options: Any) -> None:
        self.engine.consuming.ack(self.channel, tag, self.now, **options)

    def nack(self, tag: int, **options: Any) -> None:
        self.engine.consuming.nack(self.channel, tag, self.now, **options)

    def advance(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.now += seconds
        self.engine.tick(self.now)

    def finish(self) -> int:
        """Do the long work that is pending; returns in how many steps."""
        count = 0
        while self.engine.long_work.is_pending:
            self.engine.long_work.proceed(self.now)
            count += 1
        return count

    def another_channel(self, **options: Any) -> int:
        return self.engine.open_channel(self.connection, **options)

    def bind(
        self, queue: str, exchange: str, binding_key: str = "", arguments: Arguments | None = None
    ) -> None:
        destination = Destination("queue", queue)
        self.engine.topology.bind(self.channel, destination, exchange, binding_key, arguments or {})

    def take(self) -> list[Effect]:
        return self.engine.take_effects()

    def deliveries(self) -> list[Delivery]:
        return [effect.delivery for effect in self.take() if isinstance(effect, Deliver)]

    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries()]

    def confirms(self) -> list[tuple[int, int, bool]]:
        return [(e.first, e.last, e.acked) for e in self.take() if isinstance(e, Confirm)]

    def returns(self) -> list[Return]:
        return [effect for effect in self.take() if isinstance(effect, Return)]

    def drain(self, queue: str = "q") -> list[bytes]:
        """Get and ack all ready messages."""
        bodies = []
        while (delivery := self.get(queue, no_ack=True)) is not None:
            bodies.append(delivery.body)
        return bodies

    def stats(self, queue: str = "q") -> QueueStats:
        return next(stats for stats in self.engine.stats() if stats.name == queue)


def command_of(engine: Engine, name: str) -> Callable[..., Any]:
    """The command of that name, from any group."""
    groups = engine.topology, engine.publishing, engine.consuming, engine.admin, engine.policies
    [found] = [getattr(group, name) for group in groups if hasattr(group, name)]
    return cast(Callable[..., Any], found)
