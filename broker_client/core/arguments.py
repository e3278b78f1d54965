"""Queue arguments: checked, turned into settings, and compared at a redeclaration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from broker_client.amqp.tables import encode_arguments
from broker_client.core.replies import not_implemented, precondition_failed
from broker_client.core.settings import RabbitMQVersion
from broker_client.errors import InvalidMessageError
from broker_client.runtime.slotted import slotted

Arguments = Mapping[str, Any]

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"
LONGEST_EXPIRATION = 315_360_000_000
"""Milliseconds; RabbitMQ: ten years of 365 days."""
_HIGHEST_PRIORITY = 255

T = TypeVar("T")

_WIRE_TYPES: Mapping[type, str] = {
    str: "longstr",
    bytes: "longstr",
    float: "double",
    Decimal: "decimal",
    datetime: "timestamp",
    list: "array",
    dict: "table",
}

QUEUE_ARGUMENTS = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-message-timeout",
    "x-consumer-timeout",
)
"""Arguments that a redeclaration is compared by; RabbitMQ ignores those it does not know."""
EXCHANGE_ARGUMENTS = ("alternate-exchange", "x-delayed-type")
_QUORUM_PRIORITIES = (31, 4)  # RabbitMQ 4.3: the highest, and that of a message without one


@slotted
class QueueSettings:
    """The settings from a queue's arguments; times in seconds, None if not set."""

    message_ttl: float | None = None
    expires: float | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    default_priority: int = 0
    """Of a message that has none."""
    delivery_limit: int | None = None
    message_timeout: float | None = None
    """Longest time in flight before a delivery returns to the queue; 0 means no limit."""
    consumer_timeout: float | None = None
    """As RabbitMQ's: the end of a consumer or channel that has a delivery longer than this; see
    `cancels_on_timeout`."""
    cancels_on_timeout: bool = False
    """What `consumer_timeout` ends is the consumer (RabbitMQ 4.3: of a quorum queue), and not the
    channel."""
    single_active: bool = False
    quorum: bool = False
    """x-queue-type: quorum, which here is a classic queue that counts returns, and has RabbitMQ's
    priorities and time-outs of such queues."""

    @property
    def counts_deliveries(self) -> bool:
        """A redelivery carries x-delivery-count (RabbitMQ: in quorum queues)."""
        return self.quorum or self.delivery_limit is not None

    @property
    def rejects_publish(self) -> bool:
        return self.overflow != DROP_HEAD


class _Reader:
    """Reads arguments; refuses them with RabbitMQ's reasons, which are Erlang terms."""

    def __init__(self, arguments: Arguments, where: str) -> None:
        self._arguments, self._where = arguments, where

    def number(self, key: str, *, least: int = 0) -> int | None:
        value = self._arguments.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(key, f'"expected integer, got {wire_type(value)}"')
        if value < least:
            reason = "value_zero" if value == 0 else "value_negative"
            raise self.invalid(key, f"{{{reason},{value}}}")
        return value

    def seconds(self, key: str, *, least: int = 0, most: int = LONGEST_EXPIRATION) -> float | None:
        milliseconds = self.number(key, least=least)
        if milliseconds is None:
            return None
        if milliseconds > most:
            raise self.invalid(key, f"{{value_too_large,{milliseconds}}}")
        return milliseconds / 1000

    def text(self, key: str) -> str | None:
        return self._typed(key, str)

    def flag(self, key: str) -> bool:
        return self._typed(key, bool) or False

    def _typed(self, key: str, type: type[T]) -> T | None:
        value = self._arguments.get(key)
        if value is not None and not isinstance(value, type):
            raise self.invalid(key, f"{{unacceptable_type,{wire_type(value)}}}")
        return value

    def exchange(self, key: str) -> str | None:
        """The name of an exchange, which is refused in other words than other text."""
        value = self._arguments.get(key)
        if value is not None and not isinstance(value, str):
            raise precondition_failed(
                f"invalid type '{wire_type(value)}' for arg '{key}' in {self._where}"
            )
        return value

    def invalid(self, key: str, why: str) -> Exception:
        return precondition_failed(f"invalid arg '{key}' for {self._where}: {why}")


def queue_settings(
    arguments: Arguments, name: str, vhost: str, version: RabbitMQVersion
) -> QueueSettings:
    """The settings that `arguments` ask for.

    Args:
        arguments: of the declaration.
        name: of the queue.
        vhost: where it is.
        version: the RabbitMQ that is followed.

    Raises:
        ReplyError: 406 for a value RabbitMQ would refuse, 540 for a stream queue.
    """
    where = f"queue '{name}' in vhost '{vhost}'"
    read = _Reader(arguments, where)
    kind = read.text("x-queue-type") or "classic"
    if kind == "stream":
        raise not_implemented(f"{where}: x-queue-type 'stream'")
    if kind not in ("classic", "quorum"):
        raise read.invalid("x-queue-type", f"\"unsupported queue type '{kind}'\"")
    overflow = read.text("x-overflow") or DROP_HEAD
    if overflow not in (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX):
        raise read.invalid("x-overflow", "invalid_overflow")
    exchange = read.exchange("x-dead-letter-exchange")
    routing_key = read.text("x-dead-letter-routing-key")
    if routing_key is not None and exchange is None:
        raise read.invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
    max_priority = read.number("x-max-priority") or 0
    if max_priority > _HIGHEST_PRIORITY:
        raise read.invalid("x-max-priority", f"{{max_value_exceeded,{max_priority}}}")
    default_priority = 0
    quorum = kind == "quorum"
    if quorum and not max_priority and version >= (4, 3):
        max_priority, default_priority = _QUORUM_PRIORITIES
    return QueueSettings(
        message_ttl=read.seconds("x-message-ttl"),
        expires=read.seconds("x-expires", least=1),
        max_length=read.number("x-max-length"),
        max_length_bytes=read.number("x-max-length-bytes"),
        overflow=overflow,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        max_priority=max_priority,
        default_priority=default_priority,
        delivery_limit=read.number("x-delivery-limit", least=-1),
        message_timeout=read.seconds("x-message-timeout"),
        consumer_timeout=read.seconds("x-consumer-timeout", least=1),
        cancels_on_timeout=quorum and version >= (4, 3),
        single_active=read.flag("x-single-active-consumer"),
        quorum=quorum,
    )


def check_encodable(arguments: Arguments) -> None:
    """Refuse values that no client could send and no file can store.

    Raises:
        ReplyError: 406 for a value that has no form in AMQP.
    """
    try:
        encode_arguments(arguments)
    except InvalidMessageError as error:
        raise precondition_failed(f"{error.what} {error.reason}") from None


def check_new_queue(arguments: Arguments, name: str, vhost: str, version: RabbitMQVersion) -> None:
    """Refuse arguments that RabbitMQ accepts only for queues of another type.

    A queue from a file that was made by the rules of another version is not asked.

    Raises:
        ReplyError: 406 for `x-max-priority` of a quorum queue, and from 4.3 on for
            `x-consumer-timeout` of a classic one.
    """
    kind = arguments.get("x-queue-type") or "classic"
    refused = None
    if kind == "quorum" and "x-max-priority" in arguments:
        refused = "x-max-priority"
    if kind == "classic" and version >= (4, 3) and "x-consumer-timeout" in arguments:
        refused = "x-consumer-timeout"
    if refused is not None:
        raise precondition_failed(
            f"invalid arg '{refused}' for queue '{name}' in vhost '{vhost}' of queue type "
            f"rabbit_{kind}_queue"
        )


def consumer_message_timeout(arguments: Arguments, queue: str, most: float) -> float | None:
    """Seconds that a consumer wants for each delivery, None where it does not say.

    Args:
        arguments: of basic.consume.
        queue: for the text of the refusal.
        most: seconds at most.

    Raises:
        ReplyError: 406 for a value that is not a whole number of milliseconds, or out of range.
    """
    read = _Reader(arguments, f"consumer of queue '{queue}'")
    return read.seconds("x-message-timeout", least=1, most=int(most * 1000))


def consumer_priority(arguments: Arguments, queue: str, vhost: str) -> int:
    """The x-priority of a consumer, 0 where it has none.

    Raises:
        ReplyError: 406 for what is not an integer.
    """
    read = _Reader(arguments, f"queue '{queue}' in vhost '{vhost}'")
    return read.number("x-priority", least=-(1 << 63)) or 0


def alternate_exchange(arguments: Arguments, exchange: str, vhost: str) -> str | None:
    """The exchange that takes what has no binding in `exchange`, or None.

    Raises:
        ReplyError: 406 for what is not text.
    """
    where = f"exchange '{exchange}' in vhost '{vhost}'"
    return _Reader(arguments, where).exchange("alternate-exchange")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the value '{str(value).lower()}' of type 'bool'"
    return f"the value '{value}' of type '{wire_type(value)}'"


def wire_type(value: Any) -> str:
    """RabbitMQ's name for the field type in which clients send `value`."""
    if isinstance(value, int) and not isinstance(value, bool):
        bits = value.bit_length()
        return (
            "byte" if bits < 8 else "short" if bits < 16 else "signedint" if bits < 32 else "long"
        )
    return _WIRE_TYPES.get(type(value), type(value).__name__)


def check_flag(kind: str, name: str, vhost: str, flag: str, received: Any, current: Any) -> None:
    """Refuse a redeclaration that differs in `flag`, with RabbitMQ's words.

    Raises:
        ReplyError: 406 when the two differ.
    """
    if received != current:
        shown = [str(v).lower() if isinstance(v, bool) else v for v in (received, current)]
        raise precondition_failed(
            f"inequivalent arg '{flag}' for {kind} '{name}' in vhost '{vhost}': "
            f"received '{shown[0]}' but current is '{shown[1]}'"
        )


def check_arguments(
    where: str, compared: tuple[str, ...], received: Arguments, current: Arguments
) -> None:
    """Refuse a redeclaration whose `compared` arguments differ; numbers compare by value.

    Raises:
        ReplyError: 406 naming the first argument that differs.
    """
    for key in compared:
        new, old = received.get(key), current.get(key)
        if key == "x-queue-type":
            new, old = new or "classic", old or "classic"
        if new == old:
            continue
        if new is None or old is None:
            difference = f"received {_shown(new)} but current is {_shown(old)}"
        else:
            difference = f"received '{new}' but current is '{old}'"
        raise precondition_failed(f"inequivalent arg '{key}' for {where}: {difference}")
