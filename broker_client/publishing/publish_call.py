"""Middleware around publishing: what it is called with, and the chain of a publication."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any, cast

from broker_client.errors import InvalidMiddlewareError
from broker_client.message import Message
from broker_client.publication import Publication
from broker_client.publishing.template import PublishOverrides
from broker_client.runtime.middleware import Next, chained
from broker_client.runtime.slotted import slotted


@slotted(frozen=False, eq=False)
class PublishCall:
    """One publish on its way through the middleware, which may change every field but the first."""

    publication: str
    """Name of the publication."""
    content: Any
    """What is published; of a forward, the body of `message`, which cannot be replaced."""
    routing_key: str | None
    """None publishes with the routing key of the publication."""
    options: PublishOverrides
    """The options of this call, except for `headers`."""
    message: Message | None = None
    """The received message that is forwarded; None for a publish."""
    headers: dict[str, Any] = field(default_factory=dict)
    """Headers in addition to those of the publication: a copy, which may be changed."""

    @classmethod
    def of(
        cls,
        publication: str,
        content: Any,
        routing_key: str | None,
        overrides: PublishOverrides,
        message: Message | None = None,
    ) -> PublishCall:
        """The call of `publish` or `forward`."""
        options = cast(PublishOverrides, dict(overrides))
        headers = options.pop("headers", None)
        return cls(publication, content, routing_key, options, message, dict(headers or {}))

    def overrides(self) -> PublishOverrides:
        """The options and headers as `publish` takes them."""
        if not self.headers:
            return self.options
        return {**self.options, "headers": self.headers}


PublishNext = Next[PublishCall, Publication]
"""What middleware calls to continue: ``publication = await call_next(call)``."""

PublishMiddleware = Callable[[PublishCall, PublishNext], Awaitable[Publication]]
"""An async function around each publish; it returns the `Publication` of `call_next`."""


def publish_chain(middleware: Sequence[PublishMiddleware], operation: PublishNext) -> PublishNext:
    """A function that runs `operation` inside all of `middleware`; the first one is outermost.

    It raises InvalidMiddlewareError if middleware returns something else than the publication.
    """
    chain = chained(middleware, operation)

    async def run(call: PublishCall) -> Publication:
        publication = await chain(call)
        if not isinstance(publication, Publication):
            raise InvalidMiddlewareError(
                f"a function around {call.publication!r}",
                f"it returned {publication!r}; write `return await call_next(call)`",
            )
        return publication

    return run
