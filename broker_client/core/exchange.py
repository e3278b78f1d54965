"""Exchanges: their bindings, and where a message is routed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from broker_client.core.arguments import wire_type
from broker_client.core.policies import ALTERNATE_EXCHANGE, NO_POLICY, EffectivePolicy
from broker_client.core.replies import precondition_failed
from broker_client.core.settings import NEWEST, RabbitMQVersion
from broker_client.core.topic import TopicTrie

TYPES = ("direct", "fanout", "topic", "headers")
DELAYED = "x-delayed-message"
"""The type of RabbitMQ's delayed message plugin. Every exchange holds an `x-delay` here, so one of
this type is just what its argument `x-delayed-type` says."""

_X_MATCH = ("all", "any", "all-with-x", "any-with-x")


class Destination(NamedTuple):
    """Destination of a binding: a queue, or another exchange."""

    kind: str
    """`queue` or `exchange`."""
    name: str


class Binding(NamedTuple):
    """One binding; two that differ in any field are two."""

    source: str
    destination: Destination
    binding_key: str
    frozen_arguments: object
    """Hashable form of the arguments."""


def freeze(value: Any) -> Any:
    """A hashable stand-in for a field table value; equal for equal values."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, freeze(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return (type(value).__name__, repr(value))


class HeadersMatch:
    """The condition of one binding to a headers exchange."""

    __slots__ = ("_every", "_sent", "_wanted")

    def __init__(self, arguments: Mapping[str, Any], version: RabbitMQVersion = NEWEST) -> None:
        """
        Args:
            arguments: of the binding.
            version: the RabbitMQ that compares like this.

        Raises:
            ReplyError: 406 when x-match is none of the four words.
        """
        follows_4 = version >= (4, 0)
        self._sent = _sent_term if follows_4 else _term
        bound = _bound_term if follows_4 else _term
        mode = arguments.get("x-match", "all")
        if not isinstance(mode, str):
            raise precondition_failed(
                f"Invalid x-match field type {wire_type(mode)} (value {mode}); expected longstr"
            )
        if mode not in _X_MATCH:
            raise precondition_failed(
                f'Invalid x-match field value <<"{mode}">>; expected all, any, all-with-x, or '
                "any-with-x"
            )
        with_x = mode.endswith("-with-x")
        self._every = mode.startswith("all")
        self._wanted = [
            (key, None if value is None else bound(value))
            for key, value in arguments.items()
            if key != "x-match" and (with_x or not key.startswith("x-"))
        ]

    def matches(self, headers: Mapping[str, Any]) -> bool:
        """True when `headers` fit; a void value asks only for presence."""
        term = self._sent
        hits = (
            key in headers and (wanted is None or term(headers[key]) == wanted)
            for key, wanted in self._wanted
        )
        return all(hits) if self._every else any(hits)


def _bound_term(value: Any) -> object:
    """RabbitMQ 4: a number equals numbers of its own type only; a time in a binding is seconds."""
    match value:
        case bool():
            return _term(value)
        case float():
            return "float", repr(value)  # -0.0 is not 0.0
        case datetime():
            return "number", int(value.timestamp())
    return _term(value)


def _sent_term(value: Any) -> object:
    """RabbitMQ 4: as in a binding, but a time in a message equals nothing there."""
    return ("time", value) if isinstance(value, datetime) else _bound_term(value)


def _term(value: Any) -> object:
    """What RabbitMQ compares: the Erlang term of a field value.

    Text and bytes are both binaries; a time is a number, and numbers compare across their types.
    A decimal is its scale and digits, and equals no number. What is inside an array or a table
    has its type beside it, so that there 1 is not 1.0; and both are lists.
    """
    match value:
        case bool() | None:
            return "atom", value
        case int() | float():
            return "number", value
        case datetime():
            return "number", int(value.timestamp())
        case str():
            return "binary", value.encode("utf-8", "surrogatepass")
        case bytes():
            return "binary", value
        case Decimal():
            return "decimal", value.as_tuple()
        case Mapping():
            items = value.items()
            return "list", tuple((key, type(item), _term(item)) for key, item in items)
        case list() | tuple():
            return "list", tuple((type(item), _term(item)) for item in value)
    return "other", value


class Exchange:
    """One exchange of a vhost. Bindings are held by the vhost; this is the compiled form."""

    def __init__(
        self,
        name: str,
        type: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.name: str = name
        self.type: str = type
        self.durable: bool = durable
        self.auto_delete: bool = auto_delete
        self.internal: bool = internal
        self.arguments: dict[str, Any] = dict(arguments or {})
        self.alternate: str | None = self.arguments.get(ALTERNATE_EXCHANGE)
        self.policy: EffectivePolicy = NO_POLICY
        """Policy settings, in addition to its arguments."""
        self.kind: Any | str | None = (
            self.arguments.get("x-delayed-type") if type == DELAYED else type
        )
        """How it routes."""
        if type == DELAYED and self.kind not in TYPES:
            raise precondition_failed(
                "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            )
        self.bindings: dict[Binding, Mapping[str, Any]] = {}
        """With their arguments as they were given."""
        self._direct: dict[str, dict[Destination, int]] = {}
        self._topics: TopicTrie[Destination] = TopicTrie()
        self._headers: dict[Binding, HeadersMatch] = {}

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type} bindings={len(self.bindings)}>"

    def bind(
        self,
        binding: Binding,
        arguments: Mapping[str, Any],
        version: RabbitMQVersion = NEWEST,
    ) -> bool:
        """Add a binding; False when it was here already.

        Raises:
            ReplyError: 406 for a bad x-match.
        """
        if binding in self.bindings:
            return False
        if self.kind == "headers":
            self._headers[binding] = HeadersMatch(arguments, version)
        elif self.kind == "topic":
            self._topics.add(binding.binding_key, binding.destination)
        else:
            keyed = self._direct.setdefault(self._key(binding.binding_key), {})
            keyed[binding.destination] = keyed.get(binding.destination, 0) + 1
        self.bindings[binding] = dict(arguments)
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False when it was not here."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        if self.kind == "headers":
            del self._headers[binding]
        elif self.kind == "topic":
            self._topics.remove(binding.binding_key, binding.destination)
        else:
            key = self._key(binding.binding_key)
            keyed = self._direct[key]
            keyed[binding.destination] -= 1
            if not keyed[binding.destination]:
                del keyed[binding.destination]
            if not keyed:
                del self._direct[key]
        return True

    def match(self, routing_keys: Iterable[str], headers: Mapping[str, Any]) -> list[Destination]:
        """Where a message with these keys and headers goes, each destination once."""
        if self.kind == "headers":
            fitting = (
                b.destination for b, match in self._headers.items() if match.matches(headers)
            )
            return list(dict.fromkeys(fitting))
        found: dict[Destination, None] = {}
        for key in routing_keys:
            if self.kind == "topic":
                found.update(self._topics.match(key))
            else:
                found.update(dict.fromkeys(self._direct.get(self._key(key), ())))
        return list(found)

    def _key(self, routing_key: str) -> str:
        return "" if self.kind == "fanout" else routing_key
