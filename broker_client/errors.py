"""Every error the package raises, as one tree.

BrokerClientError
├── ConfigError
├── UsageError
│   ├── UnknownNameError
│   ├── InvalidMessageError
│   ├── InvalidNameError
│   ├── InvalidHandlerError
│   ├── InvalidMiddlewareError
│   ├── AccessControlError
│   ├── InvalidPolicyError
│   ├── InvalidVHostError
│   ├── InvalidParameterError
│   ├── InvalidDefinitionsError
│   ├── BrokerClosedError
│   ├── WrongLoopError
│   └── UnsupportedError
├── TransportError
│   ├── ConnectFailedError
│   ├── AuthenticationRefusedError
│   ├── ConnectionLostError
│   ├── ChannelClosedError
│   ├── ChannelsExhaustedError
│   ├── OperationTimeoutError
│   └── ManagementError
├── TopologyError
│   └── TopologyMismatchError
├── PoolError
│   ├── PoolClosedError
│   └── PoolTimeoutError
├── PublishError
│   ├── MessageReturnedError
│   ├── PublishNackedError
│   ├── PublishRefusedError
│   │   └── MessageTooLargeError
│   ├── PublishTimeoutError
│   ├── PublishUnconfirmedError
│   ├── PublishAbortedError
│   └── PublishQueueFullError
├── ClaimCheckError
├── RequestError
│   ├── RequestTimeoutError
│   ├── RequestLostError
│   └── RequestFailedError
├── DeliveryError
│   ├── AlreadySettledError
│   ├── StaleDeliveryError
│   ├── InvalidContentError
│   │   ├── InvalidHeadersError
│   │   └── BodyMissingError
│   ├── ConsumerCancelledError
│   │   ├── AckTimeoutError
│   │   └── ConsumerLostError
│   ├── HandlerError
│   ├── NoHandlerError
│   ├── RecoveryFailedError
│   ├── RedeliveriesExceededError
│   └── RedeliveriesUncountedError
├── ProtocolError
│   ├── MalformedFrameError
│   └── ReplyError
├── ListenError
└── StoreError
    ├── StoreLockedError
    ├── StoreFullError
    ├── StoreReadOnlyError
    └── StoreCorruptError

Fields go to ``super().__init__(*fields)`` and the text is made in ``__str__``, so every error
pickles. ``retryable`` belongs to the class: it says whether the same call may succeed later.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

from broker_client.runtime.slotted import slotted


class BrokerClientError(Exception):
    """Base class of every error that this package raises on purpose."""

    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without a change."""

    broker: Any = None
    """On an error of `Broker.create`: the closed Broker, whose `nuke()` deletes what was already
    declared (as in rascal). It is not pickled."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.args = fields  # OSError, a base of some, keeps only two: those would not pickle

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key != "broker"}
        return type(self), self.args, state


# --------------------------------------------------------------------------- configuration


@slotted
class Problem:
    """One mistake in a configuration, with its place and what is allowed there."""

    path: str
    """Dotted path of the value, e.g. ``vhosts./.queues.orders``."""
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = self.file or "configuration"
        if self.line is not None:
            place += f":{self.line}"
        where = f" {self.path}:" if self.path else ""
        return f"{place}:{where} {self.message}"


class ConfigError(BrokerClientError, ValueError):
    """The configuration cannot be used. Lists every problem found, one a line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems: tuple[Problem, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


# --------------------------------------------------------------------------- misuse


class UsageError(BrokerClientError):
    """The call is wrong or comes at the wrong time; nothing was sent."""


DISTRIBUTION = "amqp-broker-client"
"""Under which the package index knows this package: `broker-client` there is another project's."""


def install_extra(extra: str) -> str:
    """What to do about a missing optional dependency."""
    return f"install the extra: pip install '{DISTRIBUTION}[{extra}]', in a checkout '.[{extra}]'"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is near."""
    matches = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    return matches[0] if matches else None


def text_of(error: object) -> str:
    """The text of a foreign error; never raises."""
    try:
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failure:  # noqa: BLE001 - its __str__ may do anything
        return f"(its text cannot be read: {type(failure).__name__})"


def described(error: BaseException) -> str:
    """Class and text of a foreign error; never raises."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class UnknownNameError(UsageError, LookupError):
    """No publication, subscription, vhost, strategy or user of that name is declared."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        super().__init__(kind, name, tuple(known))
        self.kind: str = kind
        self.name: str = name
        self.known: tuple[str, ...] = tuple(known)

    def __str__(self) -> str:
        near = nearest(self.name, self.known)
        hint = f"; did you mean {near!r}?" if near else ""
        listed = ", ".join(sorted(self.known)) or "none"
        return f"unknown {self.kind} {self.name!r}{hint} (declared: {listed})"


class InvalidMessageError(UsageError, ValueError):
    """A message cannot be published as given: a name too long, a header AMQP cannot carry."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what: str = what
        self.reason: str = reason

    def __str__(self) -> str:
        return f"cannot publish: {self.what} {self.reason}"


class InvalidNameError(UsageError, ValueError):
    """The name of an exchange, queue, routing key or consumer tag is not allowed."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind: str = kind
        self.name: str = name
        self.reason: str = reason

    def __str__(self) -> str:
        shown = self.name if len(self.name) <= 40 else self.name[:37] + "..."
        return f"{self.kind} {shown!r} {self.reason}"


class AccessControlError(UsageError, ValueError):
    """A user, permission or pattern of the built-in broker is not valid."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what: str = what
        self.reason: str = reason

    def __str__(self) -> str:
        return f"{self.what} {self.reason}"


class InvalidPolicyError(UsageError, ValueError):
    """A policy or the limits of a vhost of the built-in broker are not valid."""

    def __init__(self, name: str, vhost: str, problems: Sequence[str]) -> None:
        super().__init__(name, vhost, tuple(problems))
        self.name: str = name
        self.vhost: str = vhost
        self.problems: tuple[str, ...] = tuple(problems)

    def __str__(self) -> str:
        return f"policy {self.name!r} in vhost {self.vhost!r}: {'; '.join(map(str, self.problems))}"


class InvalidVHostError(UsageError, ValueError):
    """The metadata of a vhost of the built-in broker cannot be as given."""

    def __init__(self, vhost: str, problems: Sequence[str]) -> None:
        super().__init__(vhost, tuple(problems))
        self.vhost: str = vhost
        self.problems: tuple[str, ...] = tuple(problems)

    def __str__(self) -> str:
        return f"vhost {self.vhost!r}: {'; '.join(map(str, self.problems))}"


class InvalidParameterError(UsageError, ValueError):
    """A parameter of the built-in broker cannot be as given."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        super().__init__(name, tuple(problems))
        self.name: str = name
        self.problems: tuple[str, ...] = tuple(problems)

    def __str__(self) -> str:
        return f"parameter {self.name!r}: {'; '.join(map(str, self.problems))}"


class InvalidDefinitionsError(UsageError, ValueError):
    """Definitions of a broker cannot be imported. Lists every problem found, one a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems: tuple[str, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class InvalidHandlerError(UsageError, TypeError):
    """An object cannot be used as a message handler."""

    def __init__(self, handler: str, reason: str) -> None:
        super().__init__(handler, reason)
        self.handler: str = handler
        self.reason: str = reason

    def __str__(self) -> str:
        return f"{self.handler} cannot handle messages: {self.reason}"


class InvalidMiddlewareError(UsageError, TypeError):
    """A function cannot be used as middleware, was added too late, or broke the chain of calls."""

    def __init__(self, middleware: str, reason: str) -> None:
        super().__init__(middleware, reason)
        self.middleware: str = middleware
        self.reason: str = reason

    def __str__(self) -> str:
        return f"{self.middleware} cannot be middleware: {self.reason}"


class WrongLoopError(UsageError, RuntimeError):
    """A broker was used from another event loop or process than the one it was created in."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; create the Broker where it is used"


class BrokerClosedError(UsageError):
    """The broker was shut down or is shutting down, and accepts no new work."""

    def __init__(self, what: str = "broker") -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed; create a new Broker"


class UnsupportedError(UsageError):
    """This broker does not support the operation."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what: str = what
        self.why: str = why

    def __str__(self) -> str:
        return f"{self.what} is not supported here: {self.why}"


# --------------------------------------------------------------------------- transport


class TransportError(BrokerClientError):
    """The link to the broker, or one of its channels, failed."""


class ConnectFailedError(TransportError, ConnectionError):
    """No connection could be made. `url` is masked."""

    retryable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url: str = url
        self.reason: str = reason

    def __str__(self) -> str:
        return f"failed to connect to {self.url}: {self.reason}"


class AuthenticationRefusedError(TransportError):
    """The broker refused the user, the password or the vhost.

    Retryable, since credentials and vhosts are often created a moment after the application
    starts.
    """

    retryable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url: str = url
        self.reason: str = reason

    def __str__(self) -> str:
        return f"{self.url} refused the login: {self.reason}"


class ConnectionLostError(TransportError, ConnectionError):
    """An established connection was lost."""

    retryable = True

    def __init__(
        self, url: str, reason: str, *, in_order: bool = False, close_code: int = 0
    ) -> None:
        super().__init__(url, reason)
        self.url: str = url
        self.reason: str = reason
        self.in_order = in_order
        """True if the broker closed it in order, because it was stopping or an operator asked."""
        self.close_code = close_code
        """The code of the broker's connection.close, or 0."""

    def __str__(self) -> str:
        return f"connection to {self.url} lost: {self.reason}"


class ChannelClosedError(TransportError):
    """The channel is closed: by the broker (then with a reply code) or with its connection."""

    retryable = True

    def __init__(self, reply_code: int, reply_text: str, *, connection_code: int = 0) -> None:
        super().__init__(reply_code, reply_text)
        self.reply_code: int = reply_code
        self.reply_text: str = reply_text
        self.connection_code = connection_code
        """The code with which the broker closed its connection, or 0."""

    def __str__(self) -> str:
        code = f"{self.reply_code} " if self.reply_code else ""
        return f"channel closed: {code}{self.reply_text}"


class ChannelsExhaustedError(TransportError):
    """A connection has as many channels open as its `channel_max` allows."""

    retryable = True

    def __init__(self, url: str, channel_max: int, consuming: int) -> None:
        super().__init__(url, channel_max, consuming)
        self.url: str = url
        self.channel_max: int = channel_max
        self.consuming = consuming
        """Those of them that subscriptions have."""

    def __str__(self) -> str:
        return (
            f"all {self.channel_max} channels of {self.url} are open, {self.consuming} of them for "
            "subscriptions: raise channel_max of the connection, or of the broker where that is "
            "lower; separate_connections gives subscriptions a connection of their own"
        )


class OperationTimeoutError(TransportError, TimeoutError):
    """The broker did not answer in time."""

    retryable = True

    def __init__(self, operation: str, waited: float) -> None:
        super().__init__(operation, waited)
        self.operation: str = operation
        self.waited: float = waited

    def __str__(self) -> str:
        return f"{self.operation}: no answer within {self.waited:g} s"


class ManagementError(TransportError):
    """The management API failed. `status` is 0 if it did not answer."""

    retryable = True

    def __init__(self, what: str, vhost: str, url: str, status: int, reason: str) -> None:
        super().__init__(what, vhost, url, status, reason)
        self.what: str = what
        self.vhost: str = vhost
        self.url: str = url
        self.status: int = status
        self.reason: str = reason

    def __str__(self) -> str:
        answer = f"answered: {self.status} {self.reason}" if self.status else f"- {self.reason}"
        return f"failed to {self.what} vhost {self.vhost!r}: {self.url} {answer}"


class TopologyError(BrokerClientError):
    """An exchange, queue or binding differs from its declaration, or cannot be declared."""

    retryable = True

    def __init__(self, vhost: str, entity: str, reason: str) -> None:
        super().__init__(vhost, entity, reason)
        self.vhost: str = vhost
        self.entity: str = entity
        self.reason: str = reason

    def __str__(self) -> str:
        return f"vhost {self.vhost!r}: {self.entity}: {self.reason}"


class TopologyMismatchError(TopologyError):
    """An exchange or queue exists with other settings than the declared ones."""

    def __init__(
        self, vhost: str, entity: str, reason: str, argument: str, wanted: str, current: str
    ) -> None:
        super().__init__(vhost, entity, reason)
        self.args: tuple[Any, ...] = (vhost, entity, reason, argument, wanted, current)
        self.argument: str = argument
        self.wanted: str = wanted
        self.current: str = current

    def __str__(self) -> str:
        return (
            f"vhost {self.vhost!r}: {self.entity} has {self.argument} {self.current} on the "
            f"broker but {self.wanted} in the configuration. "
            f"{way_out_of_mismatch(self.entity.partition(' ')[0])} ({self.reason})"
        )


def way_out_of_mismatch(kind: str) -> str:
    """What to do about an exchange or queue that exists with other settings."""
    if kind == "queue":
        return (
            "A queue keeps the settings it was created with: configure those; or declare a queue "
            "of another name, move the messages there (broker-client move) and delete the old one; "
            "or delete it, and it is declared again (broker-client apply --replace, when empty)"
        )
    return (
        "An exchange keeps the settings it was created with: configure those; or declare an "
        "exchange of another name; or delete it, and it is declared again (broker-client apply "
        "--replace)"
    )


# --------------------------------------------------------------------------- pool


class PoolError(BrokerClientError):
    """The pool could not lease a channel. Nothing was sent."""


class PoolClosedError(PoolError):
    """The pool is closed."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self.pool = pool

    def __str__(self) -> str:
        return f"pool {self.pool!r} is closed"


class PoolTimeoutError(PoolError, TimeoutError):
    """No channel became free in time."""

    retryable = True

    def __init__(self, pool: str, waited: float, stats: str = "") -> None:
        super().__init__(pool, waited, stats)
        self.pool: str = pool
        self.waited: float = waited
        self.stats: str = stats

    def __str__(self) -> str:
        tail = f" ({self.stats})" if self.stats else ""
        return f"pool {self.pool!r}: no channel free after {self.waited:.2f} s{tail}"


# --------------------------------------------------------------------------- publishing


class PublishError(BrokerClientError):
    """A publication did not end as `success`."""

    def __init__(self, publication: str, message_id: str, *more: Any) -> None:
        super().__init__(publication, message_id, *more)
        self.publication: str = publication
        self.message_id: str = message_id

    def _what(self) -> str:
        return f"publication {self.publication!r}: message {self.message_id}"


class ClaimCheckError(BrokerClientError):
    """The store of large bodies (`claim_check`) failed, or did not answer in time."""

    retryable = True

    def __init__(self, owner: str, action: str, reason: str) -> None:
        super().__init__(owner, action, reason)
        self.owner: str = owner
        self.action: str = action
        self.reason: str = reason

    def __str__(self) -> str:
        return f"claim check of {self.owner}: cannot {self.action} a body: {self.reason}"


class MessageReturnedError(PublishError):
    """The broker could not route a mandatory message and returned it (AMQP 0-9-1 §3.1.3.1)."""

    def __init__(
        self,
        publication: str,
        message_id: str,
        reply_code: int,
        reply_text: str,
        exchange: str,
        routing_key: str,
    ) -> None:
        super().__init__(publication, message_id, reply_code, reply_text, exchange, routing_key)
        self.reply_code: int = reply_code
        self.reply_text: str = reply_text
        self.exchange: str = exchange
        self.routing_key: str = routing_key

    def __str__(self) -> str:
        return (
            f"{self._what()} was returned by exchange {self.exchange!r}: {self.reply_code} "
            f"{self.reply_text}; no queue is bound for routing key {self.routing_key!r}"
        )


class PublishNackedError(PublishError):
    """The broker answered with basic.nack: it did not accept the message."""

    retryable = True

    def __init__(self, publication: str, message_id: str, exchange: str, routing_key: str) -> None:
        super().__init__(publication, message_id, exchange, routing_key)
        self.exchange: str = exchange
        self.routing_key: str = routing_key

    def __str__(self) -> str:
        return (
            f"{self._what()} was refused by the broker (nack) on exchange {self.exchange!r}, "
            f"routing key {self.routing_key!r}"
        )


class PublishRefusedError(PublishError):
    """The broker closed the channel or connection because of this message, e.g. its exchange is
    missing. With `reply_code` 0 it could not be encoded, and nothing was sent."""

    def __init__(self, publication: str, message_id: str, reply_code: int, reply_text: str) -> None:
        super().__init__(publication, message_id, reply_code, reply_text)
        self.reply_code: int = reply_code
        self.reply_text: str = reply_text

    def __str__(self) -> str:
        if not self.reply_code:
            return f"{self._what()} was not sent: {self.reply_text}"
        return f"{self._what()} was refused by the broker: {self.reply_code} {self.reply_text}"


class MessageTooLargeError(PublishRefusedError):
    """The body is larger than the broker accepts. Nothing was sent, unless the limit was not known
    before: then the broker closed the channel because of this message."""

    def __init__(
        self, publication: str, message_id: str, size_bytes: int, limit_bytes: int, source: str
    ) -> None:
        text = f"{size_bytes} bytes, at most {limit_bytes} are allowed: {source}"
        super().__init__(publication, message_id, 406, text)  # as RabbitMQ answers
        self.args: tuple[Any, ...] = (publication, message_id, size_bytes, limit_bytes, source)
        self.size_bytes: int = size_bytes
        self.limit_bytes: int = limit_bytes
        self.source = source
        """Where the limit comes from."""

    def __str__(self) -> str:
        return f"{self._what()} is larger than the broker accepts: {self.reply_text}"


class PublishTimeoutError(PublishError, TimeoutError):
    """Time ran out before the message was sent. It was withdrawn and will never be sent."""

    retryable = True

    def __init__(self, publication: str, message_id: str, waited: float, link: str) -> None:
        super().__init__(publication, message_id, waited, link)
        self.waited: float = waited
        self.link: str = link

    def __str__(self) -> str:
        return (
            f"{self._what()} was not sent within {self.waited:g} s and was withdrawn "
            f"(link {self.link})"
        )


class PublishUnconfirmedError(PublishError, TimeoutError):
    """Sent, but neither confirmed nor refused in time: the outcome is unknown."""

    retryable = True

    def __init__(self, publication: str, message_id: str, waited: float, link: str) -> None:
        super().__init__(publication, message_id, waited, link)
        self.waited: float = waited
        self.link: str = link

    def __str__(self) -> str:
        return (
            f"{self._what()} was sent but not confirmed within {self.waited:g} s: the broker may "
            f"or may not have it (link {self.link}); publish again with the same message id"
        )


class PublishAbortedError(PublishError):
    """`abort()` or a closing broker took the message out of the queue before it was sent."""

    def __init__(self, publication: str, message_id: str, reason: str = "aborted") -> None:
        super().__init__(publication, message_id, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self._what()} was not sent: {self.reason}"


class PublishQueueFullError(PublishError):
    """The vhost's publish queue is full and its policy does not wait."""

    retryable = True

    def __init__(self, publication: str, message_id: str, queued: int, limit: str) -> None:
        super().__init__(publication, message_id, queued, limit)
        self.queued: int = queued
        self.limit: str = limit

    def __str__(self) -> str:
        return f"{self._what()} was refused: {self.queued} messages are waiting ({self.limit})"


PUBLISH_REFUSALS: tuple[type[PublishError], ...] = (
    MessageReturnedError,
    PublishRefusedError,
    PublishNackedError,
)
"""Outcomes that the broker decided on; others come from a connection, deadline or shutdown."""


# --------------------------------------------------------------------------- requests


class RequestError(BrokerClientError):
    """A request got no answer. It may still have been processed."""


class RequestTimeoutError(RequestError, TimeoutError):
    """The answer did not arrive in time."""

    retryable = True

    def __init__(self, publication: str, waited: float) -> None:
        super().__init__(publication, waited)
        self.publication: str = publication
        self.waited: float = waited

    def __str__(self) -> str:
        return f"request through {self.publication!r}: no answer within {self.waited:g} s"


class RequestFailedError(RequestError):
    """The handler of the request failed. The text of its error is in the log of its process."""

    def __init__(self, publication: str, kind: str) -> None:
        super().__init__(publication, kind)
        self.publication: str = publication
        self.kind: str = kind

    def __str__(self) -> str:
        return f"request through {self.publication!r}: its handler failed with {self.kind}"


class RequestLostError(RequestError):
    """The reply queue or its connection was lost before the answer arrived."""

    retryable = True

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)
        self.queue: str = queue
        self.reason: str = reason

    def __str__(self) -> str:
        return f"the answer was lost with reply queue {self.queue!r}: {self.reason}"


# --------------------------------------------------------------------------- deliveries


class DeliveryError(BrokerClientError):
    """A delivery could not be handled or settled as requested."""


class AlreadySettledError(DeliveryError):
    """This delivery was settled before; the second call was not sent."""

    def __init__(self, delivery_tag: int, consumer_tag: str) -> None:
        super().__init__(delivery_tag, consumer_tag)
        self.delivery_tag: int = delivery_tag
        self.consumer_tag: str = consumer_tag

    def __str__(self) -> str:
        return (
            f"delivery {self.delivery_tag} of consumer {self.consumer_tag!r} is settled already; "
            "call ack_or_nack once per message"
        )


class StaleDeliveryError(DeliveryError):
    """The delivery no longer belongs to this consumer, which cannot settle it."""

    def __init__(self, delivery_tag: int, consumer_tag: str) -> None:
        super().__init__(delivery_tag, consumer_tag)
        self.delivery_tag: int = delivery_tag
        self.consumer_tag: str = consumer_tag

    def __str__(self) -> str:
        return (
            f"delivery {self.delivery_tag} is not in flight for consumer {self.consumer_tag!r}: "
            "it timed out, was settled before, or its channel is gone"
        )


class InvalidContentError(DeliveryError, ValueError):
    """The body does not fit its content type."""

    def __init__(self, content_type: str, reason: str) -> None:
        super().__init__(content_type, reason)
        self.content_type: str = content_type
        self.reason: str = reason

    def __str__(self) -> str:
        return f"body is not valid {self.content_type}: {self.reason}"


class InvalidHeadersError(InvalidContentError):
    """The properties of a message cannot be read, as another client wrote them."""

    def __init__(self, reason: str) -> None:
        super().__init__("", reason)
        self.args: tuple[Any, ...] = (reason,)

    def __str__(self) -> str:
        return f"headers cannot be read: {self.reason}"


class BodyMissingError(InvalidContentError):
    """The body of a message cannot be found in its store (`claim_check`)."""

    def __init__(self, reason: str) -> None:
        super().__init__("", reason)
        self.args: tuple[Any, ...] = (reason,)

    def __str__(self) -> str:
        return f"body is missing: {self.reason}"


class ConsumerCancelledError(DeliveryError):
    """The broker cancelled the consumer, as it does when the queue is deleted."""

    retryable = True

    def __init__(self, subscription: str, queue: str) -> None:
        super().__init__(subscription, queue)
        self.subscription: str = subscription
        self.queue: str = queue

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} on queue {self.queue!r} "
            "was cancelled by the broker"
        )


class AckTimeoutError(ConsumerCancelledError):
    """The broker cancelled the consumer because a delivery was unsettled for too long.

    RabbitMQ does so from 4.3 on, for quorum queues; before, it closes the channel.
    """

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} on queue {self.queue!r} was cancelled by the "
            "broker: a delivery was unsettled for longer than its time-out"
        )


class ConsumerLostError(ConsumerCancelledError):
    """The broker no longer has the consumer, and did not announce a cancellation."""

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r}: the broker no longer has a consumer on queue "
            f"{self.queue!r}, and sent no cancellation"
        )


class HandlerError(DeliveryError):
    """A message handler raised without settling. The cause is in ``__cause__``."""

    def __init__(self, subscription: str, message_id: str | None, reason: str) -> None:
        super().__init__(subscription, message_id, reason)
        self.subscription: str = subscription
        self.message_id: str | None = message_id
        self.reason: str = reason

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r}: handler of message {self.message_id} "
            f"raised {self.reason}"
        )


class NoHandlerError(DeliveryError):
    """None of the handlers of a subscription is for this message."""

    def __init__(self, subscription: str, message_id: str | None, type: str | None) -> None:
        super().__init__(subscription, message_id, type)
        self.subscription: str = subscription
        self.message_id: str | None = message_id
        self.type: str | None = type

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} has no handler for message {self.message_id} of "
            f"type {self.type!r}: add one without a type and headers for the rest"
        )


class RecoveryFailedError(DeliveryError):
    """A recovery strategy failed; the next one was tried."""

    def __init__(self, strategy: str, message_id: str | None, reason: str) -> None:
        super().__init__(strategy, message_id, reason)
        self.strategy: str = strategy
        self.message_id: str | None = message_id
        self.reason: str = reason

    def __str__(self) -> str:
        return f"recovery {self.strategy!r} of message {self.message_id} failed: {self.reason}"


class RedeliveriesExceededError(DeliveryError):
    """A message was redelivered more often than its subscription allows."""

    def __init__(self, message_id: str | None, redeliveries: int, limit: int) -> None:
        super().__init__(message_id, redeliveries, limit)
        self.message_id: str | None = message_id
        self.redeliveries: int = redeliveries
        self.limit: int = limit

    def __str__(self) -> str:
        return (
            f"message {self.message_id} was redelivered {self.redeliveries} times; "
            f"at most {self.limit} are allowed"
        )


class RedeliveriesUncountedError(DeliveryError):
    """The counter of redeliveries failed, or did not answer in time."""

    retryable = True

    def __init__(self, message_id: str | None, reason: str) -> None:
        super().__init__(message_id, reason)
        self.message_id: str | None = message_id
        self.reason: str = reason

    def __str__(self) -> str:
        return f"redeliveries of message {self.message_id} cannot be counted: {self.reason}"


# --------------------------------------------------------------------------- broker side


class ProtocolError(BrokerClientError):
    """A rule of AMQP was broken."""


class MalformedFrameError(ProtocolError):
    """The peer sent bytes that are not a valid AMQP 0-9-1 frame."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"malformed frame: {self.reason}"


class ReplyError(ProtocolError):
    """A refusal by the broker core, with its AMQP reply code.

    `scope` is ``channel`` (the channel closes) or ``connection`` (the connection does).
    """

    def __init__(self, reply_code: int, reply_text: str, scope: str = "channel") -> None:
        super().__init__(reply_code, reply_text, scope)
        self.reply_code: int = reply_code
        self.reply_text: str = reply_text
        self.scope: str = scope

    def __str__(self) -> str:
        return f"{self.reply_code} {self.reply_text}"


class ListenError(BrokerClientError, OSError):
    """The server cannot listen on an address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address: str = address
        self.reason: str = reason

    def __str__(self) -> str:
        where = ""
        if not self.address.startswith("http"):  # the option of a dashboard depends on the command
            where = " with --listen, or node.listen in the configuration"
        return f"cannot listen on {self.address}: {self.reason}; choose another address{where}"


class StoreError(BrokerClientError):
    """The store of the built-in broker failed, or a file of counters or ids cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path: str = path
        self.reason: str = reason

    def __str__(self) -> str:
        return f"store {self.path}: {self.reason}"


class StoreLockedError(StoreError):
    """Another process, or another event loop of this process, has the file open."""

    retryable = True

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.holder = holder

    def __str__(self) -> str:
        return f"store {self.path}: in use by {self.holder}; only one process may open it"


class StoreFullError(StoreError):
    """The disk is full, or the file has reached its size limit."""


class StoreReadOnlyError(StoreError):
    """The file or its folder is not writable."""


class StoreCorruptError(StoreError):
    """The file is damaged, or is not a store."""

    def __str__(self) -> str:
        return f"store {self.path}: {self.reason}; see `broker-client store check {self.path}`"
