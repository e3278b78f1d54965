"""`Publisher`: publishes, forwards, requests, and copies for recovery."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from typing import Any, cast

from broker_client.amqp.tables import FrozenTable
from broker_client.codec import content as contents
from broker_client.codec.claim_check import BodyStore
from broker_client.codec.encryption import check_available
from broker_client.config import BrokerConfig, Forward, PublicationConfig
from broker_client.errors import UnknownNameError
from broker_client.message import Message, Outgoing
from broker_client.publication import Publication
from broker_client.publishing.encoding import encoders_of
from broker_client.publishing.many import (
    ManyPublishes,
    PublishItem,
    PublishReport,
    check_many,
)
from broker_client.publishing.publish_call import (
    PublishCall,
    PublishMiddleware,
    PublishNext,
    publish_chain,
)
from broker_client.publishing.requests import Reply
from broker_client.publishing.template import (
    ForwardOverrides,
    PublishOverrides,
    Template,
    check_overrides,
    given,
    is_sealed,
    rejects_when_full,
)
from broker_client.publishing.vhost_publisher import VhostPublisher
from broker_client.runtime.tasks import TaskGroup

_REQUEST_TIMEOUT = 30.0  # seconds a request waits for its answer, unless told otherwise


class Publisher:
    """Publishes by the names of a configuration.

    Args:
        config: where the names come from.
        vhosts: by name; may be filled after this.
        tasks: owner of the listeners of publications.

    Raises:
        UnsupportedError: the package for configured encryption, compression or a claim check is
            missing.
        ConfigError: the model of a publication cannot be imported, or is not a type that pydantic
            can check.
    """

    def __init__(
        self, config: BrokerConfig, vhosts: Mapping[str, VhostPublisher], tasks: TaskGroup
    ) -> None:
        self._config = config
        self._vhosts = vhosts
        self._tasks = tasks
        self._templates: dict[str, Template] = {}
        self._middleware: list[tuple[PublishMiddleware, frozenset[str]]] = []
        self._chains: dict[str, PublishNext] = {}  # of the publications that have middleware
        if (
            config.encryption
            or any(each.encryption for each in config.publications.values())
            or any(each.encryption for each in config.subscriptions.values())
        ):
            check_available()
        self._encoders = encoders_of(config)
        self._bodies = {
            name: BodyStore(each.claim_check, f"publication {name!r}")
            for name, each in config.publications.items()
            if each.claim_check is not None
        }

    def __repr__(self) -> str:
        return f"<Publisher: {len(self._templates)} publications used>"

    async def publish(
        self, name: str, content: Any, routing_key: str | None, overrides: PublishOverrides
    ) -> Publication:
        """See `Broker.publish`."""
        begun = self.begin(name, content, routing_key, overrides)
        return begun if isinstance(begun, Publication) else await begun

    def begin(
        self, name: str, content: Any, routing_key: str | None, overrides: PublishOverrides
    ) -> Publication | Awaitable[Publication]:
        """As `publish`: the publication if it is in the publish queue at once, as nearly all are;
        else await what this returns for it, which may be nothing that has begun."""
        template = self._templates.get(name) or self._template(name)
        if name in self._chains:
            return self._chains[name](PublishCall.of(name, content, routing_key, overrides))
        if overrides:
            overrides = cast(PublishOverrides, given(overrides))
            check_overrides(overrides)
        return self._begin(template, content, routing_key, overrides)

    def forward(
        self,
        name: str,
        message: Message,
        routing_key: str | None,
        overrides: ForwardOverrides,
    ) -> Awaitable[Publication]:
        """See `Broker.forward`."""
        template = self._template(name)
        if name in self._chains:
            call = PublishCall.of(name, message.body, routing_key, overrides, message)
            return self._chains[name](call)
        return self._forward(template, message, routing_key, overrides)

    def _begin(
        self,
        template: Template,
        content: Any,
        routing_key: str | None,
        overrides: PublishOverrides,
    ) -> Publication | Awaitable[Publication]:
        """As `begin`, with options that were checked, and without middleware."""
        started = asyncio.get_running_loop().time()
        body, content_type = template.encode(content)
        outgoing = template.outgoing(body, content_type, routing_key, overrides)
        if not template.is_plain or template.vhost.outbox is not None or "delay" in overrides:
            return self._accept(template, outgoing, overrides, started)
        timeout = overrides.get("timeout", template.timeout) if overrides else template.timeout
        publication = Publication(template.origin, outgoing, started, timeout)
        if template.queue.put_now(publication, template.confirms):
            return publication
        return _put(template, publication)

    async def _forward(
        self,
        template: Template,
        message: Message,
        routing_key: str | None,
        overrides: ForwardOverrides,
    ) -> Publication:
        started = asyncio.get_running_loop().time()
        if overrides:
            overrides = cast(ForwardOverrides, given(overrides))
            check_overrides(overrides, forward=True)
        key = routing_key or template.config.routing_key or message.routing_key
        options = template.forwarded(message, key, overrides)
        outgoing = template.outgoing(
            message.body,
            message.properties.content_type,
            key,
            options,
            encrypted=is_sealed(message.properties),
        )
        return await self._accept(template, outgoing, options, started)

    async def _accept(
        self, template: Template, outgoing: Outgoing, overrides: PublishOverrides, started: float
    ) -> Publication:
        """Accept once the body is in its store, the delay is prepared, or the outbox has it."""
        config, vhost = template.config, template.vhost
        bodies = template.bodies
        if bodies is not None and len(outgoing.body) > bodies.above:
            outgoing = await _with_body_in(bodies, outgoing)
        outbox = vhost.outbox if config.confirm else None
        # What is in the outbox is sent, however long the broker is away.
        timeout = 0.0 if outbox else overrides.get("timeout", config.timeout)
        delay = overrides.get("delay", config.delay)
        if delay:
            outgoing = await vhost.delayed(config.name, outgoing, delay, timeout)
        publication = Publication(template.origin, outgoing, started, timeout)
        if outbox is None:
            return await _put(template, publication)
        await outbox.accept(publication)
        return publication

    # ------------------------------------------------------------------ middleware

    def add_middleware(self, middleware: PublishMiddleware, names: Iterable[str]) -> None:
        """Run `middleware` around each later publish and forward of `names`, or of all.

        Raises:
            UnknownNameError: no such publication.
        """
        chosen = frozenset(names)
        for name in chosen:
            self._template(name)
        self._middleware.append((middleware, chosen))
        for name in self._templates:
            self._build_chain(name)

    def _build_chain(self, name: str) -> None:
        """Chain the middleware of the publication `name`, if it has any."""
        chosen = [each for each, names in self._middleware if not names or name in names]
        if chosen:
            self._chains[name] = publish_chain(chosen, self._run_call)

    async def _run_call(self, call: PublishCall) -> Publication:
        """Publish what has passed through all middleware."""
        template, overrides = self._template(call.publication), call.overrides()
        if call.message is not None:
            options = cast(ForwardOverrides, overrides)  # `_forward` refuses others
            return await self._forward(template, call.message, call.routing_key, options)
        overrides = cast(PublishOverrides, given(overrides))
        check_overrides(overrides)
        begun = self._begin(template, call.content, call.routing_key, overrides)
        return begun if isinstance(begun, Publication) else await begun

    def check_publication(self, name: str) -> None:
        """Check that there is a publication called `name`.

        Raises:
            UnknownNameError: there is none.
        """
        self._template(name)

    def _template(self, name: str) -> Template:
        template = self._templates.get(name)
        if template is None:
            config = self._config.find_publication(name)
            if config is None:
                raise UnknownNameError("publication", name, list(self._config.publications))
            encode = self._encoders.get(name, contents.encode)
            vhost, bodies = self._vhosts[config.vhost], self._bodies.get(name)
            template = Template(self._config, config, vhost, self._tasks, encode, bodies)
            self._templates[name] = template
            self._build_chain(name)
        return template

    # ------------------------------------------------------------------ many

    async def publish_many(
        self,
        name: str,
        many: Iterable[Any] | AsyncIterable[Any],
        routing_key: str | Callable[[Any], str] | None,
        window: int,
        on_end: Callable[[Publication], None] | None,
        overrides: PublishOverrides,
    ) -> PublishReport:
        """See `Broker.publish_many`."""
        check_many(many)
        run = ManyPublishes(window, on_end)
        template = self._template(name)
        if overrides:
            overrides = cast(PublishOverrides, given(overrides))
            check_overrides(overrides)

        def begin(each: Any) -> Publication | Awaitable[Publication]:
            content, key, options = each, None, overrides
            if type(each) is PublishItem:
                content, key, own = each
                if own:
                    if None in own.values():
                        own = cast(PublishOverrides, given(own))
                    check_overrides(own)
                    options = {**overrides, **own} if overrides else own
            if key is None:
                key = routing_key(content) if callable(routing_key) else routing_key
            if name in self._chains:
                return self.begin(name, content, key, options.copy())
            return self._begin(template, content, key, options)

        await run.take(many, begin)
        return run.report()

    # ------------------------------------------------------------------ requests

    async def request(
        self, name: str, content: Any, routing_key: str | None, overrides: PublishOverrides
    ) -> Reply:
        """See `Broker.request`."""
        vhost = self._template(name).vhost
        overrides = cast(PublishOverrides, given(overrides))
        check_overrides(overrides)
        timeout = overrides.get("timeout", _REQUEST_TIMEOUT)

        async def publish(reply_to: str, correlation_id: str) -> Publication:
            every: PublishOverrides = {
                "persistent": False,  # its answer does not outlive us either
                "expiration": timeout,
                **overrides,
                "reply_to": reply_to,
                "correlation_id": correlation_id,
            }
            return await self.publish(name, content, routing_key, every)

        return await vhost.requests.call(name, publish, timeout)

    # ------------------------------------------------------------------ for recovery

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        """Publish a recovery copy to a queue; returns once it is confirmed."""
        target = self._vhosts[vhost]
        full = rejects_when_full(target.vhost.config, queue=outgoing.routing_key)
        await target.send_confirmed(
            f"republish to {outgoing.routing_key}",
            outgoing,
            PublicationConfig.model_fields["timeout"].default,
            0 if full else float("inf"),
        )

    async def forward_copy(
        self, message: Message, headers: Mapping[str, Any], strategy: Forward
    ) -> None:
        """Publish a recovery copy through a publication; returns once it is confirmed.

        Always confirmed, whatever the publication says: the original is acked on the strength
        of it (as in rascal). The copy also gets a CC of ``<queue>.<routing key>``, by which an
        exchange behind it can lead it back to the queue it failed in.
        """
        template = self._template(strategy.publication)
        outgoing = template.copy(message, headers, strategy)
        config = template.config
        if config.delay:
            outgoing = await template.vhost.delayed(
                config.name, outgoing, config.delay, config.timeout
            )
        await template.vhost.send_confirmed(
            config.name, outgoing, config.timeout, template.max_nacks
        )


async def _put(template: Template, publication: Publication) -> Publication:
    await template.queue.put(publication, confirm=template.confirms)
    return publication


async def _with_body_in(bodies: BodyStore, outgoing: Outgoing) -> Outgoing:
    properties = await bodies.check_in(outgoing.body, outgoing.properties)
    headers = FrozenTable.of(properties.headers or {})
    return outgoing._replace(body=b"", properties=properties._replace(headers=headers))
