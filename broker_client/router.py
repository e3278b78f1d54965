"""`Router`: handlers and middleware that modules collect before there is a Broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from broker_client.config.loader import Source
from broker_client.consuming.handle_call import HandleMiddleware
from broker_client.consuming.handler_signature import Handler
from broker_client.errors import InvalidHandlerError
from broker_client.publishing.publish_call import PublishMiddleware

H = TypeVar("H", bound=Handler)
P = TypeVar("P", bound=PublishMiddleware)
M = TypeVar("M", bound=HandleMiddleware)


class HandleOptions(TypedDict, total=False):
    """Arguments of `handle`, as `Subscription.handle` has them."""

    type: str | None
    headers: Mapping[str, Any] | None
    publish: str | None


class Router:
    """Collects handlers and middleware, which `Broker.include` adds to a Broker.

    Its decorators are those of a Broker, and leave the functions as they are. With a `config` it
    is a whole program, which ``broker-client run module:router`` runs.
    """

    def __init__(self, config: Source | None = None) -> None:
        """
        Args:
            config: path of a YAML file, a mapping or a `BrokerConfig`, for `broker-client run` and
                `broker_client.asgi.lifespan`.
        """
        self.config = config
        self._middleware: list[tuple[Any, tuple[str, ...], Any]] = []
        self._handlers: list[tuple[str, Handler, HandleOptions]] = []

    def __repr__(self) -> str:
        return f"<Router: {len(self._handlers)} handlers, {len(self._middleware)} middleware>"

    def handle(self, name: str, **options: Unpack[HandleOptions]) -> Callable[[H], H]:
        """Decorator: like `Broker.handle`, once a Broker includes this router."""
        if callable(name):
            raise InvalidHandlerError(
                getattr(name, "__qualname__", repr(name)),
                'name the subscription: @router.handle("...")',
            )

        def decorate(handler: H) -> H:
            self._handlers.append((name, handler, options))
            return handler

        return decorate

    @overload
    def middleware(self, around: Literal["publish"], *names: str) -> Callable[[P], P]: ...
    @overload
    def middleware(self, around: Literal["handle"], *names: str) -> Callable[[M], M]: ...

    def middleware(self, around: Any, *names: str) -> Callable[[Any], Any]:
        """Decorator: like `Broker.middleware`, once a Broker includes this router."""

        def decorate(middleware: Any) -> Any:
            self._middleware.append((around, names, middleware))
            return middleware

        return decorate

    def include(self, router: Router) -> None:
        """Append what `router` has collected so far."""
        self._middleware += router._middleware
        self._handlers += router._handlers

    @property
    def collected_middleware(self) -> tuple[tuple[Any, tuple[str, ...], Any], ...]:
        """(around, names, function) of each."""
        return tuple(self._middleware)

    @property
    def collected_handlers(self) -> tuple[tuple[str, Handler, HandleOptions], ...]:
        """(subscription, function, arguments of `handle`) of each."""
        return tuple(self._handlers)
