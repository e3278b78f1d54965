"""One vhost: its exchanges, queues and bindings, and how a message is routed through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker_client.core.arguments import (
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
    Arguments,
    QueueSettings,
    alternate_exchange,
    check_arguments,
    check_flag,
    queue_settings,
)
from broker_client.core.exchange import TYPES, Binding, Destination, Exchange, freeze
from broker_client.core.names import name_problem
from broker_client.core.policies import ALTERNATE_EXCHANGE, Policies, with_policy
from broker_client.core.queue import Queue
from broker_client.core.records import (
    BindingAdded,
    BindingRemoved,
    ExchangeAdded,
    ExchangeRemoved,
    QueueAdded,
    QueuePaused,
    QueueRemoved,
    TopologyRecord,
    VHostLimitsSet,
    VHostMetadataSet,
)
from broker_client.core.replies import (
    access_refused,
    not_found,
    precondition_failed,
    resource_locked,
    unknown_exchange_type,
)
from broker_client.core.settings import NEWEST, RabbitMQVersion
from broker_client.core.vhost_metadata import VHostMetadata

NO_HEADERS: Mapping[str, Any] = {}

_PREDECLARED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
MAX_CONNECTIONS = "max-connections"
MAX_QUEUES = "max-queues"
_RESERVED = "amq."
_CACHED_ROUTES = 10_000  # routing keys are often unique (ids in them): the cache is bounded


Note = Callable[[TopologyRecord], None]


def _nowhere(record: TopologyRecord) -> None:
    """For a vhost that nothing is kept of."""


class VirtualHost:
    """Exchanges, queues and bindings under one name. An illegal command changes nothing."""

    __slots__ = (
        "_bindings_to",
        "_note",
        "_version",
        "exchanges",
        "limits",
        "metadata",
        "name",
        "policies",
        "queues",
        "routes",
    )

    def __init__(self, name: str, note: Note = _nowhere, version: RabbitMQVersion = NEWEST) -> None:
        """
        Args:
            name: of the vhost.
            note: takes records of what must be kept, if something is.
            version: the RabbitMQ whose ways it has.
        """
        self.name: str = name
        self._version = version
        self._note = note
        self.exchanges: dict[str, Exchange] = {
            n: Exchange(n, type) for n, type in _PREDECLARED.items()
        }
        self.queues: dict[str, Queue] = {}
        self.routes: dict[tuple[str, str], tuple[Queue, ...]] = {}
        """Where publishes to (exchange, routing key) go; emptied by any change of topology."""
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self.policies: Policies = Policies(name, note)
        self.limits: dict[str, int] = {}
        """`MAX_CONNECTIONS`, `MAX_QUEUES`: how many there may be; below 0 is no limit."""
        self.metadata: VHostMetadata = VHostMetadata()

    # ---------------------------------------------------------------- routing

    def route_publish(self, exchange: str, routing_key: str) -> tuple[Queue, ...] | None:
        """Queues for a publish without CC or headers that matter, remembered in `routes`.

        Returns None when the message's headers decide, so that nothing can be remembered.

        Raises:
            ReplyError: 404 for a missing exchange, 403 for an internal one.
        """
        self.check_publish(exchange)
        queues, decided_by_headers = self._resolve(exchange, (routing_key,), NO_HEADERS)
        if decided_by_headers:
            return None
        if len(self.routes) >= _CACHED_ROUTES:
            self.routes.clear()
        self.routes[exchange, routing_key] = queues
        return queues

    def check_publish(self, exchange: str) -> None:
        """Refuse what may not be published to.

        Raises:
            ReplyError: 404 for a missing exchange, 403 for an internal one.
        """
        if self.exchange(exchange).internal:
            raise access_refused(
                f"cannot publish to internal exchange '{exchange}' in vhost '{self.name}'"
            )

    def route(
        self, exchange: str, routing_keys: Iterable[str], headers: Mapping[str, Any]
    ) -> tuple[Queue, ...]:
        """Every queue the message reaches, each once; empty if the exchange is missing."""
        return self._resolve(exchange, tuple(routing_keys), headers)[0]

    def _resolve(
        self, exchange: str, routing_keys: tuple[str, ...], headers: Mapping[str, Any]
    ) -> tuple[tuple[Queue, ...], bool]:
        """The queues, and whether headers had a say."""
        found: dict[Queue, None] = {}
        by_headers = False
        todo = [exchange]
        seen = {exchange}
        while todo:
            current = self.exchanges.get(todo.pop())
            if current is None:
                continue  # a missing alternate or dead-letter exchange takes nothing
            by_headers = by_headers or current.kind == "headers"
            if current.name:
                leads_to = current.match(routing_keys, headers)
            else:
                leads_to = [Destination("queue", key) for key in routing_keys if key in self.queues]
            if not leads_to and current.alternate is not None:
                leads_to = [Destination("exchange", current.alternate)]
            for kind, name in leads_to:
                if kind == "queue":
                    found[self.queues[name]] = None
                elif name not in seen:  # exchanges may be bound in a circle
                    seen.add(name)
                    todo.append(name)
        return tuple(found), by_headers

    # ---------------------------------------------------------------- exchanges

    def exchange(self, name: str) -> Exchange:
        """Raises:
        ReplyError: 404 if it does not exist.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found("exchange", name, self.name)
        return exchange

    def check_exchange(self, name: str) -> None:
        """Refuse a passive declaration of what cannot be declared.

        Raises:
            ReplyError: 404 if it does not exist, 403 for the default exchange.
        """
        _check_not_default(name)
        self.exchange(name)

    def declare_exchange(self, wanted: Exchange) -> None:
        """Add `wanted`, or check that the one of its name is like it.

        Raises:
            ReplyError: 403 for a reserved name, 406 for an unknown type or a difference.
        """
        name = wanted.name
        _check_not_default(name)
        if wanted.kind not in TYPES:
            raise unknown_exchange_type(wanted.type, self._version)
        alternate_exchange(wanted.arguments, name, self.name)
        current = self.exchanges.get(name)
        if current is not None:
            for flag in ("type", "durable", "auto_delete", "internal"):
                received, is_now = getattr(wanted, flag), getattr(current, flag)
                check_flag("exchange", name, self.name, flag, received, is_now)
            where = f"exchange '{name}' in vhost '{self.name}'"
            check_arguments(where, EXCHANGE_ARGUMENTS, wanted.arguments, current.arguments)
            return
        _check_name("exchange", name)
        self.exchanges[name] = wanted
        self.apply_policy(wanted)
        self.routes.clear()
        if wanted.durable:
            self._note(
                ExchangeAdded(
                    self.name,
                    name,
                    wanted.type,
                    wanted.auto_delete,
                    wanted.internal,
                    wanted.arguments,
                )
            )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete; no error when there is none (RabbitMQ).

        Raises:
            ReplyError: 403 for a predeclared exchange, 406 when in use and `if_unused`.
        """
        _check_not_default(name)
        if name.startswith(_RESERVED):
            raise access_refused(
                f"deletion of system exchange '{name}' in vhost '{self.name}' not allowed"
            )
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise precondition_failed(f"exchange '{name}' in vhost '{self.name}' in use")
        self._drop_exchange(exchange)

    def _drop_exchange(self, exchange: Exchange) -> None:
        for binding in list(exchange.bindings):
            self._forget(binding)
        del self.exchanges[exchange.name]
        self.routes.clear()
        if exchange.durable:
            self._note(ExchangeRemoved(self.name, exchange.name))
        self._drop_bindings_to(Destination("exchange", exchange.name))

    # ---------------------------------------------------------------- queues

    def queue(self, name: str, connection: int) -> Queue:
        """The queue as `connection` may use it.

        Raises:
            ReplyError: 404 if it does not exist, 405 when it is another connection's.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise not_found("queue", name, self.name)
        if queue.owner is not None and queue.owner != connection:
            raise resource_locked(name, self.name)
        return queue

    def check_same_queue(
        self,
        queue: Queue,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
    ) -> None:
        """Refuse a redeclaration that differs.

        Raises:
            ReplyError: 405 where `exclusive` differs (RabbitMQ), else 406.
        """
        if exclusive != (queue.owner is not None):
            raise resource_locked(queue.name, self.name)
        check_flag("queue", queue.name, self.name, "durable", durable, queue.durable)
        check_flag("queue", queue.name, self.name, "auto_delete", auto_delete, queue.auto_delete)
        where = f"queue '{queue.name}' in vhost '{self.name}'"
        check_arguments(where, QUEUE_ARGUMENTS, arguments, queue.arguments)

    def add_queue(self, queue: Queue, *, server_named: bool = False) -> None:
        """Add a queue that is not here yet.

        Raises:
            ReplyError: 403 for a reserved name.
        """
        if not server_named:
            _check_name("queue", queue.name)
        self.queues[queue.name] = queue
        queue.policy = self.policies.of_queue(queue.name, queue.type)
        if queue.policy.definition:
            queue.configure(self.settings_of(queue))
        self.routes.clear()
        if queue.kept:
            self._note(QueueAdded(self.name, queue.name, queue.auto_delete, queue.arguments))

    def check_room_for_queue(self, name: str) -> None:
        """Refuse a queue above the limit of the vhost.

        Raises:
            ReplyError: 406.
        """
        most = self.limits.get(MAX_QUEUES, -1)
        if 0 <= most <= len(self.queues):
            raise precondition_failed(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({most}) is "
                "reached"
            )

    def remove_queue(self, queue: Queue) -> None:
        """Take the queue and its bindings out."""
        del self.queues[queue.name]
        self.routes.clear()
        if queue.kept:
            self._note(QueueRemoved(self.name, queue.name))
        self._drop_bindings_to(Destination("queue", queue.name))

    def remove_queues(self) -> list[Queue]:
        """Take all queues out, before the vhost itself goes, and all bindings with it.

        That the vhost is removed is all that a store is told.
        """
        queues = list(self.queues.values())
        self.queues.clear()
        return queues

    def set_paused(self, queue: Queue, paused: bool) -> None:
        """Pause the queue, or resume it; a store keeps the state."""
        if paused == queue.paused:
            return
        if paused:
            queue.pause()
        else:
            queue.resume()
        if queue.kept:
            self._note(QueuePaused(self.name, queue.name, paused))

    # ---------------------------------------------------------------- policies, limits, metadata

    def settings_of(self, queue: Queue) -> QueueSettings:
        """The settings from the arguments of `queue` and its policy."""
        arguments = with_policy(queue.arguments, queue.policy.definition, queue.type, self._version)
        return queue_settings(arguments, queue.name, self.name, self._version)

    def apply_policy(self, exchange: Exchange) -> None:
        """Apply the matching policies to `exchange`."""
        if exchange.name:  # RabbitMQ: the default exchange has no alternate
            exchange.policy = self.policies.of_exchange(exchange.name)
            exchange.alternate = exchange.arguments.get(
                ALTERNATE_EXCHANGE, exchange.policy.definition.get(ALTERNATE_EXCHANGE)
            )
            self.routes.clear()

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Replace the limits."""
        self.limits = dict(limits)
        self._note(VHostLimitsSet(self.name, self.limits))

    def set_metadata(self, metadata: VHostMetadata) -> None:
        """Replace the metadata; the queues that are there keep their types.

        Raises:
            InvalidVHostError: it cannot be as given; nothing is changed.
        """
        metadata.check(self.name)
        if metadata != self.metadata:
            self.metadata = metadata
            self._note(VHostMetadataSet(self.name, metadata))

    # ---------------------------------------------------------------- bindings

    def bind(
        self, destination: Destination, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Bind; no error when it is bound already.

        Raises:
            ReplyError: 403 for the default exchange, 404 for a missing end, 406 for a bad x-match.
        """
        check_binding(source, destination, binding_key)
        exchange = self.exchange(source)
        if destination.kind == "exchange":
            self.exchange(destination.name)
        binding = Binding(source, destination, binding_key, freeze(arguments))
        if exchange.bind(binding, arguments, self._version):
            self._bindings_to.setdefault(destination, {})[binding] = None
            self.routes.clear()
            if self._is_kept(binding):
                self._note(BindingAdded(self.name, source, *destination, binding_key, arguments))

    def unbind(
        self, destination: Destination, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Unbind; no error when there is no such binding, exchange or queue (RabbitMQ).

        Raises:
            ReplyError: 403 for the default exchange.
        """
        _check_not_default(source)
        binding = Binding(source, destination, binding_key, freeze(arguments))
        # Recorded one by one only here: when an end is deleted, the store drops its bindings.
        exchange = self.exchanges.get(source)
        if exchange is not None and binding in exchange.bindings and self._is_kept(binding):
            self._note(BindingRemoved(self.name, source, *destination, binding_key, arguments))
        self._drop_binding(binding)

    def _drop_bindings_to(self, destination: Destination) -> None:
        for binding in list(self._bindings_to.get(destination, ())):
            self._drop_binding(binding)

    def _drop_binding(self, binding: Binding) -> None:
        if not self._forget(binding):
            return
        self.routes.clear()
        exchange = self.exchanges[binding.source]
        if exchange.auto_delete and not exchange.bindings:
            self._drop_exchange(exchange)  # with the last binding from it

    def _forget(self, binding: Binding) -> bool:
        exchange = self.exchanges.get(binding.source)
        if exchange is None or not exchange.unbind(binding):
            return False
        leading_here = self._bindings_to[binding.destination]
        del leading_here[binding]
        if not leading_here:
            del self._bindings_to[binding.destination]
        return True

    def _is_kept(self, binding: Binding) -> bool:
        kind, name = binding.destination
        kept = self.queues[name].kept if kind == "queue" else self.exchanges[name].durable
        return kept and self.exchanges[binding.source].durable


def check_binding(source: str, destination: Destination, binding_key: str) -> None:
    """Refuse an invalid binding.

    Raises:
        ReplyError: 403 for the default exchange, 406 for a key that cannot travel.
    """
    _check_not_default(source)
    if destination.kind == "exchange":
        _check_not_default(destination.name)
    check_short("binding key", binding_key)


def _check_not_default(exchange: str) -> None:
    if not exchange:
        raise access_refused("operation not permitted on the default exchange")


def _check_name(kind: str, name: str) -> None:
    if name.startswith(_RESERVED):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    check_short(f"{kind} name", name)


def check_short(what: str, text: str) -> None:
    """Refuse names that AMQP cannot carry and a file cannot store."""
    if problem := name_problem(text):
        raise precondition_failed(f"{what} {problem}")
