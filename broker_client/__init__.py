"""Declarative asyncio AMQP client with a built-in broker.

`Broker` is where to begin. Besides it, this module has what handlers and publishers use: messages,
publications, subscriptions, recovery strategies, and the errors that are caught most; all errors
are in `broker_client.errors`. ARCHITECTURE.md says what lives in which folder.
"""

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
