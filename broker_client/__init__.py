"""Declarative asyncio AMQP client with a built-in broker.

Bottom up, and a test holds that imports go down only:

* ground: errors, clock, message, emitter, tasks, deadlines, stats
* settings: config, rascal, retry
* broker side: core and amqp (pure), store, node (core, store and clock, running)
* client side: transport (network, embedded); connection, pool; publish_queue, publication,
  topology, content, ackornack; subscription, vhost; broker
* command: cli
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
    "PublishNackedError",
    "PublishNext",
    "Republish",
    "Router",
    "Subscription",
    "load_config",
]
