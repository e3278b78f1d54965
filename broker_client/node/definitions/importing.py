"""Reads definitions, as RabbitMQ and this broker write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker_client.core.access import SHA256
from broker_client.core.access_pattern import AccessPattern
from broker_client.core.arguments import (
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
    check_encodable,
    check_new_queue,
    queue_settings,
)
from broker_client.core.commands.policies import limit_problems
from broker_client.core.exchange import DELAYED, TYPES, Destination, Exchange
from broker_client.core.names import name_problem
from broker_client.core.policies import ALL, Policy
from broker_client.core.queue import Queue
from broker_client.core.virtual_host import VirtualHost, check_short
from broker_client.errors import (
    InvalidDefinitionsError,
    ReplyError,
    UsageError,
)
from broker_client.node.definitions.exporting import OPERATOR_POLICY, RESERVED, VHOST_LIMITS
from broker_client.node.node import Node

T = TypeVar("T")

_ABOUT_THE_FILE = frozenset(
    (
        "explanation",
        "original_cluster_name",
        "original_vhost_name",
        "product_name",
        "product_version",
        "rabbit_version",
        "rabbitmq_definition_format",
        "rabbitmq_version",
    )
)
_SECTIONS = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)
_OF_A_VHOST = frozenset(("description", "metadata", "limits", "default_queue_type"))
"""What stands beside the sections in a file for one vhost."""
_WITHOUT_NOTE = frozenset(("internal_cluster_id", "cluster_name", "cluster_tags"))
"""Global parameters that name a cluster; an import has no use for them."""
_PLAIN = {"classic", "undefined", ""}


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import has done."""

    counts: Mapping[str, int]
    """How many of each section there were that are now there."""
    notes: tuple[str, ...]
    """What was left out, has no effect here, or was there already and is different."""


def import_definitions(node: Node, document: Any, vhost: str | None = None) -> ImportReport:
    """Add what `document` defines, and change what is there already and can be changed.

    Args:
        node: gets it.
        document: decoded JSON, as RabbitMQ exports it: of a whole broker, or of one vhost.
        vhost: where a file of one vhost goes; of one of a whole broker, only what belongs there is
            taken. The vhost is added where there is none.

    Raises:
        InvalidDefinitionsError: something in it cannot be; nothing is imported.
    """
    plan = _Plan(node, vhost)
    plan.read(document)
    if plan.problems:
        raise InvalidDefinitionsError(plan.problems)
    for step in plan.steps:
        step()
    node.wake()
    return ImportReport(plan.counts, tuple(dict.fromkeys(plan.notes)))


_REQUIRED: Any = object()


@dataclass(slots=True)
class _Item:
    """One object of a section, and where it stands."""

    path: str
    values: Mapping[str, Any]
    problems: list[str]
    known: set[str] = field(default_factory=set)
    is_right: bool = True

    def problem(self, key: str, why: str) -> None:
        self.problems.append(f"{self.path}.{key}: {why}" if key else f"{self.path}: {why}")
        self.is_right = False

    def get(self, key: str, type: type[T], default: Any = _REQUIRED) -> T:
        """The value of `key`; noted as a problem where it is missing or of another type."""
        self.known.add(key)
        value = self.values.get(key, default)
        if value is _REQUIRED:
            self.problem(key, f"is missing; it is {_WORDS[type]}")
        elif not isinstance(value, type) or (isinstance(value, bool) and type is not bool):
            self.problem(key, f"{value!r:.60} is not {_WORDS[type]}")
        else:
            return value
        return type()

    def others(self) -> Iterator[tuple[str, Any]]:
        """What nobody has asked for."""
        return ((key, value) for key, value in self.values.items() if key not in self.known)


_WORDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
    list: "a list",
}


class _Plan:
    """Reads definitions: collects problems and notes, and the steps that import them."""

    def __init__(self, node: Node, vhost: str | None) -> None:
        self._node, self._vhost = node, vhost
        self._goes_into: str | None = None
        """Where everything goes, from a file of one vhost."""
        self._version = node.engine.state.settings.compatibility
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.steps: list[Callable[[], object]] = []
        self.counts: dict[str, int] = {}
        self._vhosts = set(node.vhosts)
        self._users = {user.name for user in node.access.users}
        self._queues: set[tuple[str, str]] = set()
        self._exchanges: dict[tuple[str, str], str | None] = {}
        """By vhost and name: how each routes."""
        self._left_out: set[tuple[str, str, str]] = set()
        """Queues and exchanges that are not supported, by kind, vhost and name."""
        for name, each in node.engine.state.vhosts.items():
            self._queues |= {(name, queue) for queue in each.queues}
            self._exchanges |= {(name, key): x.kind for key, x in each.exchanges.items()}

    # ---------------------------------------------------------------- sections

    def read(self, document: Any) -> None:
        """Look through everything."""
        if not isinstance(document, dict):
            self.problems.append(f"definitions are an object, not {document!r:.60}")
            return
        known = _ABOUT_THE_FILE | set(_SECTIONS)
        is_of_one_vhost = "vhosts" not in document and self._vhost is not None
        self._goes_into = self._vhost if is_of_one_vhost else None
        if not set(_SECTIONS) & set(document):
            self.problems.append(f"there is none of the sections {', '.join(_SECTIONS)}")
        for key in document:
            if key not in known and not (is_of_one_vhost and key in _OF_A_VHOST):
                self.notes.append(f"{key}: not supported, left out")
        if self._vhost is not None:
            self._add_vhost(self._vhost, "vhost")
            if is_of_one_vhost:
                self._read_vhost_values(_Item("", document, self.problems), self._vhost)
        readers: Mapping[str, Callable[[_Item], bool]] = {
            "vhosts": self._read_vhost,
            "users": self._read_user,
            "permissions": self._read_permissions,
            "topic_permissions": self._read_topic_permissions,
            "parameters": self._read_parameter,
            "global_parameters": self._read_global_parameter,
            "policies": self._read_policy,
            "exchanges": self._read_exchange,
            "queues": self._read_queue,
            "bindings": self._read_binding,
        }
        for section in _SECTIONS:
            items = document.get(section, [])
            if not isinstance(items, list):
                self.problems.append(f"{section}: {items!r:.60} is not a list")
                continue
            for at, values in enumerate(items):
                path = f"{section}[{at}]"
                if not isinstance(values, dict):
                    self.problems.append(f"{path}: {values!r:.60} is not an object")
                    continue
                item = _Item(path, values, self.problems)
                if readers[section](item) and item.is_right:
                    self.counts[section] = self.counts.get(section, 0) + 1

    def _vhost_of(self, item: _Item) -> str | None:
        """The vhost that `item` belongs to; None where it is left out, or there is none."""
        item.known.add("vhost")
        if self._goes_into is not None:
            return self._goes_into  # whatever it says: RabbitMQ 3.10 names the old one here
        if "vhost" not in item.values:
            if self._vhost is None:
                item.problem("vhost", "is missing: say into which one it goes")
            return self._vhost
        name = item.get("vhost", str)
        if self._vhost is not None and name != self._vhost:
            return None
        if item.is_right and name not in self._vhosts:
            item.problem("vhost", f"there is no vhost {name!r}")
        return name

    def _without_effect(self, item: _Item, what: str) -> None:
        for key, value in item.others():
            if value not in (None, "", [], {}, False, "undefined"):
                self.notes.append(f"{what}: {key} is not supported, left out")

    # ---------------------------------------------------------------- vhosts, users

    def _add_vhost(self, name: str, path: str) -> None:
        try:
            check_short("vhost name", name)
        except ReplyError as error:
            self.problems.append(f"{path}: {_reason(error)}")
            return
        if not name:
            self.problems.append(f"{path}: a name is not empty")
        self._vhosts.add(name)
        self.steps.append(lambda: self._node.add_vhost(name))
        for predeclared, exchange in VirtualHost(name).exchanges.items():
            self._exchanges.setdefault((name, predeclared), exchange.kind)

    def _read_vhost(self, item: _Item) -> bool:
        name = item.get("name", str)
        if not item.is_right or (self._vhost is not None and name != self._vhost):
            return False
        self._add_vhost(name, f"{item.path}.name")
        self._read_vhost_values(item, name)
        item.known |= {"tracing", "tags", "description", "cluster_state"}
        self._without_effect(item, f"vhost {name!r}")
        return True

    def _read_vhost_values(self, item: _Item, name: str) -> None:
        limits = item.get("limits", dict, {}) if item.values.get("limits") else {}
        item.known.add("limits")
        if limits:
            self._set_limits(item, "limits", name, limits)
        metadata = item.get("metadata", dict, {})
        for values in (item.values, metadata):
            for key in ("description", "tags"):
                if values.get(key) not in (None, "", [], "Default virtual host"):
                    self.notes.append(f"vhost {name!r}: its {key} is not kept")
            if values.get("default_queue_type", "") not in _PLAIN:
                kind = values["default_queue_type"]
                self.notes.append(
                    f"vhost {name!r}: queues declared without a type are classic, not {kind}"
                )
        item.known |= {"default_queue_type", "description", "tags"}

    def _set_limits(self, item: _Item, key: str, vhost: str, limits: Mapping[str, Any]) -> None:
        for problem in limit_problems(limits):
            item.problem(key, problem)
        self.steps.append(lambda: self._node.set_vhost_limits(vhost, limits))

    def _read_user(self, item: _Item) -> bool:
        if self._vhost is not None:
            return False
        name = item.get("name", str)
        password_hash = item.get("password_hash", str, "")
        algorithm = item.get("hashing_algorithm", str, SHA256)
        password = item.get("password", str, "")
        tags = item.values.get("tags", [])
        item.known.add("tags")
        if isinstance(tags, str):
            tags = tags.split(",")  # before RabbitMQ 3.9
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            item.problem("tags", f"{tags!r:.60} is not a list of texts")
        try:
            self._node.access.users.check_user(name, password_hash, algorithm)
        except UsageError as error:
            item.problem("", str(error))
        self._users.add(name)
        self._without_effect(item, f"user {name!r}")
        access = self._node.access
        if password and not password_hash:
            self.steps.append(lambda: access.add_user(name, password, tags=tags))
        else:
            self.steps.append(lambda: access.import_user(name, password_hash, algorithm, tags))
        return True

    def _user_of(self, item: _Item) -> str:
        user = item.get("user", str)
        if item.is_right and user not in self._users:
            item.problem("user", f"there is no user {user!r}")
        return user

    def _patterns(self, item: _Item, *keys: str) -> dict[str, str]:
        patterns = {key: item.get(key, str) for key in keys}
        for key, pattern in patterns.items():
            try:
                AccessPattern(pattern).check()
            except UsageError as error:
                item.problem(key, str(error))
        return patterns

    def _read_permissions(self, item: _Item) -> bool:
        if self._vhost is not None:
            return False
        vhost, user = self._vhost_of(item), self._user_of(item)
        patterns = self._patterns(item, "configure", "write", "read")
        access = self._node.access
        if vhost is not None:
            self.steps.append(lambda: access.set_permissions(user, vhost, **patterns))
        return True

    def _read_topic_permissions(self, item: _Item) -> bool:
        if self._vhost is not None:
            return False
        vhost, user = self._vhost_of(item), self._user_of(item)
        exchange = item.get("exchange", str)
        if problem := name_problem(exchange):
            item.problem("exchange", problem)
        patterns = self._patterns(item, "write", "read")
        access = self._node.access
        if vhost is not None:
            self.steps.append(
                lambda: access.set_topic_permissions(user, vhost, exchange, **patterns)
            )
        return True

    # ---------------------------------------------------------------- parameters, policies

    def _read_global_parameter(self, item: _Item) -> bool:
        name = item.get("name", str)
        if name not in _WITHOUT_NOTE:
            self.notes.append(f"global parameter {name!r}: not supported, left out")
        return False

    def _read_parameter(self, item: _Item) -> bool:
        component, name = item.get("component", str), item.get("name", str)
        vhost = self._vhost_of(item)
        if vhost is None or not item.is_right:
            return False
        if component == OPERATOR_POLICY:
            value = _Item(f"{item.path}.value", item.get("value", dict), self.problems)
            return item.is_right and self._add_policy(value, vhost, name, is_operator=True)
        if component == VHOST_LIMITS:
            self._set_limits(item, "value", vhost, item.get("value", dict))
            return True
        self.notes.append(
            f"parameter {name!r} of {component} in vhost {vhost!r}: not supported, left out"
        )
        return False

    def _read_policy(self, item: _Item) -> bool:
        vhost = self._vhost_of(item)
        if vhost is None:
            return False
        return self._add_policy(item, vhost, item.get("name", str), is_operator=False)

    def _add_policy(self, item: _Item, vhost: str, name: str, *, is_operator: bool) -> bool:
        policy = Policy(
            vhost,
            name,
            item.get("pattern", str),
            item.get("definition", dict),
            item.get("priority", int, 0),
            item.get("apply-to", str, ALL),
            is_operator,
        )
        if not item.is_right:
            return False
        for problem in policy.problems():
            item.problem("", problem)
        what = f"{'operator ' if is_operator else ''}policy {name!r} in vhost {vhost!r}"
        for key in policy.without_effect:
            self.notes.append(f"{what}: {key} has no effect here")
        self.steps.append(lambda: self._node.engine.policies.set_policy(policy, self._node.now()))
        return True

    # ---------------------------------------------------------------- exchanges, queues, bindings

    def _arguments(self, item: _Item) -> dict[str, Any]:
        arguments: dict[str, Any] = item.get("arguments", dict, {})
        try:
            check_encodable(arguments)
        except ReplyError as error:
            item.problem("", _reason(error))
        return arguments

    def _read_exchange(self, item: _Item) -> bool:
        vhost = self._vhost_of(item)
        if vhost is None:
            return False
        name, kind = item.get("name", str), item.get("type", str)
        exchange = Exchange(
            name,
            "direct",
            durable=item.get("durable", bool, True),
            auto_delete=item.get("auto_delete", bool, False),
            internal=item.get("internal", bool, False),
            arguments=self._arguments(item),
        )
        what = f"exchange {name!r} in vhost {vhost!r}"
        if not item.is_right:
            return False
        if (vhost, name) in self._exchanges:
            self._note_difference(vhost, exchange, kind, what)
            return True
        if name.startswith(RESERVED) or kind not in (*TYPES, DELAYED):
            why = f"type {kind}" if kind not in (*TYPES, DELAYED) else "a reserved name"
            self.notes.append(f"{what}: {why} is not supported, left out")
            self._left_out.add(("exchange", vhost, name))
            return False
        try:
            exchange = Exchange(
                name,
                kind,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
            VirtualHost(vhost, version=self._version).declare_exchange(exchange)
        except ReplyError as error:
            item.problem("", _reason(error))
            return False
        for key in exchange.arguments:
            if key not in EXCHANGE_ARGUMENTS:
                self.notes.append(f"{what}: argument {key} has no effect here")
        self._exchanges[vhost, name] = exchange.kind
        state = self._node.engine.state
        self.steps.append(lambda: state.vhosts[vhost].declare_exchange(exchange))
        return True

    def _note_difference(self, vhost: str, wanted: Exchange, type: str, what: str) -> None:
        there = self._node.engine.state.vhosts.get(vhost)
        current = None if there is None else there.exchanges.get(wanted.name)
        if current is not None and (
            current.type,
            current.durable,
            current.auto_delete,
            current.internal,
            current.arguments,
        ) != (type, wanted.durable, wanted.auto_delete, wanted.internal, wanted.arguments):
            self.notes.append(f"{what}: there is a different one already, which stays as it is")

    def _read_queue(self, item: _Item) -> bool:
        vhost = self._vhost_of(item)
        if vhost is None:
            return False
        name = item.get("name", str)
        durable = item.get("durable", bool, True)
        auto_delete = item.get("auto_delete", bool, False)
        arguments = self._arguments(item)
        what = f"queue {name!r} in vhost {vhost!r}"
        if not item.is_right:
            return False
        if (vhost, name) in self._queues:
            there = self._node.engine.state.vhosts.get(vhost)
            current = None if there is None else there.queues.get(name)
            if current is not None and (
                current.durable,
                current.auto_delete,
                _typed(current.arguments),
            ) != (durable, auto_delete, _typed(arguments)):
                self.notes.append(f"{what}: there is a different one already, which stays as it is")
            return True
        if arguments.get("x-queue-type") not in (None, "classic", "quorum"):
            kind = arguments["x-queue-type"]
            self.notes.append(f"{what}: type {kind} is not supported, left out")
            self._left_out.add(("queue", vhost, name))
            return False
        try:
            check_short("queue name", name)
            settings = queue_settings(arguments, name, vhost, self._version)
            check_new_queue(arguments, name, vhost, self._version)
        except ReplyError as error:
            item.problem("", _reason(error))
            return False
        if not name:
            item.problem("name", "a name is not empty")
        for key in arguments:
            if key not in QUEUE_ARGUMENTS or key == "x-queue-mode":
                self.notes.append(f"{what}: argument {key} has no effect here")
        self._queues.add((vhost, name))
        self.steps.append(
            lambda: self._add_queue(
                Queue(
                    name,
                    vhost,
                    durable=durable,
                    owner=None,
                    auto_delete=auto_delete,
                    arguments=arguments,
                    settings=settings,
                    last_used=self._node.now(),
                )
            )
        )
        return True

    def _add_queue(self, queue: Queue) -> None:
        # A definition may name what only a server may: the queues that it has named itself.
        state = self._node.engine.state
        state.vhosts[queue.vhost].add_queue(queue, server_named=True)
        state.used(queue, self._node.now())

    def _read_binding(self, item: _Item) -> bool:
        vhost = self._vhost_of(item)
        if vhost is None:
            return False
        source, name = item.get("source", str), item.get("destination", str)
        kind = item.get("destination_type", str, "queue")
        key = item.get("routing_key", str, "")
        arguments = self._arguments(item)
        if kind not in ("queue", "exchange"):
            item.problem("destination_type", f"{kind!r} is neither queue nor exchange")
        if not item.is_right:
            return False
        ends = (("source", "exchange", source), ("destination", kind, name))
        lost = [f"{what} {n!r}" for _, what, n in ends if (what, vhost, n) in self._left_out]
        if lost:
            self.notes.append(
                f"binding from {source!r} to {name!r} in vhost {vhost!r}: left out with "
                f"{' and '.join(lost)}"
            )
            return False
        for end, what, n in ends:
            known = self._queues if what == "queue" else self._exchanges
            if (vhost, n) not in known:
                item.problem(end, f"there is no {what} {n!r} in vhost {vhost!r}")
        if item.is_right:
            try:
                scratch = VirtualHost(vhost, version=self._version)
                routes_by = self._exchanges[vhost, source] or "direct"
                if source:
                    scratch.exchanges[source] = Exchange(source, routes_by)
                scratch.exchanges["amq.fanout"] = Exchange("amq.fanout", "fanout")
                scratch.bind(Destination("exchange", "amq.fanout"), source, key, arguments)
            except ReplyError as error:
                item.problem("", _reason(error))
        destination = Destination(kind, name)
        state = self._node.engine.state
        self.steps.append(lambda: state.vhosts[vhost].bind(destination, source, key, arguments))
        return True


def _typed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a queue with its type, which RabbitMQ 4 writes into every export."""
    return {"x-queue-type": "classic", **arguments}


def _reason(error: ReplyError) -> str:
    return error.reply_text.partition(" - ")[2] or error.reply_text
