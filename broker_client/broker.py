"""`Broker`, the facade that applications use."""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack, overload

from broker_client.config import BrokerConfig, SubscriptionConfig, VhostConfig
from broker_client.config.loader import Source, load_config
from broker_client.config.tracing import TracingConfig
from broker_client.connection.connectors import connectors_of
from broker_client.connection.substitutes import Substitutes
from broker_client.connection.vhost import Vhost
from broker_client.consuming.consumer import CANCEL_TIMEOUT
from broker_client.consuming.handle_call import HandleMiddleware
from broker_client.consuming.handler_signature import Handler
from broker_client.consuming.redeliveries import CounterFactory
from broker_client.consuming.setup import ConsumingStores, check_capabilities
from broker_client.consuming.subscriptions import Subscriptions
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    ConnectFailedError,
    InvalidHandlerError,
    TransportError,
    UnknownNameError,
    WrongLoopError,
)
from broker_client.events.health import Health
from broker_client.events.log import EventLog
from broker_client.events.stats import BrokerStats
from broker_client.message import Message
from broker_client.publication import Outcome, Publication
from broker_client.publishing.many import PublishReport
from broker_client.publishing.publish_call import PublishMiddleware
from broker_client.publishing.publish_log import PublishLog
from broker_client.publishing.publisher import Publisher
from broker_client.publishing.requests import Reply
from broker_client.publishing.template import ForwardOverrides, PublishOverrides
from broker_client.publishing.vhost_publisher import VhostPublisher
from broker_client.router import Router
from broker_client.runtime import forks
from broker_client.runtime.clock import WallClock
from broker_client.runtime.creating import Creating
from broker_client.runtime.emitter import Emitter, Listener
from broker_client.runtime.middleware import check_middleware
from broker_client.runtime.tasks import TaskGroup, see_through, wait_in_thread
from broker_client.subscription import Subscription
from broker_client.transport.base import Link
from broker_client.transport.embedded.nodes import EmbeddedNodes, file_url

if TYPE_CHECKING:
    from broker_client.scheduling.schedules import Schedules
    from broker_client.server.endpoints import Endpoints

log: logging.Logger = logging.getLogger("broker_client.broker")

H = TypeVar("H", bound=Handler)
P = TypeVar("P", bound=PublishMiddleware)
M = TypeVar("M", bound=HandleMiddleware)

_BOUNCE_TIMEOUT = 30.0  # seconds
_DRAIN_TIMEOUT = 10.0  # seconds `shutdown` waits for publishes to be confirmed


class Broker(Emitter):
    """Publishes and subscribes by the names in a configuration, and keeps its connections alive.

    Create one with `Broker.create`. Events (as in rascal), most with the vhost's name last:

    * ``connect(vhost, url)``, ``disconnect(vhost, url)``: the connection for publishing, or the
      only one. ``consumers_connected(vhost, url)``, ``consumers_disconnected(vhost, url)``: the
      connection of the consumers, if they have a separate one.
    * ``close(error, vhost)``: the broker closed a connection in order; without a listener it is
      an ``error``. ``error(error, vhost)``: every other failure.
    * ``vhost_initialised(vhost)``: connected, with the topology declared. ``paused(vhost)``,
      ``resumed(vhost)``: publishing. ``blocked(reason, vhost)``, ``unblocked(vhost)``: the broker
      stopped reading from publishers, or reads again; acks are sent meanwhile.
    * ``busy(stats, vhost)``, ``ready(stats, vhost)``: a channel pool, with its `PoolStats`.
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
            "close",
            "consumers_connected",
            "consumers_disconnected",
            "busy",
            "ready",
        }
    )

    def __init__(
        self,
        config: BrokerConfig,
        event_log: EventLog | None = None,
        *,
        counters: Mapping[str, CounterFactory] | None = None,
        substitutes: Substitutes | None = None,
    ) -> None:
        if not isinstance(config, BrokerConfig):
            raise TypeError(
                f"Broker() takes a BrokerConfig and stays closed; for a {type(config).__name__} "
                "write `async with Broker.create(config) as broker`"
            )
        super().__init__(TaskGroup("broker"))
        self.config = config
        self._consuming = ConsumingStores(config, counters or {})
        self._event_log = event_log
        self._senders = TaskGroup("broker senders")
        self._substitutes = substitutes or Substitutes()
        self._nodes = EmbeddedNodes(clock=self._substitutes.clock, config=config.node)
        self._endpoints: Endpoints | None = None
        self._vhosts: dict[str, Vhost] = {}
        self._publishers: dict[str, VhostPublisher] = {}
        self._publisher = Publisher(config, self._publishers, self._tasks)
        self._subscriptions = Subscriptions(
            self._vhosts, self._publisher, self._consuming, self, self._tasks
        )
        self._subscriptions.event_log = event_log
        self._schedules: Schedules | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = forks.count
        self._closing = False  # subscriptions drain; their handlers may still publish
        self._closed = False
        self._half_made = False  # `create` failed; there may be something to nuke
        self._ended = asyncio.Event()
        self._closer: asyncio.Task[None] | None = None
        self._forgotten: weakref.finalize[[str, int], Broker] | None = None

    @classmethod
    def create(
        cls,
        config: Source,
        *,
        event_log: str | Path | None = None,
        counters: Mapping[str, CounterFactory] | None = None,
        substitutes: Substitutes | None = None,
    ) -> Creating[Broker]:
        """A connected Broker.

        Args:
            config: path of a YAML file, a mapping of the same shape, or a `BrokerConfig`.
            event_log: folder for a delivery-event log of what this client sees. The built-in
                broker writes its own log, see `node.event_log` of the configuration.
            counters: factories of the `custom` redelivery counters by name, each called with its
                `CounterConfig`.
            substitutes: what a test replaces; see `broker_client.testing`.

        Use it as ``async with Broker.create(...) as broker`` or ``await Broker.create(...)``.

        Raises:
            ConfigError: the configuration is wrong; every problem is listed.
            TransportError: a vhost's broker did not answer.
            TopologyError: the topology cannot be declared.
            OSError: `event_log` is not writable.
            UnsupportedError: a custom counter has no factory; the broker cannot do what a
                subscription asks for.
        """

        def load() -> BrokerConfig:
            return load_config(config)  # not in `create`: its locals are part of tracebacks

        async def create() -> Broker:
            broker = cls(load(), counters=counters, substitutes=substitutes)
            if event_log is not None:
                events = EventLog(event_log, f"{socket.gethostname()}-client")
                broker._event_log = broker._subscriptions.event_log = events
            await broker._open()
            return broker

        return Creating("Broker", create)

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
        self._loop = self._tasks.loop = asyncio.get_running_loop()
        forks.leave_loop_to_parent(self._loop)
        vhosts = ", ".join(self.config.vhosts)
        text = f"unclosed Broker (vhosts {vhosts}): await its shutdown(), or use `async with`"
        self._forgotten = weakref.finalize(self, _warn_unclosed, text, self._forks)
        try:
            for config in self.config.vhosts.values():
                self._add_vhost(self._make_vhost(config))
            if self.config.tracing is not None:
                self._trace(self.config.tracing)
            for publisher in self._publishers.values():
                outbox = publisher.vhost.config.publish_queue.outbox
                if outbox is not None:
                    await publisher.open_outbox(self._nodes.connector(file_url(outbox), "/"))
                await publisher.vhost.open()
                if any(
                    each.delay and each.vhost == publisher.vhost.name
                    for each in self.config.publications.values()
                ):
                    await publisher.open_relay()
                self._check_subscriptions(publisher.vhost)
            await self._open_endpoints()
            for shovel in self.config.shovels.values():
                source = self._subscription_config(shovel.subscription)
                self._subscriptions.shovel(shovel, source)
            if self.config.schedules:
                self._start_schedules()
        except BaseException as error:
            self._closing = self._closed = True
            await self._close()
            if isinstance(error, BrokerClientError):
                self._half_made, error.broker = True, self
            raise

    async def _open_endpoints(self) -> None:
        """Let others reach the built-in brokers."""
        brokers = [each for vhost in self.config.vhosts.values() for each in vhost.connections]
        if any(each.is_embedded for each in brokers):
            from broker_client.server.endpoints import Endpoints  # imported where there is one

            self._endpoints = Endpoints(self.config, self._nodes)
            await self._endpoints.open()

    def _start_schedules(self) -> None:
        """Take part in every schedule of the configuration."""
        from broker_client.scheduling.schedules import Schedules  # imported where it is asked for

        clock = self._substitutes.clock or WallClock()
        self._schedules = Schedules(
            self.config, self._vhosts, self._publisher, self._consuming, self, clock, self._tasks
        )
        self._schedules.start()

    def _trace(self, settings: TracingConfig) -> None:
        """Put tracing around everything, outside of all other middleware.

        Raises:
            UnsupportedError: the extra is not installed.
        """
        from broker_client.tracing import Tracing  # imported where it is asked for

        tracing = Tracing(self.config, settings, lambda name: self._vhosts[name].connection.url)
        self._publisher.add_middleware(tracing.publish, ())
        self._subscriptions.add_middleware(tracing.handle, frozenset())

    def _check_subscriptions(self, vhost: Vhost) -> None:
        """Refuse settings that this version of the broker would interpret differently."""
        link = vhost.connection.link
        for subscription in self.config.subscriptions.values():
            if subscription.vhost == vhost.name and link is not None:
                check_capabilities(subscription, link.capabilities)

    def _make_vhost(self, config: VhostConfig) -> Vhost:
        brokers = self.config.connections_of(config.name)
        config = config.model_copy(update={"connections": brokers})
        if self.config.schedules:
            from broker_client.scheduling.schedules import with_schedule_queues

            config = with_schedule_queues(config, self.config)
        connectors = self._substitutes.connectors(connectors_of(config, self._nodes.connector))
        return Vhost(config, connectors, self._vhost_event, self._senders)

    def _vhost_event(self, event: str, *args: Any) -> bool:
        """Emit; losses and failed attempts without a listener are in the connection's log."""
        if event == "error" and isinstance(args[0], TransportError):
            return self.has_listener("error") and self.emit(event, *args)
        return self.emit(event, *args)

    def _add_vhost(self, vhost: Vhost) -> None:
        events = self._event_log
        observer = None if events is None else PublishLog(events, vhost.name)
        self._vhosts[vhost.name] = vhost
        self._publishers[vhost.name] = VhostPublisher(vhost, self, self._senders, observer)

    def _listener_failed(self, event: str, error: BaseException) -> None:
        log.error("%r: a listener of %r raised", self, event, exc_info=error)
        if event != "error" and self.has_listener("error"):
            self.emit("error", error, "")

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> Publication:
        """Publish `content` through the publication `name`.

        Returns once the message is in the publish queue: at once, unless the queue is full. Await
        the `Publication` for the outcome, or listen to its events.

        Args:
            name: a declared publication, or ``/queue`` or ``/exchange`` without a declaration.
            content: bytes, text, or anything JSON can express (models and dataclasses too).
            routing_key: replaces the publication's; ignored if that publishes to a queue.
            overrides: see `PublishOverrides`.

        Raises:
            UnknownNameError: no such publication.
            InvalidContentError: `content` cannot be encoded as JSON.
            InvalidMessageError: a name is too long, or AMQP cannot carry a header's type.
            PublishQueueFullError: the queue is full, and its policy is `reject`.
            PublishTimeoutError: the queue stayed full for the publication's whole `timeout`.
            PublishAbortedError: the file of the outbox has failed before; nothing was stored.
            PublishUnconfirmedError: it failed meanwhile; the message may be in it.
            BrokerClosedError: the broker was shut down.
        """
        self._check_loop()
        if self._closed:
            raise BrokerClosedError
        begun = self._publisher.begin(name, content, routing_key, overrides)
        return begun if isinstance(begun, Publication) else await begun

    async def publish_many(
        self,
        name: str,
        many: Iterable[Any] | AsyncIterable[Any],
        routing_key: str | Callable[[Any], str] | None = None,
        *,
        window: int = 1000,
        on_end: Callable[[Publication], None] | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> PublishReport:
        """Publish each of `many`, with at most `window` of them unconfirmed, in bounded memory.

        Args:
            name: of the publication.
            many: contents, as for `publish`, or `PublishItem`s, which have a routing key and
                options of their own.
            routing_key: one for all, or a function of the content.
            window: maximum number of unconfirmed publishes.
            on_end: called with each `Publication` when it has ended; its `error` is None if it
                succeeded.
            overrides: apply to every publish.

        Raises:
            InvalidMessageError: `many` is a single content, such as a text or a mapping.

        Returns once every publication has ended; the report counts the outcomes. A content that
        `publish` refuses raises here too, after the publications before it have ended.
        """
        self._check_may_publish()
        return await self._publisher.publish_many(
            name, many, routing_key, window, on_end, overrides
        )

    def publish_sync(
        self,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> Outcome:
        """`publish` from another thread, and wait there for the outcome.

        Raises:
            WrongLoopError: called from the event loop's own thread, which it would block, or while
                the loop is not running.
            PublishError: the publication did not succeed; and what `publish` raises.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            raise BrokerClosedError
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            raise WrongLoopError("publish_sync would stop the event loop it waits for")
        if not loop.is_running():
            raise WrongLoopError("publish_sync needs a running event loop")

        async def publish_and_wait() -> Outcome:
            return await (await self.publish(name, content, routing_key, **overrides))

        return wait_in_thread(loop, publish_and_wait())

    async def request(
        self,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> Reply:
        """Publish a request and wait for its answer.

        Args:
            name: of the publication it goes through.
            content: as for `publish`.
            routing_key: instead of the publication's.
            overrides: as for `publish`; `timeout` (30 s) is for request and answer together.

        Raises:
            RequestTimeoutError: no answer came in time.
            RequestLostError: the connection the answer was to come on was lost.
            RequestFailedError: the handler of the request failed.
            PublishError: the request was not delivered; and what `publish` raises.
        """
        self._check_may_publish()
        return await self._publisher.request(name, content, routing_key, overrides)

    async def forward(
        self,
        name: str,
        message: Message,
        routing_key: str | None = None,
        **overrides: Unpack[ForwardOverrides],
    ) -> Publication:
        """Publish a received message, body and properties as they are, through another publication.

        The routing key is `routing_key`, else the publication's, else the message's. The same
        order applies to each property (as in rascal), except that `persistent` is the message's
        unless it is given here. An encrypted body is not changed.

        The copy has a CC header of ``<queue>.<routing key>``, so an exchange to which the queue is
        bound with ``<queue>.#`` routes it back there. The header ``rascal`` names its origin; with
        `restore_routing_headers` handlers see the original exchange and routing key.
        """
        self._check_may_publish()
        return await self._publisher.forward(name, message, routing_key, overrides)

    # ------------------------------------------------------------------ middleware

    @overload
    def middleware(self, around: Literal["publish"], *names: str) -> Callable[[P], P]: ...
    @overload
    def middleware(self, around: Literal["handle"], *names: str) -> Callable[[M], M]: ...

    def middleware(self, around: Literal["publish", "handle"], *names: str) -> Callable[[Any], Any]:
        """Decorator: the async function runs around each publish, or each call of a handler.

        It is called as ``await middleware(call, call_next)`` with a `PublishCall` or a
        `HandleCall`, and goes on with ``return await call_next(call)``. What is added first is
        outermost.

        Args:
            around: ``publish`` (forwards, requests and shovels included; copies that recovery
                makes are not), or ``handle`` (handlers and `message` listeners).
            names: of publications or subscriptions; without any, all of them.

        Raises:
            UnknownNameError: no such publication or subscription.
            InvalidMiddlewareError: the function is not async or takes other arguments; or it is
                for a subscription that was made before.
            BrokerClosedError: the broker was shut down.
        """
        self._check_usable()
        if around not in ("publish", "handle"):
            raise UnknownNameError("kind of middleware", str(around), ("publish", "handle"))
        if around == "handle":
            for name in names:
                self._subscription_config(name)

        def decorate(middleware: Any) -> Any:
            check_middleware(middleware)
            if around == "publish":
                self._publisher.add_middleware(middleware, names)
            else:
                self._subscriptions.add_middleware(middleware, frozenset(names))
            return middleware

        return decorate

    # ------------------------------------------------------------------ subscribing

    async def subscribe(self, name: str, handler: Listener | None = None) -> Subscription:
        """Subscribe to `name`; consuming starts with the first `message` listener.

        Args:
            name: a declared subscription, or ``/queue`` without a declaration.
            handler: the first `message` listener: ``handler(message, content, ack_or_nack)``.

        Raises:
            UnknownNameError: no such subscription.
            BrokerClosedError: the broker was shut down.
            InvalidHandlerError: `handler` takes other arguments.
        """
        subscription = self._subscriptions.make(self._subscription_config(name))
        if handler is not None:
            subscription.on("message", handler)
        return subscription

    async def subscribe_all(
        self,
        only: Callable[[SubscriptionConfig], bool] | None = None,
        *,
        implied: bool = False,
    ) -> list[Subscription]:
        """Subscribe to all declared subscriptions.

        Args:
            only: filter; subscriptions for which it returns False are left out.
            implied: include queues without a declared subscription (as rascal always does).
        """
        self._check_usable()
        configs = list(self.config.subscriptions.values())
        if implied:
            configs += self.config.implied_subscriptions()
        return [self._subscriptions.make(each) for each in configs if only is None or only(each)]

    def handle(
        self,
        name: str,
        *,
        type: str | None = None,
        headers: Mapping[str, Any] | None = None,
        publish: str | None = None,
    ) -> Callable[[H], H]:
        """Decorator: the function takes the messages of the subscription `name`.

        It takes the content, the `Message`, or both; see `Subscription.handle`, also for the
        arguments, and `broker_client.consuming.handlers` for all it may do. Its subscription is
        its attribute `subscription`, and one of `Broker.subscriptions`. Functions with a `type` or
        `headers` share one, and so does the one for the rest, which comes last.

        Raises:
            UnknownNameError: no such subscription or publication.
            BrokerClosedError: the broker was shut down.
            InvalidHandlerError: the function's arguments are ambiguous or unsupported; or
                it would get no message.
        """
        if callable(name):
            raise InvalidHandlerError(
                getattr(name, "__qualname__", repr(name)),
                'name the subscription: @broker.handle("...")',
            )
        return self._subscriptions.handler(
            self._subscription_config(name), type=type, headers=headers, publish=publish
        )

    def include(self, router: Router) -> None:
        """Add what `router` has collected: its middleware, then its handlers, in their order.

        Raises:
            UnknownNameError: it names a publication or subscription that is not declared.
            InvalidMiddlewareError, InvalidHandlerError: see `middleware` and `handle`.
            BrokerClosedError: the broker was shut down.
        """
        add: Any = self.middleware  # any of its overloads
        for around, names, middleware in router.collected_middleware:
            add(around, *names)(middleware)
        for name, handler, options in router.collected_handlers:
            self.handle(name, **options)(handler)

    def _subscription_config(self, name: str) -> SubscriptionConfig:
        self._check_usable()
        config = self.config.find_subscription(name)
        if config is None:
            raise UnknownNameError("subscription", name, list(self.config.subscriptions))
        return config

    async def unsubscribe_all(self) -> None:
        """Cancel all subscriptions concurrently; each drains as `Subscription.cancel` does."""
        self._check_loop()
        await self._stop_schedules()
        await self._subscriptions.cancel()

    async def _stop_schedules(self) -> None:
        if self._schedules is not None:
            await self._schedules.stop()

    # ------------------------------------------------------------------ life

    async def connect(self, vhost: str = "/") -> Link:
        """Open a separate link to `vhost`, which the Broker neither keeps alive nor closes.

        Raises:
            UnknownNameError: no such vhost.
            TransportError: no address answered.
        """
        self._check_usable()
        return await self._vhost(vhost).open_link()

    async def purge(self, queue: str | None = None, *, vhost: str | None = None) -> int:
        """Empty a declared queue, or all; returns how many ready messages were removed.

        Args:
            queue: its name in the configuration; None empties every queue of every vhost.
            vhost: the queue's, if several vhosts declare a queue of that name.

        Raises:
            UnknownNameError: no such queue, or no such vhost.
            TransportError: no address answered.
        """
        self._check_usable()
        vhosts = list(self._vhosts.values()) if vhost is None else [self._vhost(vhost)]
        if queue is not None:
            known = [each.name for vhost in vhosts for each in vhost.config.queues.values()]
            vhosts = [each for each in vhosts if queue in each.config.queues]
            if len(vhosts) != 1:
                raise UnknownNameError("queue", queue, known)
        return sum([await each.purge(queue) for each in vhosts])

    async def nuke(self) -> None:
        """Cancel every subscription, delete every declared exchange and queue, and shut down.

        A vhost with ``assert: true`` is deleted too. Queued publishes are dropped. It also works
        on the `broker` of an error of `create`, except on the built-in broker.

        Raises:
            TransportError: a broker did not answer; the other vhosts are deleted nevertheless.
        """
        self._check_loop()
        if not self._half_made:
            self._check_usable()
            await self.unsubscribe_all()
        self._closed = True
        await self._close_publishers()
        failures: list[BrokerClientError] = []
        for vhost in self._vhosts.values():
            if self._half_made and vhost.is_embedded:
                continue  # what was in memory is gone with its node
            try:
                await vhost.nuke()
            except BrokerClientError as error:
                failures.append(error)
        await self.shutdown()
        if failures:
            raise failures[0]

    async def bounce(self, *, timeout: float = _BOUNCE_TIMEOUT) -> None:
        """Cut every connection, as a network fault would, and wait until all are restored.

        Connections, topology and subscriptions are restored automatically; unconfirmed publishes
        are sent again, and unsettled deliveries return to their queues. Use it to test how a
        program handles a lost connection, on either broker.

        Args:
            timeout: seconds to wait until everything is restored.

        Raises:
            ConnectFailedError: it was not restored in time; the Broker keeps trying.
        """
        self._check_usable()
        deadline = asyncio.get_running_loop().time() + timeout
        back = self._subscriptions.bounced()
        for vhost in self._vhosts.values():
            vhost.cut("bounced")
        for vhost in self._vhosts.values():
            await vhost.wait_all_up(deadline, timeout)
        for each in back:
            if not await each.wait(deadline):
                reason = f"{each.subscription!r} was not back within {timeout:g} s after a bounce"
                raise ConnectFailedError(", ".join(url for _, url in self.connections()), reason)

    async def shutdown(self, *, timeout: float = _DRAIN_TIMEOUT) -> None:
        """Shut down gracefully: drain subscriptions, confirm publishes, close connections.

        Args:
            timeout: seconds to wait for unconfirmed publishes. Those that remain end as
                `PublishAbortedError` (never sent) or `PublishUnconfirmedError` (outcome unknown);
                what is in an outbox stays there.

        Each subscription has its own `close_timeout`, within which its handlers may still publish.
        A handler may call this and is not waited for. May be called more than once.

        Raises:
            WrongLoopError: the broker belongs to another event loop.
        """
        self._check_loop()
        if self._closing:
            if not self._subscriptions.has_handler(asyncio.current_task()):
                await self._ended.wait()
            return
        self._closing = True
        try:
            await self._stop_schedules()
            await self._subscriptions.close()
            self._closed = True
            deadline = asyncio.get_running_loop().time() + timeout
            for publisher in self._publishers.values():
                left = max(0.0, deadline - asyncio.get_running_loop().time())
                if not await publisher.drain(left):
                    log.warning(
                        "%r: publishes were not confirmed within %g s", publisher.vhost, timeout
                    )
        except asyncio.CancelledError:
            for vhost in self._vhosts.values():
                vhost.drop()  # a cancelled shutdown does not wait for the network
            raise
        finally:
            self._closed = True
            await self._close()

    async def _close(self) -> None:
        """Release everything, even if the caller is cancelled meanwhile."""
        if self._closer is None:
            caller = asyncio.current_task()
            self._closer = asyncio.create_task(self._let_go(caller), name="broker: close")
        await see_through(self._closer)

    async def _let_go(self, caller: asyncio.Task[Any] | None) -> None:
        try:
            await self._close_all(caller)
        finally:
            self._ended.set()
            if self._forgotten is not None:
                self._forgotten.detach()

    async def _close_all(self, caller: asyncio.Task[Any] | None) -> None:
        await self._stop_schedules()
        await self._subscriptions.end(caller)  # not done yet if `shutdown` was cancelled
        await self._close_publishers()
        for vhost in self._vhosts.values():
            try:
                await vhost.close()
            except BrokerClientError as error:
                log.warning("%r: while closing: %s", vhost, error)
        await self._senders.cancel()
        # Async listeners of the last events; one of them may be the caller.
        await self._tasks.wait(timeout=_DRAIN_TIMEOUT, spare=caller)
        await self._tasks.cancel(spare=caller, timeout=CANCEL_TIMEOUT)
        await self._consuming.close()
        if self._endpoints is not None:
            await self._endpoints.close()
        await self._nodes.close()
        if self._event_log is not None:
            await asyncio.to_thread(self._event_log.close)

    async def _close_publishers(self) -> None:
        for publisher in self._publishers.values():
            await publisher.close()

    @property
    def listening_on(self) -> tuple[str, ...]:
        """Addresses on which the built-in broker listens (`node.listen`)."""
        return () if self._endpoints is None else self._endpoints.addresses

    def connections(self) -> list[tuple[str, str]]:
        """(vhost, address) of every connection; passwords are masked."""
        return [each for vhost in self._vhosts.values() for each in vhost.connections()]

    def health(self) -> Health:
        """State of the Broker and its connections, for probes. Never waits."""
        vhosts = {vhost.name: vhost.health() for vhost in self._vhosts.values()}
        usable = not self._closing
        return Health(
            usable and not self._nodes.have_failed and all(each.live for each in vhosts.values()),
            usable and all(each.ready for each in vhosts.values()),
            vhosts,
        )

    def stats(self) -> BrokerStats:
        """Return a snapshot of all counters and states."""
        return BrokerStats(
            {
                name: publisher.vhost.stats(publisher.queue.stats())
                for name, publisher in self._publishers.items()
            },
            self._subscriptions.stats(),
        )

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions that were made and have not ended, those of `handle` included."""
        return self._subscriptions.present

    @property
    def nodes(self) -> EmbeddedNodes:
        """The built-in brokers behind `embedded://` addresses: `broker.nodes.node()`, or
        `node(address)` where there are several. Its `deferred`, `in_flight`, `purge` and `stats`
        look into its queues."""
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
        if forks.count != self._forks:
            raise WrongLoopError("this Broker was created before the process forked")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongLoopError(
                "no event loop runs here: from another thread, call publish_sync, or "
                "asyncio.run_coroutine_threadsafe with the loop of the Broker"
            ) from None
        if self._loop is None:
            raise WrongLoopError(
                "this Broker was not opened: use `async with Broker.create(config) as broker`"
            )
        if loop is not self._loop:
            raise WrongLoopError("this Broker belongs to another event loop")
        return loop


def _warn_unclosed(text: str, made_in: int) -> None:
    """Warn of a Broker that was collected, or outlived by the program, without `shutdown`.

    It cannot be closed here: its loop may be closed, and the interpreter may be shutting down.
    """
    if forks.count == made_in:  # a forked child must not report its parent's Broker
        warnings.warn(text, ResourceWarning, stacklevel=1, source=text)
