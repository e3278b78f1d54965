"""Templates of publications: turn a content into a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from broker_client.amqp.encode import check_publish
from broker_client.amqp.tables import FrozenTable
from broker_client.amqp.x_death import with_sound_deaths
from broker_client.codec import content as contents
from broker_client.codec.claim_check import BodyStore, claim_of
from broker_client.codec.encryption import encrypt, encryption_note
from broker_client.config import BrokerConfig, Forward, PublicationConfig, VhostConfig
from broker_client.errors import InvalidMessageError, nearest
from broker_client.message import (
    ORIGINAL_USER_ID,
    PERSISTENT,
    RASCAL,
    TRANSIENT,
    Message,
    Outgoing,
    Properties,
)
from broker_client.publication import Origin
from broker_client.publishing.encoding import Encode
from broker_client.publishing.message_ids import new_message_id
from broker_client.publishing.queue import PublishQueue
from broker_client.publishing.vhost_publisher import VhostPublisher
from broker_client.runtime.tasks import TaskGroup


class PublishOverrides(TypedDict, total=False):
    """Options that one publish may override. None counts as not given, but for
    the properties of the message, which it leaves out."""

    message_id: str | None
    headers: Mapping[str, Any] | None
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
    delay: float
    """Seconds before the message reaches its queues."""


class ForwardOverrides(PublishOverrides, total=False):
    """Options that one forward may override."""

    restore_routing_headers: bool
    """True shows handlers of the copy the exchange and routing key of the message it was made of,
    not its own."""


_PUBLISH_OPTIONS = PublishOverrides.__required_keys__ | PublishOverrides.__optional_keys__
_FORWARD_OPTIONS = ForwardOverrides.__required_keys__ | ForwardOverrides.__optional_keys__
_LONGEST_EXPIRATION = 315_360_000.0  # seconds; RabbitMQ: ten years of 365 days


def given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` without those that are None where None is no value of theirs: not given."""
    if None not in overrides.values():
        return dict(overrides)
    return {
        name: value
        for name, value in overrides.items()
        if value is not None or name not in _NONE_MEANS_NOT_GIVEN
    }


_NONE_MEANS_NOT_GIVEN = ("message_id", "headers", "persistent", "mandatory", "timeout", "delay")


def check_overrides(overrides: Mapping[str, Any], *, forward: bool = False) -> None:
    """Raise InvalidMessageError for options that `publish` or `forward` does not have.

    The rest is seen as it is encoded.
    """
    if overrides.keys() <= _PLAIN_OPTIONS:
        return
    known = _FORWARD_OPTIONS if forward else _PUBLISH_OPTIONS
    for name, value in overrides.items():
        if name not in known:
            near = nearest(name, sorted(known))
            hint = f"did you mean {near!r}?; " if near else ""
            listed = f"({hint}allowed: {', '.join(sorted(known))})"
            raise InvalidMessageError(f"{name!r}", f"is not an option of a publish {listed}")
        if name == "timeout" or (name == "expiration" and value is not None):
            most = _LONGEST_EXPIRATION if name == "expiration" else float("inf")
            if not isinstance(value, int | float) or not 0 <= value <= most:
                allowed = f"seconds from 0 to {most:.0f}" if most < float("inf") else "seconds"
                raise InvalidMessageError(name, f"is {value!r}; a number of {allowed} is needed")
        if name == "headers" and not isinstance(value, Mapping):
            raise InvalidMessageError(name, f"are {value!r}; a mapping is needed")


_TEXT_PROPERTIES = ("content_encoding", "correlation_id", "reply_to", "type", "user_id", "app_id")
_PLAIN_PROPERTIES = frozenset((*_TEXT_PROPERTIES, "content_type", "priority", "timestamp"))
_NO_CHANGES = frozenset(("message_id", "mandatory", "timeout", "delay"))
"""Options that `_overridden` does not put into the properties."""
_PLAIN_OPTIONS = _PLAIN_PROPERTIES | {"message_id"}
_FORWARDED = (
    *(name for name in _TEXT_PROPERTIES if name != "user_id"),
    "content_type",
    "headers",
    "message_id",
    "priority",
    "timestamp",
)


def rejects_when_full(vhost: VhostConfig, *, exchange: str = "", queue: str = "") -> bool:
    """True when `queue`, or one that `exchange` may lead to, is declared to refuse publishes when
    full.

    Args:
        vhost: the vhost of both.
        exchange: its name on the broker; "" for the default exchange.
        queue: name on the broker of the queue that the default exchange routes to.
    """
    queues = {queue} if queue else set()
    exchanges, new = set[str](), {exchange} if exchange else set()
    while new:
        exchanges |= new
        reached = [each for each in vhost.bindings if each.qualified_source in new]
        to_queues = [each for each in reached if each.destination_type == "queue"]
        queues |= {each.qualified_destination for each in to_queues}
        new = {each.qualified_destination for each in reached if each not in to_queues} - exchanges
    return any(
        str(each.arguments.get("x-overflow", "")).startswith("reject-publish")
        for each in vhost.queues.values()
        if each.qualified_name in queues
    )


_COPIED = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
)
"""What a recovery copy takes from its strategy, else its publication, else the message."""

_new = tuple.__new__  # a named tuple's own constructor is a Python call


class Template:
    """A prepared publication; publishing fills in what differs between messages."""

    __slots__ = (
        "_after_id",
        "_before_id",
        "_content_type",
        "_encryption",
        "_is_queue",
        "_mandatory",
        "_properties",
        "bodies",
        "config",
        "confirms",
        "encode",
        "exchange",
        "is_plain",
        "max_nacks",
        "origin",
        "queue",
        "routing_key",
        "timeout",
        "vhost",
    )

    def __init__(
        self,
        every: BrokerConfig,
        config: PublicationConfig,
        vhost: VhostPublisher,
        tasks: TaskGroup,
        encode: Encode = contents.encode,
        bodies: BodyStore | None = None,
    ) -> None:
        self.config: PublicationConfig = config
        self.bodies: BodyStore | None = bodies
        """Store of large bodies, or None."""
        self.encode: Encode = encode
        """Makes a body and its content type of a content."""
        self.vhost: VhostPublisher = vhost
        self.queue: PublishQueue = vhost.queue
        self.confirms: bool = config.confirm
        self.timeout: float = config.timeout
        self.is_plain: bool = bodies is None and not config.delay
        """Nothing has to be awaited between the call and the publish queue."""
        self.exchange: str
        self.routing_key: str
        self.exchange, self.routing_key = every.target_of(config)
        self._is_queue = config.queue is not None
        self.max_nacks: float
        """Times a nacked message is sent again, within its time-out."""
        if config.retry_nacked is not None:
            self.max_nacks = config.retry_nacked
        else:
            target = "" if self.exchange else self.routing_key
            full = rejects_when_full(vhost.vhost.config, exchange=self.exchange, queue=target)
            self.max_nacks = 0 if full else float("inf")
        self.origin: Origin = Origin(config.name, vhost.queue.withdraw, tasks, self.max_nacks)
        """What its publishes have in common."""
        options = config.options
        self._mandatory = options.mandatory
        self._encryption = config.encryption
        self._properties = Properties(
            content_type=options.content_type,
            content_encoding=config.compress or options.content_encoding,
            headers=FrozenTable.of(options.headers) if options.headers else None,
            delivery_mode=PERSISTENT if options.persistent else TRANSIENT,
            priority=options.priority,
            correlation_id=options.correlation_id,
            reply_to=every.reply_queue_of(config),
            expiration=_milliseconds(options.expiration),
            type=options.type,
            user_id=options.user_id,
            app_id=options.app_id,
        )
        check_publish(Outgoing(self.exchange, self.routing_key, b"", self._properties))
        before = Properties._fields.index("message_id")
        self._content_type = options.content_type
        self._before_id, self._after_id = self._properties[1:before], self._properties[before + 1 :]

    def forwarded(
        self, message: Message, key: str, overrides: ForwardOverrides
    ) -> PublishOverrides:
        """Properties of `message`, without those that the publication or the call sets.

        Its headers tell where it came from, as rascal's do, and a CC of
        ``<queue>.<routing key>`` lets an exchange lead the copy back to that queue.
        """
        properties, ours = message.properties, self._properties
        given: PublishOverrides = {}
        for name in _FORWARDED:
            value = getattr(properties, name)
            if value is not None and getattr(ours, name) is None:
                given[name] = value  # type: ignore[literal-required] # a name out of _FORWARDED
        if self.config.compress is not None:
            given["content_encoding"] = properties.content_encoding  # type: ignore[typeddict-item] # None leaves it out; the body goes as it came
        if properties.delivery_mode is not None:
            given["persistent"] = properties.delivery_mode == PERSISTENT
        if ours.expiration is None and (properties.expiration or "").isdecimal():
            given["expiration"] = int(properties.expiration or "") / 1000
        given.update(overrides)
        # The copy goes where its publication sends it, not to all the places of the first.
        said = {**(ours.headers or {}), **(overrides.get("headers") or {})}
        headers = {**with_sound_deaths(properties.headers or {}), "BCC": None, **said}
        if headers["BCC"] is None:
            del headers["BCC"]
        headers["CC"] = _copies_to(said.get("CC"), back=f"{message.queue}.{key}")
        for count in ("x-delivery-count", "x-acquired-count"):
            headers.pop(count, None)  # set by the broker on the received message
        if properties.user_id is not None:
            headers[ORIGINAL_USER_ID] = properties.user_id
        history = headers.get(RASCAL)
        headers[RASCAL] = {
            **(history if isinstance(history, Mapping) else {}),
            "originalQueue": message.queue,
            "originalVhost": message.vhost,
            "originalExchange": message.exchange,
            "originalRoutingKey": message.routing_key,
            "restoreRoutingHeaders": overrides.get("restore_routing_headers", False),
        }
        given["headers"] = headers
        return given

    def copy(self, message: Message, headers: Mapping[str, Any], strategy: Forward) -> Outgoing:
        """A copy of `message` as recovery sends it: with these headers, and mandatory.

        What the strategy says wins over what this publication says, and that over what the
        message brings along (as in rascal). It is encrypted where this publication encrypts,
        unless it is already.
        """
        options, ours = strategy.options, self._properties
        key = strategy.routing_key or self.config.routing_key or message.routing_key
        said = {**(ours.headers or {}), **options.headers}
        every = {**headers, **said, "CC": _copies_to(said.get("CC"), back=f"{message.queue}.{key}")}
        if RASCAL in headers and RASCAL not in options.headers:
            every[RASCAL] = headers[RASCAL]
        changes: dict[str, Any] = {"headers": every, "user_id": ours.user_id}
        for name in _COPIED:
            value = getattr(options, name)
            if value is None and (name != "content_encoding" or self.config.compress is None):
                value = getattr(ours, name)
            if value is not None:
                changes[name] = value
        if ours.expiration is not None:
            changes["expiration"] = ours.expiration
        if options.expiration is not None:
            changes["expiration"] = _milliseconds(options.expiration)
        if options.persistent is not None:
            changes["delivery_mode"] = PERSISTENT if options.persistent else TRANSIENT
        body, properties = message.body, message.properties._replace(**changes)
        if self.config.encryption is not None and not is_sealed(properties):
            body, properties = encrypt(self.config.encryption, body, properties)
        properties = properties._replace(headers=FrozenTable.of(properties.headers or {}))
        if self._is_queue:
            key = self.routing_key
        return Outgoing(self.exchange, key, body, properties, mandatory=True)

    def outgoing(
        self,
        body: bytes,
        content_type: str | None,
        routing_key: str | None,
        overrides: PublishOverrides,
        *,
        encrypted: bool = False,
    ) -> Outgoing:
        """The message for the wire.

        Args:
            body: as `content.encode` makes it.
            content_type: of the body, unless the publication or the call says otherwise.
            routing_key: that of the publication when None.
            overrides: what the call says.
            encrypted: `body` is encrypted already, or in a store.
        """
        message_id = (overrides and overrides.get("message_id")) or new_message_id()
        content_type = self._content_type or content_type
        properties: Properties = _new(
            Properties, (content_type, *self._before_id, message_id, *self._after_id)
        )
        key, mandatory = self.routing_key, self._mandatory
        is_other_key = False
        # A publish to a queue goes to that queue, whatever routing headers its message has.
        if routing_key is not None and not self._is_queue:
            key, is_other_key = routing_key, True
        if overrides:
            mandatory = overrides.get("mandatory", mandatory)
            properties = _overridden(properties, overrides)
        if self._encryption is not None and not encrypted:
            body, properties = encrypt(self._encryption, body, properties)
            # Encoded now: what the caller does to them later is not sent.
            properties = properties._replace(headers=FrozenTable.of(properties.headers or {}))
        outgoing: Outgoing = _new(Outgoing, (self.exchange, key, body, properties, mandatory, ""))
        if overrides or (
            is_other_key and (not isinstance(key, str) or len(key) > 255 or not key.isascii())
        ):
            check_publish(outgoing, overrides)  # the publication's own were, by `__init__`
        return outgoing


def is_sealed(properties: Properties) -> bool:
    """True if a copy of such a message cannot be encrypted: it is, or its body is in a store."""
    return encryption_note(properties) is not None or claim_of(properties) is not None


def _overridden(properties: Properties, overrides: PublishOverrides) -> Properties:
    if overrides.keys() <= _NO_CHANGES:
        return properties
    changes: dict[str, Any] = {
        name: value for name, value in overrides.items() if name in _PLAIN_PROPERTIES
    }
    if headers := overrides.get("headers"):
        # Encoded now: what the caller does to them later is not sent.
        known = properties.headers
        changes["headers"] = FrozenTable.of({**known, **headers} if known else headers)
    if "expiration" in overrides:
        changes["expiration"] = _milliseconds(overrides["expiration"])
    if "persistent" in overrides:
        changes["delivery_mode"] = PERSISTENT if overrides["persistent"] else TRANSIENT
    return properties._replace(**changes) if changes else properties


def _copies_to(keys: Any, *, back: str) -> list[Any]:
    """The CC of a forwarded message: the given keys, and the way back."""
    listed = list(keys) if isinstance(keys, list | tuple) else [keys]
    asked = [key for key in listed if key]
    return asked if back in asked else [*asked, back]


def _milliseconds(seconds: float | None) -> str | None:
    """RabbitMQ: `expiration` is a whole number of milliseconds, in digits."""
    return None if seconds is None else str(round(seconds * 1000))
