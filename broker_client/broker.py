"""The Broker: what an application holds."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack
from uuid import uuid4

from broker_client import content as contents
from broker_client.amqp.encode import check_publish
from broker_client.config import (
    BrokerConfig,
    ConnectionConfig,
    PublicationConfig,
    SubscriptionConfig,
    VhostConfig,
)
from broker_client.config_loader import Source, load_config
from broker_client.consuming import ConsumingStores
from broker_client.emitter import Emitter, Listener
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    UnknownNameError,
    WrongLoopError,
)
from broker_client.handlers import Handler
from broker_client.message import PERSISTENT, TRANSIENT, Message, Outgoing, Properties
from broker_client.publication import Publication
from broker_client.redeliveries import CounterFactory
from broker_client.stats import BrokerStats
from broker_client.subscription import Subscription
from broker_client.tasks import TaskGroup
from broker_client.transport.base import Connector, Link
from broker_client.transport.embedded import EmbeddedNodes
from broker_client.transport.network import NetworkConnector
from broker_client.vhost import Vhost

log = logging.getLogger("broker_client.broker")

H = TypeVar("H", bound=Handler)

_DRAIN_TIMEOUT = 10.0  # seconds `shutdown` waits for publishes to be confirmed


class PublishOverrides(TypedDict, total=False):
    """What one publish may set otherwise than its publication."""

    message_id: str
    headers: Mapping[str, Any]
    content_type: str
    content_encoding: str
    persistent: bool
    mandatory: bool
    priority: int
    expiration: float
    """Seconds."""
    correlation_id: str
    reply_to: str
    timestamp: datetime
    type: str
    user_id: str
    app_id: str
    timeout: float
    """Seconds for the whole publish."""


class Broker(Emitter):
    """Publishes and subscribes by the names of a configuration, and keeps it all alive.

    Make one with `Broker.create`. Events, each with the vhost's name as last argument:
    ``connect(vhost, url)``, ``disconnect(vhost, url)``, ``error(error, vhost)``,
    ``paused(vhost)``, ``resumed(vhost)``, ``vhost_initialised(vhost)``,
    ``blocked(reason, vhost)``, ``unblocked(vhost)``.
    """

    EVENTS: ClassVar[frozenset[str]] = frozenset(
        {
            "error",
            "connect",
            "disconnect",
            "paused",
            "resumed",
            "vhost_initialised",
            "blocked",
            "unblocked",
        }
    )

    def __init__(
        self, config: BrokerConfig, *, counters: Mapping[str, CounterFactory] | None = None
    ) -> None:
        super().__init__(TaskGroup("broker"))
        self.config = config
        self._consuming = ConsumingStores(config, counters or {})
        self._senders = TaskGroup("broker senders")
        self._nodes = EmbeddedNodes(config=config.node)
        self._vhosts: dict[str, Vhost] = {}
        self._routes: dict[str, _Route] = {}
        self._subscriptions: list[Subscription] = []
        self._ending: tuple[Subscription, ...] = ()  # those that `shutdown` cancels
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._closing = False  # subscriptions drain; their handlers may still publish
        self._closed = False
        self._ended = asyncio.Event()

    @classmethod
    def create(
        cls, config: Source, *, counters: Mapping[str, CounterFactory] | None = None
    ) -> _Creating:
        """A connected Broker.

        Args:
            config: path of a YAML file, a mapping of the same shape, or a `BrokerConfig`.
            counters: what makes the `custom` redelivery counters, by their names: each is called
                with its `CounterConfig`.

        Use it as ``async with Broker.create(...) as broker`` or ``await Broker.create(...)``.

        Raises:
            ConfigError: the configuration is wrong; every problem is listed.
            TransportError: a vhost's broker did not answer.
            TopologyError: a vhost cannot be made as declared.
            UnsupportedError: a custom counter has no factory.
        """
        return _Creating(cls, config, counters)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "closing" if self._closing else "open"
        vhosts = ", ".join(f"{v.name}: {v.connection.state}" for v in self._vhosts.values())
        return f"<Broker {state}: {vhosts or 'no vhosts'}>"

    def __reduce__(self) -> str:
        raise TypeError(
            "a Broker cannot be pickled: it owns sockets and tasks; "
            "send the configuration and create a Broker there"
        )

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            for config in self.config.vhosts.values():
                connectors = [self._connector(config, each) for each in config.connections]
                vhost = Vhost(config, connectors, self.emit, self._senders)
                self._vhosts[config.name] = vhost
                await vhost.open()
        except BaseException:
            await self._close_vhosts()
            self._closing = self._closed = True
            self._ended.set()
            raise

    def _listener_failed(self, event: str, error: Exception) -> None:
        log.error("%r: a listener of %r raised", self, event, exc_info=error)
        if event != "error" and self.has_listener("error"):
            self.emit("error", error, "")

    def _connector(self, vhost: VhostConfig, connection: ConnectionConfig) -> Connector:
        url = connection.url.get_secret_value()
        name = connection.vhost_name(vhost.name)
        if connection.is_embedded:
            return self._nodes.connector(url, name)
        return NetworkConnector(url, vhost=name, heartbeat=connection.heartbeat)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> Publication:
        """Publish `content` through the publication `name`.

        Returns once the message is accepted into the publish queue: at once, unless the queue is
        full. What becomes of it, the `Publication` tells: listen to its events, or await it.

        Args:
            name: of the publication, or ``/queue`` or ``/exchange`` without declaring one.
            content: bytes, text, or anything JSON can express (models and dataclasses too).
            routing_key: instead of the publication's.
            overrides: see `PublishOverrides`.

        Raises:
            UnknownNameError: no such publication.
            InvalidContentError: `content` cannot be written as JSON.
            InvalidMessageError: a name is too long, or a header is of a type AMQP cannot carry.
            PublishQueueFullError: the queue is full, and its policy is `reject`.
            PublishTimeoutError: the queue stayed full for the publication's whole `timeout`.
            BrokerClosedError: the broker was shut down.
        """
        loop = self._check_may_publish()
        route = self._route(name)
        body, content_type = contents.encode(content)
        return await self._publish(route, body, content_type, routing_key, overrides, loop.time())

    async def forward(
        self,
        name: str,
        message: Message,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> Publication:
        """Publish a received message, body and properties as they are, through another publication.

        The routing key is `routing_key`, else the publication's own, else the message's; so are
        the properties, each for itself (rascal R-091). Only `persistent`, which every publication
        has, is the message's own unless it is given here.
        """
        loop = self._check_may_publish()
        route = self._route(name)
        properties = message.properties
        given = route.forwarded(properties)
        if "headers" in overrides:
            overrides["headers"] = {**given.get("headers", {}), **overrides["headers"]}
        given.update(overrides)
        key = routing_key or route.config.routing_key or message.routing_key
        return await self._publish(
            route, message.body, properties.content_type, key, given, loop.time()
        )

    async def _publish(
        self,
        route: _Route,
        body: bytes,
        content_type: str | None,
        routing_key: str | None,
        overrides: PublishOverrides,
        now: float,
    ) -> Publication:
        outgoing = route.outgoing(body, content_type, routing_key, overrides)
        publication = Publication(
            route.config.name,
            outgoing,
            route.vhost.publish_queue,
            self._tasks,
            started=now,
            timeout=overrides.get("timeout", route.config.timeout),
            nacks_left=route.config.retry_nacked,
        )
        await route.vhost.publish_queue.put(publication, confirm=route.config.confirm)
        return publication

    def _route(self, name: str) -> _Route:
        route = self._routes.get(name)
        if route is None:
            config = self.config.find_publication(name)
            if config is None:
                raise UnknownNameError("publication", name, list(self.config.publications))
            route = self._routes[name] = _Route(config, self._vhosts[config.vhost])
        return route

    # ------------------------------------------------------------------ subscribing

    async def subscribe(self, name: str, handler: Listener | None = None) -> Subscription:
        """The subscription `name`, which consumes from its first `message` listener on.

        Args:
            name: of the subscription, or ``/queue`` without declaring one.
            handler: the first `message` listener: ``handler(message, content, ack_or_nack)``.

        Raises:
            UnknownNameError: no such subscription.
            BrokerClosedError: the broker was shut down.
        """
        subscription = self._subscribe(self._subscription_config(name))
        if handler is not None:
            subscription.on("message", handler)
        return subscription

    async def subscribe_all(
        self,
        only: Callable[[SubscriptionConfig], bool] | None = None,
        *,
        implied: bool = False,
    ) -> list[Subscription]:
        """All declared subscriptions.

        Args:
            only: takes those alone for which it says True.
            implied: also those that queues have without a declaration (rascal does so always).
        """
        self._check_usable()
        configs = list(self.config.subscriptions.values())
        if implied:
            configs += self.config.implied_subscriptions()
        return [self._subscribe(config) for config in configs if only is None or only(config)]

    def handle(self, name: str) -> Callable[[H], H]:
        """Decorator: the function takes the messages of the subscription `name`.

        It is called as ``handler(content)`` or ``handler(content, message)``; see
        `Subscription.handle`, and `broker_client.handlers` for all it may do.

        Raises:
            UnknownNameError: no such subscription.
            BrokerClosedError: the broker was shut down.
            InvalidHandlerError: the function takes another number of arguments.
        """
        config = self._subscription_config(name)

        def decorate(handler: H) -> H:
            return self._subscribe(config).handle(handler)

        return decorate

    def _subscription_config(self, name: str) -> SubscriptionConfig:
        self._check_usable()
        config = self.config.find_subscription(name)
        if config is None:
            raise UnknownNameError("subscription", name, list(self.config.subscriptions))
        return config

    def _subscribe(self, config: SubscriptionConfig) -> Subscription:
        setup = self._consuming.setup(config)
        vhost = self._vhosts[config.vhost]
        subscription = Subscription(config, vhost, self, self._tasks, setup=setup)
        self._subscriptions = [each for each in self._subscriptions if not each.is_cancelled]
        self._subscriptions.append(subscription)
        return subscription

    async def unsubscribe_all(self) -> None:
        """Cancel every subscription, all at once, each in order."""
        caller = asyncio.current_task()
        subscriptions, self._subscriptions = self._subscriptions, []
        if subscriptions:
            results = await asyncio.gather(
                *(each.cancel_for(caller) for each in subscriptions), return_exceptions=True
            )
            for result in results:
                if isinstance(result, Exception):
                    self.emit("error", result, "")

    # ------------------------------------------------------------------ for recovery

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        """Publish a recovery copy to a queue; returns once it is confirmed (`Republisher`)."""
        queue = self._vhosts[vhost].publish_queue
        publication = Publication(
            f"republish to {outgoing.routing_key}",
            outgoing,
            queue,
            self._tasks,
            started=asyncio.get_running_loop().time(),
            timeout=PublicationConfig.model_fields["timeout"].default,
        )
        await queue.put(publication, confirm=True)
        await publication

    async def forward_copy(
        self,
        publication: str,
        message: Message,
        headers: Mapping[str, Any],
        routing_key: str | None,
    ) -> None:
        """Publish a recovery copy through a publication; returns once confirmed (`Republisher`).

        Always confirmed, whatever the publication says: the original is acked on the strength
        of it (rascal C-22). The copy also gets a CC of ``<queue>.<routing key>``, by which an
        exchange behind it can lead it back to the queue it failed in (R-093).
        """
        route = self._route(publication)
        key = routing_key or route.config.routing_key or message.routing_key
        back = f"{message.queue}.{key}"
        headers = {**headers, "CC": [back]}
        outgoing = Outgoing(
            route.exchange,
            key if route.config.exchange is not None else route.routing_key,
            message.body,
            message.properties._replace(headers=headers),
            mandatory=True,
        )
        queue = route.vhost.publish_queue
        copy = Publication(
            route.config.name,
            outgoing,
            queue,
            self._tasks,
            started=asyncio.get_running_loop().time(),
            timeout=route.config.timeout,
        )
        await queue.put(copy, confirm=True)
        await copy

    # ------------------------------------------------------------------ life

    async def connect(self, vhost: str = "/") -> Link:
        """A link of your own to `vhost`, neither kept alive nor closed by the Broker.

        Raises:
            UnknownNameError: no such vhost.
            TransportError: no address answered.
        """
        self._check_usable()
        return await self._vhost(vhost).open_link()

    async def purge(self) -> int:
        """Empty every declared queue of every vhost; returns how many ready messages went."""
        self._check_usable()
        return sum([await vhost.purge() for vhost in self._vhosts.values()])

    async def nuke(self) -> None:
        """Cancel every subscription, delete every declared exchange and queue, shut down."""
        self._check_usable()
        await self.unsubscribe_all()
        for vhost in self._vhosts.values():
            await vhost.delete()
        await self.shutdown()

    async def bounce(self) -> None:
        """Cancel every subscription and replace every connection (rascal R-216)."""
        self._check_usable()
        await self.unsubscribe_all()
        for vhost in self._vhosts.values():
            vhost.connection.abort("bounced")
            await vhost.connection.wait_up()

    async def shutdown(self, *, timeout: float = _DRAIN_TIMEOUT) -> None:
        """End in order: subscriptions drain, publishes are confirmed, connections close.

        Args:
            timeout: seconds to wait for publishes under way. Those that remain end as
                `PublishAbortedError` (never sent) or `PublishUnconfirmedError` (outcome unknown).

        Each subscription is given its own `close_timeout`; its handlers may publish until then. A
        handler may call this: it is not waited for. Harmless twice.

        Raises:
            WrongLoopError: the broker belongs to another event loop.
        """
        self._check_loop()
        if self._closing:
            caller = asyncio.current_task()
            if not any(each.is_handled_by(caller) for each in self._ending):
                await self._ended.wait()
            return
        self._closing, self._ending = True, tuple(self._subscriptions)
        try:
            await self.unsubscribe_all()
            self._closed = True
            deadline = asyncio.get_running_loop().time() + timeout
            for vhost in self._vhosts.values():
                left = max(0.0, deadline - asyncio.get_running_loop().time())
                if not await vhost.publish_queue.drain(left):
                    log.warning("%r: publishes were not confirmed within %g s", vhost, timeout)
        finally:
            self._closed = True
            await self._close_vhosts()
            self._ended.set()

    async def _close_vhosts(self) -> None:
        for vhost in self._vhosts.values():
            try:
                await vhost.close()
            except BrokerClientError as error:
                log.warning("%r: while closing: %s", vhost, error)
        await self._senders.cancel()
        await self._tasks.wait(timeout=_DRAIN_TIMEOUT)  # async listeners of the last events
        await self._tasks.cancel()
        await self._consuming.close()
        await self._nodes.close()

    def connections(self) -> list[tuple[str, str]]:
        """(vhost, address) of every vhost; passwords are masked."""
        return [(vhost.name, vhost.url) for vhost in self._vhosts.values()]

    def stats(self) -> BrokerStats:
        """A snapshot of everything."""
        return BrokerStats(
            {vhost.name: vhost.stats() for vhost in self._vhosts.values()},
            {each.name: each.stats() for each in self._subscriptions},
        )

    @property
    def nodes(self) -> EmbeddedNodes:
        """The built-in brokers behind `embedded://` addresses: `broker.nodes.node()` is the
        private one, whose `deferred`, `in_flight`, `purge` and `stats` look into its queues."""
        return self._nodes

    def _vhost(self, name: str) -> Vhost:
        if name not in self._vhosts:
            raise UnknownNameError("vhost", name, list(self._vhosts))
        return self._vhosts[name]

    def _check_usable(self) -> None:
        self._check_loop()
        if self._closing:
            raise BrokerClosedError

    def _check_may_publish(self) -> asyncio.AbstractEventLoop:
        loop = self._check_loop()
        if self._closed:
            raise BrokerClosedError
        return loop

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if os.getpid() != self._pid:
            raise WrongLoopError("this Broker was made before the process forked")
        if loop is not self._loop:
            raise WrongLoopError("this Broker belongs to another event loop")
        return loop


class _Creating:
    """What `Broker.create` returns: awaitable, and an async context manager."""

    def __init__(
        self,
        kind: type[Broker],
        source: Source,
        counters: Mapping[str, CounterFactory] | None = None,
    ) -> None:
        self._kind = kind
        self._source = source
        self._counters = counters
        self._broker: Broker | None = None

    def __await__(self) -> Generator[Any, None, Broker]:
        return self._create().__await__()

    async def _create(self) -> Broker:
        broker = self._kind(load_config(self._source), counters=self._counters)
        await broker._open()  # noqa: SLF001 - the other half of `create`
        return broker

    async def __aenter__(self) -> Broker:
        self._broker = await self._create()
        return self._broker

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._broker is not None:
            await self._broker.shutdown()


_TEXT_PROPERTIES = ("content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id")
_FORWARDED = (
    *_TEXT_PROPERTIES,
    "content_type",
    "headers",
    "message_id",
    "priority",
    "timestamp",
)


class _Route:
    """A publication, made ready once: publishing fills in what differs from message to message."""

    __slots__ = ("_mandatory", "_template", "config", "exchange", "routing_key", "vhost")

    def __init__(self, config: PublicationConfig, vhost: Vhost) -> None:
        self.config = config
        self.vhost = vhost
        # AMQP 0-9-1 §3.1.3.1: the default exchange routes to the queue of that name.
        self.exchange = config.exchange if config.exchange is not None else ""
        self.routing_key = config.routing_key if config.queue is None else config.queue
        options = config.options
        self._mandatory = options.mandatory
        self._template = Properties(
            content_type=options.content_type,
            content_encoding=options.content_encoding,
            headers=options.headers or None,
            delivery_mode=PERSISTENT if options.persistent else TRANSIENT,
            priority=options.priority,
            correlation_id=options.correlation_id,
            reply_to=options.reply_to,
            expiration=_milliseconds(options.expiration),
            type=options.type,
            user_id=options.user_id,
            app_id=options.app_id,
        )
        check_publish(Outgoing(self.exchange, self.routing_key, b"", self._template))

    def forwarded(self, properties: Properties) -> PublishOverrides:
        """What a forwarded message brings along, less what this publication says itself."""
        given: PublishOverrides = {}
        for key in _FORWARDED:
            value = getattr(properties, key)
            if value is not None and getattr(self._template, key) is None:
                given[key] = value  # type: ignore[literal-required] # a name out of _FORWARDED
        if properties.headers and self._template.headers:
            given["headers"] = {**properties.headers, **self._template.headers}
        if properties.delivery_mode is not None:
            given["persistent"] = properties.delivery_mode == PERSISTENT
        return given

    def outgoing(
        self,
        body: bytes,
        content_type: str | None,
        routing_key: str | None,
        overrides: PublishOverrides,
    ) -> Outgoing:
        """The message for the wire."""
        template = self._template
        properties = template._replace(
            content_type=template.content_type or content_type,
            message_id=overrides.get("message_id") or uuid4().hex,
        )
        key = self.routing_key if routing_key is None else routing_key
        mandatory = self._mandatory
        if overrides:
            mandatory = overrides.get("mandatory", mandatory)
            properties = _overridden(properties, overrides)
        outgoing = Outgoing(self.exchange, key, body, properties, mandatory)
        if overrides or len(key) > _SURELY_SHORT:
            check_publish(outgoing)
        return outgoing


_SURELY_SHORT = 63  # characters, four bytes at most each: within AMQP's 255 bytes


def _overridden(properties: Properties, overrides: PublishOverrides) -> Properties:
    changes: dict[str, Any] = {
        name: overrides[name]  # type: ignore[literal-required] # a name of both
        for name in (*_TEXT_PROPERTIES, "content_type", "priority", "timestamp")
        if name in overrides
    }
    if "headers" in overrides:
        changes["headers"] = {**(properties.headers or {}), **overrides["headers"]} or None
    if "expiration" in overrides:
        changes["expiration"] = _milliseconds(overrides["expiration"])
    if "persistent" in overrides:
        changes["delivery_mode"] = PERSISTENT if overrides["persistent"] else TRANSIENT
    return properties._replace(**changes)


def _milliseconds(seconds: float | None) -> str | None:
    """RabbitMQ: `expiration` is a whole number of milliseconds, in digits."""
    return None if seconds is None else str(round(seconds * 1000))
