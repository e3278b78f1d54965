"""Models of exchanges, queues and bindings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from broker_client.config_problems import hint
from broker_client.config_values import Count, Duration, Settings

Arguments = dict[str, Any]

_TYPES = ("direct", "fanout", "topic", "headers")


def _known_type(value: str) -> str:
    if value in _TYPES or (value.startswith("x-") and len(value) > 2):
        return value
    raise ValueError(f"unknown exchange type {value!r}" + hint(value, (*_TYPES, "x-...")))


ExchangeType = Annotated[
    str,
    AfterValidator(_known_type),
    Field(json_schema_extra={"pattern": rf"^({'|'.join(_TYPES)}|x-.+)$"}),
]


class ExchangeOptions(Settings):
    """What the broker is told when the exchange is declared."""

    durable: bool = True
    """Survives a restart of the broker."""
    auto_delete: bool = False
    """Deleted with its last binding."""
    internal: bool = False
    """Takes messages from other exchanges only."""
    alternate_exchange: str | None = None
    """Exchange that gets what this one cannot route."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments, as the broker knows them; they win over the options above."""

    @property
    def all_arguments(self) -> Arguments:
        """The arguments to declare with."""
        return _merged({"alternate-exchange": self.alternate_exchange}, self.arguments)


class ExchangeConfig(Settings):
    """An exchange."""

    name: str
    """Key of the exchange."""
    type: ExchangeType = "topic"
    """`direct`, `fanout`, `topic`, `headers`, or a type of a plug-in (`x-...`)."""
    assert_: bool = Field(default=True, validation_alias="assert")
    """Declare it."""
    check: bool = False
    """Fail unless it is there already."""
    options: ExchangeOptions = ExchangeOptions()
    """Options of the declaration."""


class QueueOptions(Settings):
    """What the broker is told when the queue is declared."""

    durable: bool = True
    """Survives a restart of the broker."""
    exclusive: bool = False
    """Belongs to this connection and goes with it."""
    auto_delete: bool = False
    """Deleted with its last consumer."""
    message_ttl: Duration | None = None
    """Messages older than this are dead-lettered or dropped (`x-message-ttl`)."""
    expires: Duration | None = None
    """The queue is deleted after this time without use (`x-expires`)."""
    dead_letter_exchange: str | None = None
    """Exchange for refused, expired and surplus messages (`x-dead-letter-exchange`)."""
    dead_letter_routing_key: str | None = None
    """Their routing key; their own when left out (`x-dead-letter-routing-key`)."""
    max_length: Count | None = None
    """Most ready messages the queue keeps (`x-max-length`)."""
    max_priority: Annotated[int, Field(ge=1, le=255)] | None = None
    """Highest priority the queue tells apart (`x-max-priority`)."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments, as the broker knows them; they win over the options above."""

    @property
    def all_arguments(self) -> Arguments:
        """The arguments to declare with; durations in whole milliseconds."""
        friendly = {
            "x-message-ttl": _milliseconds(self.message_ttl),
            "x-expires": _milliseconds(self.expires),
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-dead-letter-routing-key": self.dead_letter_routing_key,
            "x-max-length": self.max_length,
            "x-max-priority": self.max_priority,
        }
        return _merged(friendly, self.arguments)


class QueueConfig(Settings):
    """A queue."""

    name: str
    """Key of the queue."""
    assert_: bool = Field(default=True, validation_alias="assert")
    """Declare it."""
    check: bool = False
    """Fail unless it is there already."""
    purge: bool = False
    """Empty it when the broker starts (not at reconnects)."""
    options: QueueOptions = QueueOptions()
    """Options of the declaration."""


class BindingOptions(Settings):
    """What the broker is told when the binding is made."""

    arguments: Arguments = Field(default_factory=dict)
    """Arguments; a headers exchange matches on them."""


class BindingConfig(Settings):
    """A binding, or several that differ in their key. Short form: ``source[key] -> target``."""

    yaml_keys: ClassVar[tuple[str, ...]] = ("binding_key",)

    name: str
    """Key of the binding."""
    source: str
    """Exchange the messages come from."""
    destination: str
    """Queue or exchange they go to."""
    destination_type: Literal["queue", "exchange"] = "queue"
    """What `destination` names."""
    binding_keys: Annotated[tuple[str, ...], Field(min_length=1)] = ("#",)
    """One binding is made for each of these keys."""
    options: BindingOptions = BindingOptions()
    """Options of the binding."""


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _merged(friendly: Mapping[str, Any], arguments: Arguments) -> Arguments:
    return {key: value for key, value in friendly.items() if value is not None} | arguments
