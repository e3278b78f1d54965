"""Declarative asyncio AMQP client with a built-in broker.

`Broker` is where to begin. Besides it, this module has what handlers and publishers use: messages,
publications, subscriptions, recovery strategies, and the errors that are caught most; all errors
are in `broker_client.errors`. ARCHITECTURE.md says what lives in which folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_client.ackornack import AckOrNack
    from broker_client.broker import Broker
    from broker_client.config import Ack, BrokerConfig, Forward, Nack, Republish
    from broker_client.config.loader import load_config
    from broker_client.consuming.handle_call import HandleCall, HandleNext
    from broker_client.errors import (
        BrokerClientError,
        ConfigError,
        MessageReturnedError,
        PublishError,
        PublishNackedError,
    )
    from broker_client.message import Message
    from broker_client.publication import Outcome, Publication
    from broker_client.publishing.many import PublishItem
    from broker_client.publishing.publish_call import PublishCall, PublishNext
    from broker_client.router import Router
    from broker_client.subscription import Subscription

__all__ = [
    "Ack",
    "AckOrNack",
    "Broker",
    "BrokerClientError",
    "BrokerConfig",
    "ConfigError",
    "Forward",
    "HandleCall",
    "HandleNext",
    "Message",
    "MessageReturnedError",
    "Nack",
    "Outcome",
    "Publication",
    "PublishCall",
    "PublishError",
    "PublishItem",
    "PublishNackedError",
    "PublishNext",
    "Republish",
    "Router",
    "Subscription",
    "load_config",
]

_PLACES = {
    "AckOrNack": "ackornack",
    "Broker": "broker",
    "Ack": "config",
    "BrokerConfig": "config",
    "Forward": "config",
    "Nack": "config",
    "Republish": "config",
    "load_config": "config.loader",
    "HandleCall": "consuming.handle_call",
    "HandleNext": "consuming.handle_call",
    "BrokerClientError": "errors",
    "ConfigError": "errors",
    "MessageReturnedError": "errors",
    "PublishError": "errors",
    "PublishNackedError": "errors",
    "Message": "message",
    "Outcome": "publication",
    "Publication": "publication",
    "PublishItem": "publishing.many",
    "PublishCall": "publishing.publish_call",
    "PublishNext": "publishing.publish_call",
    "Router": "router",
    "Subscription": "subscription",
}
"""The module of each name. It is imported when the name is first used: the command needs few."""

if not TYPE_CHECKING:  # else every name would seem to be there

    def __getattr__(name: str) -> Any:
        if name in _PLACES:
            value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        elif name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        else:
            value = _module(name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _module(name: str) -> object:
    """`broker_client.errors` and the like, which need no import of their own."""
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
