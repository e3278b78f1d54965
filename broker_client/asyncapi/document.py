"""Makes an AsyncAPI 3.1 document of a configuration and the types of its handlers.

https://www.asyncapi.com/docs/reference/specification/v3.1.0, with the AMQP bindings 0.3.0. A
publication is a `send` operation on a channel that is a routing key of an exchange, a subscription
is a `receive` operation on a channel that is a queue.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from broker_client.asyncapi.schemas import Schemas
from broker_client.codec.content import JSON
from broker_client.codec.models import find_model
from broker_client.config import (
    BrokerConfig,
    PublicationConfig,
    PublicationOptions,
    QueueConfig,
    SubscriptionConfig,
)
from broker_client.config.url import DEFAULT_PORTS
from broker_client.consuming.handler_signature import Handler, types_of
from broker_client.errors import ConfigError, Problem
from broker_client.runtime.slotted import slotted

Object = dict[str, Any]

_BINDINGS = "0.3.0"
_TYPES = ("topic", "direct", "fanout", "headers")


@slotted
class Info:
    """What the document says of the application."""

    title: str
    version: str = "1.0.0"
    description: str = ""


def asyncapi_document(
    config: BrokerConfig, info: Info, handlers: Mapping[str, Handler] | None = None
) -> Object:
    """The document.

    Args:
        config: servers, channels and operations; addresses without user and password.
        info: title, version and description.
        handlers: by subscription; their annotations are the types of messages.

    Raises:
        ConfigError: the model of a publication is not there.
        InvalidHandlerError: the arguments of a handler are ambiguous.
    """
    making = _Making(config)
    for publication in config.publications.values():
        making.add_publication(publication)
    for name, subscription in config.subscriptions.items():
        making.add_subscription(subscription, (handlers or {}).get(name))
    for name, handler in (handlers or {}).items():
        implied = config.find_subscription(name)
        if name not in config.subscriptions and implied is not None:
            making.add_subscription(implied, handler)
    return making.document(info)


@slotted(frozen=False)
class _Making:
    config: BrokerConfig
    schemas: Schemas = field(default_factory=Schemas)
    channels: dict[str, Object] = field(default_factory=dict)
    operations: dict[str, Object] = field(default_factory=dict)
    messages: dict[str, Object] = field(default_factory=dict)
    with_payload: dict[str, str] = field(default_factory=dict)
    """The message of each schema."""

    def document(self, info: Info) -> Object:
        payloads, shared = self.schemas.built()
        for name, schema in payloads.items():
            self.messages[self.with_payload[name]]["payload"] = schema
        described = {"title": info.title, "version": info.version}
        if info.description:
            described["description"] = info.description
        return {
            "asyncapi": "3.1.0",
            "info": described,
            "defaultContentType": JSON,
            "servers": self._servers(),
            "channels": self.channels,
            "operations": self.operations,
            "components": {"messages": self.messages, "schemas": shared},
        }

    def add_publication(self, publication: PublicationConfig) -> None:
        key = _key(publication.name)
        exchange, routing_key = self.config.target_of(publication)
        # An exchange without a key: each publish gives its own.
        address = routing_key or None
        where = {"is": "routingKey", "exchange": self._exchange(publication, exchange)}
        message = self._message(key, publication.options)
        if publication.model is not None:
            try:
                self.schemas.add(key, find_model(publication.model), "serialization")
            except ValueError as error:
                path = f"publications.{publication.name}.model"
                raise ConfigError([Problem(path, str(error))]) from None
            self.with_payload[key] = key
            message.setdefault("contentType", JSON)
        channel = self._channel(f"publication.{key}", publication.vhost, address, where, key)
        self.operations[f"send.{key}"] = {
            "action": "send",
            "title": publication.name,
            **channel,
            "bindings": {"amqp": _send_binding(publication.options)},
        }

    def add_subscription(self, subscription: SubscriptionConfig, handler: Handler | None) -> None:
        key = _key(subscription.name)
        vhost = self.config.vhosts[subscription.vhost]
        name = self.config.source_of(subscription)
        queue = vhost.queues.get(subscription.queue)
        where = {"is": "queue", "queue": _queue(name, subscription.vhost, queue)}
        message_key = f"{key}.received"
        message = self._message(
            message_key, PublicationOptions(content_type=subscription.content_type)
        )
        operation: Object = {
            "action": "receive",
            "title": subscription.name,
            **self._channel(f"subscription.{key}", subscription.vhost, name, where, message_key),
            "bindings": {
                "amqp": {"ack": not subscription.options.no_ack, "bindingVersion": _BINDINGS}
            },
        }
        if handler is not None:
            types = types_of(handler, of_lists=subscription.batch is not None)
            description = inspect.getdoc(handler)
            if description:
                operation["description"] = description
            if types.content is not None:
                self.schemas.add(message_key, types.content, "validation")
                self.with_payload[message_key] = message_key
                if types.content not in (str, bytes):
                    message.setdefault("contentType", JSON)
            if types.result is not None:
                operation["reply"] = self._reply(key, types.result)
        self.operations[f"receive.{key}"] = operation

    def _reply(self, key: str, result: Any) -> Object:
        message_key = f"{key}.reply"
        self.messages[message_key] = {"name": message_key, "contentType": JSON}
        self.schemas.add(message_key, result, "serialization")
        self.with_payload[message_key] = message_key
        ref = f"#/components/messages/{message_key}"
        self.channels[f"reply.{key}"] = {"address": None, "messages": {message_key: {"$ref": ref}}}
        return {
            "address": {"location": "$message.header#/replyTo"},
            "channel": {"$ref": f"#/channels/reply.{key}"},
            "messages": [{"$ref": f"#/channels/reply.{key}/messages/{message_key}"}],
        }

    def _message(self, key: str, options: PublicationOptions) -> Object:
        binding: Object = {"bindingVersion": _BINDINGS}
        if options.content_encoding is not None:
            binding["contentEncoding"] = options.content_encoding
        if options.type is not None:
            binding["messageType"] = options.type
        message: Object = {"name": key, "bindings": {"amqp": binding}}
        if options.content_type is not None:
            message["contentType"] = options.content_type
        if options.headers:
            properties = {name: {"const": value} for name, value in options.headers.items()}
            message["headers"] = {"type": "object", "properties": properties}
        self.messages[key] = message
        return message

    def _channel(
        self, key: str, vhost: str, address: str | None, where: Object, message: str
    ) -> Object:
        """Adds a channel; returns what an operation says of it."""
        channel: Object = {
            "address": address,
            "messages": {message: {"$ref": f"#/components/messages/{message}"}},
            "bindings": {"amqp": {**where, "bindingVersion": _BINDINGS}},
        }
        servers = [key for key, each in self._servers().items() if each["title"] == vhost]
        if servers:
            channel["servers"] = [{"$ref": f"#/servers/{each}"} for each in servers]
        self.channels[key] = channel
        return {
            "channel": {"$ref": f"#/channels/{key}"},
            "messages": [{"$ref": f"#/channels/{key}/messages/{message}"}],
        }

    def _exchange(self, publication: PublicationConfig, name: str) -> Object:
        vhost = self.config.vhosts[publication.vhost]
        known = next((x for x in vhost.exchanges.values() if x.qualified_name == name), None)
        described: Object = {"name": name, "vhost": publication.vhost}
        if not name:
            return {**described, "type": "default"}
        if known is not None:
            options = known.options
            described |= {"durable": options.durable, "autoDelete": options.auto_delete}
            if known.type in _TYPES:
                described["type"] = known.type
        return described

    def _servers(self) -> dict[str, Object]:
        """Brokers on the network; the built-in one in the process has no address."""
        servers: dict[str, Object] = {}
        for vhost in self.config.vhosts.values():
            for connection in vhost.connections:
                if connection.is_embedded:
                    continue
                host = connection.hostname
                if ":" in host:
                    host = f"[{host}]"
                port = connection.port or DEFAULT_PORTS[connection.scheme]
                servers[f"broker-{len(servers) + 1}"] = {
                    "title": vhost.name,
                    "host": f"{host}:{port}",
                    "protocol": connection.scheme,
                    "protocolVersion": "0.9.1",
                    "pathname": f"/{connection.vhost_name(vhost.name)}",
                }
        return servers


def _send_binding(options: PublicationOptions) -> Object:
    known: Object = {
        "deliveryMode": 2 if options.persistent else 1,
        "mandatory": options.mandatory,
        "priority": options.priority,
        "expiration": None if options.expiration is None else round(options.expiration * 1000),
        "userId": options.user_id,
        "bindingVersion": _BINDINGS,
    }
    return {name: value for name, value in known.items() if value is not None}


def _queue(name: str, vhost: str, queue: QueueConfig | None) -> Object:
    described: Object = {"name": name, "vhost": vhost}
    if queue is not None:
        options = queue.options
        described |= {
            "durable": options.durable,
            "exclusive": options.exclusive,
            "autoDelete": options.auto_delete,
        }
    return described


def _key(name: str) -> str:
    """`name` as keys and references of the document can have it; no two names have one key."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}.", name) or "."
