"""Models of exchanges, queues and bindings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import uuid4

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from broker_client.config.problems import hint
from broker_client.config.values import Count, Duration, Settings

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


def _made_up(value: object) -> object:
    """true stands for a name nobody else has."""
    if value is True:
        return str(uuid4())
    return None if value is False or value == "" else value


MadeUp = Annotated[
    str | None,
    BeforeValidator(_made_up),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, mode="validation"),
]
"""A text; or true for a fresh UUID, false for nothing."""


def qualified(namespace: str | None, name: str) -> str:
    """`name` within `namespace`; the default exchange, "", is in none (as in rascal)."""
    return f"{namespace}:{name}" if namespace and name else name


class Named(Settings):
    """Base of what has one name in the file and, in a namespace, another on the broker."""

    name: str
    _namespace: str | None = PrivateAttr(default=None)

    def within(self, namespace: str | None) -> Self:
        """A copy that knows its namespace; for `VhostConfig`."""
        copy = self.model_copy()
        copy._namespace = namespace  # noqa: SLF001 - of its own class
        return copy


class ExchangeOptions(Settings):
    """Options of the declaration of an exchange."""

    durable: bool = True
    """Survives a restart of the broker."""
    auto_delete: bool = False
    """Deleted with its last binding."""
    internal: bool = False
    """Accepts messages from other exchanges only."""
    alternate_exchange: str | None = None
    """Exchange that receives the messages this one cannot route."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments by their names on the broker; they take precedence over the options
    above."""

    @property
    def all_arguments(self) -> Arguments:
        """The arguments to declare with."""
        return _merged({"alternate-exchange": self.alternate_exchange}, self.arguments)


class ExchangeConfig(Named):
    """An exchange."""

    name: str
    """Key of the exchange."""
    type: ExchangeType = "topic"
    """`direct`, `fanout`, `topic`, `headers`, or a type of a plug-in (`x-...`)."""
    assert_: bool = Field(default=True, validation_alias="assert")
    """Declare it."""
    check: bool = False
    """Fail unless it already exists."""
    options: ExchangeOptions = Field(default_factory=ExchangeOptions.model_construct)
    """Options of the declaration."""

    @property
    def qualified_name(self) -> str:
        """Its name on the broker."""
        return qualified(self._namespace, self.name)

    @property
    def arguments(self) -> Arguments:
        """The arguments to declare with; the alternate exchange by its name on the broker."""
        return _within(self._namespace, self.options.all_arguments, "alternate-exchange")


class QueueOptions(Settings):
    """Options of the declaration of a queue."""

    durable: bool = True
    """Survives a restart of the broker."""
    exclusive: bool = False
    """Belongs to this connection and is deleted with it."""
    auto_delete: bool = False
    """Deleted with its last consumer."""
    message_ttl: Duration | None = None
    """Messages older than this are dead-lettered or dropped (`x-message-ttl`)."""
    expires: Duration | None = None
    """The queue is deleted after this time without use (`x-expires`)."""
    dead_letter_exchange: str | None = None
    """Exchange for refused, expired and surplus messages (`x-dead-letter-exchange`)."""
    dead_letter_routing_key: str | None = None
    """Routing key of dead letters; their own when left out (`x-dead-letter-routing-key`)."""
    max_length: Count | None = None
    """Maximum number of ready messages (`x-max-length`)."""
    max_priority: Annotated[int, Field(ge=1, le=255)] | None = None
    """Highest priority of the queue (`x-max-priority`)."""
    arguments: Arguments = Field(default_factory=dict)
    """Further arguments by their names on the broker; they take precedence over the options
    above."""

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


class QueueConfig(Named):
    """A queue."""

    name: str
    """Key of the queue."""
    assert_: bool = Field(default=True, validation_alias="assert")
    """Declare it."""
    check: bool = False
    """Fail unless it already exists."""
    purge: bool = False
    """Empty it when the broker starts (not at reconnects)."""
    reply_to: MadeUp = None
    """Suffix of the name on the broker, so that each process has its own queue for answers: a
    text, or true for a new UUID. See `reply_to` of publications."""
    options: QueueOptions = Field(default_factory=QueueOptions.model_construct)
    """Options of the declaration."""

    @property
    def qualified_name(self) -> str:
        """Its name on the broker (as in rascal)."""
        name = qualified(self._namespace, self.name)
        return f"{name}:{self.reply_to}" if self.reply_to else name

    @property
    def arguments(self) -> Arguments:
        """The arguments to declare with; the dead-letter exchange by its name on the broker."""
        return _within(self._namespace, self.options.all_arguments, "x-dead-letter-exchange")

    @property
    def kind(self) -> str:
        """``classic``, ``quorum``, ``stream``, or what the broker makes of `x-queue-type`."""
        return str(self.options.arguments.get("x-queue-type", "classic"))


class BindingOptions(Settings):
    """Options of a binding."""

    arguments: Arguments = Field(default_factory=dict)
    """Arguments; a headers exchange matches on them."""


class BindingConfig(Named):
    """A binding, or several that differ in their key.

    The short form is `source -> destination`, or `source[key1, key2] -> destination`. It stands in
    a list, as a value, or as a key whose mapping completes it (`"orders[order.#] -> audit":
    {destination_type: exchange}`). Names may hold anything but white space and square brackets;
    there is one destination. Keys given as `binding_key`, as `binding_keys` and in the short form
    are joined.
    """

    yaml_keys: ClassVar[tuple[str, ...]] = ("binding_key",)

    name: str
    """Key of the binding."""
    source: str
    """Exchange the messages come from."""
    destination: str
    """Queue or exchange they go to."""
    destination_type: Literal["queue", "exchange"] = "queue"
    """Kind of `destination`."""
    binding_keys: Annotated[tuple[str, ...], Field(min_length=1)] = ("#",)
    """Binding keys; each makes a binding."""
    qualify_binding_keys: bool = False
    """Prefix binding keys with the namespace too, except for a key that was left out."""
    options: BindingOptions = Field(default_factory=BindingOptions.model_construct)
    """Options of the binding."""

    _destination: str | None = PrivateAttr(default=None)

    def towards(self, destination: str | None) -> Self:
        """A copy that knows the name of its destination on the broker; for `VhostConfig`."""
        copy = self.model_copy()
        copy._destination = destination  # noqa: SLF001 - of its own class
        return copy

    @property
    def qualified_source(self) -> str:
        """Name of the source on the broker."""
        return qualified(self._namespace, self.source)

    @property
    def qualified_destination(self) -> str:
        """Name of the destination on the broker."""
        if self._destination is not None:
            return self._destination
        return qualified(self._namespace, self.destination)

    @property
    def qualified_keys(self) -> tuple[str, ...]:
        """The keys to bind with. A key left out stays ``#`` (rascal prefixes it)."""
        if not self.qualify_binding_keys or "binding_keys" not in self.model_fields_set:
            return self.binding_keys
        return tuple(qualified(self._namespace, key) for key in self.binding_keys)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _within(namespace: str | None, arguments: Arguments, key: str) -> Arguments:
    if key not in arguments:
        return arguments
    return arguments | {key: qualified(namespace, str(arguments[key]))}


def _merged(friendly: Mapping[str, Any], arguments: Arguments) -> Arguments:
    return {key: value for key, value in friendly.items() if value is not None} | arguments
