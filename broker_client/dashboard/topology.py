"""The topology of a vhost as its management API describes it: routes, and a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker_client.core.exchange import TYPES, Binding, Destination, Exchange, freeze
from broker_client.errors import ReplyError

Objects = Sequence[Mapping[str, Any]]


class Routed(NamedTuple):
    """Where a message goes."""

    queues: dict[str, list[tuple[str, str]]]
    """Each queue, with the exchanges and binding keys on the way to it."""
    alternate: str | None
    """The alternate exchange that took it, if one did."""


class Topology:
    """Exchanges and bindings of one vhost; routing is that of the built-in broker."""

    def __init__(self, exchanges: Objects, bindings: Objects, queues: Sequence[str] = ()) -> None:
        """
        Args:
            exchanges: the API's objects.
            bindings: the API's objects; those of the default exchange do not matter.
            queues: names of all queues.
        """
        self.queues: set[str] = set(queues)
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: list[Mapping[str, Any]] = [each for each in bindings if each["source"]]
        for each in exchanges:
            self.exchanges[each["name"]] = _exchange(each)
        for each in self.bindings:
            source = self.exchanges.get(each["source"])
            if source is None:
                continue
            if each["destination_type"] == "queue":
                self.queues.add(each["destination"])
            try:
                source.bind(_binding(each), _arguments(each))
            except ReplyError:
                continue  # an x-match that only a plugin knows

    def route(self, exchange: str, key: str, headers: Mapping[str, Any] | None = None) -> Routed:
        """Where a message with this key would go, as AMQP and RabbitMQ say."""
        found: dict[str, list[tuple[str, str]]] = {}
        used: str | None = None
        todo: list[tuple[str, list[tuple[str, str]]]] = [(exchange, [])]
        seen = {exchange}
        while todo:
            name, path = todo.pop(0)
            if name == "":
                if key in self.queues:
                    found.setdefault(key, [*path, ("", key)])
                continue
            current = self.exchanges.get(name)
            if current is None:
                continue
            leads_to = current.match([key], headers or {})
            if not leads_to and current.alternate is not None:
                used = current.alternate
                leads_to = [Destination("exchange", current.alternate)]
                steps = {leads_to[0]: [*path, (name, "(alternate)")]}
            else:
                steps = {
                    each: [*path, (name, self._matching_key(current, each, key, headers or {}))]
                    for each in leads_to
                }
            for destination in leads_to:
                if destination.kind == "queue":
                    found.setdefault(destination.name, steps[destination])
                elif destination.name not in seen:  # exchanges may be bound in a circle
                    seen.add(destination.name)
                    todo.append((destination.name, steps[destination]))
        return Routed(found, used)

    def _matching_key(
        self, exchange: Exchange, to: Destination, key: str, headers: Mapping[str, Any]
    ) -> str:
        """The key of the first binding to `to` that lets the message through."""
        for binding, arguments in exchange.bindings.items():
            if binding.destination == to:
                alone = Exchange(exchange.name, exchange.kind or "direct")
                alone.bind(binding, arguments)
                if alone.match([key], headers):
                    return binding.binding_key
        return ""

    def reachable(self, exchange: str) -> set[str]:
        """The queues that some message to `exchange` would reach."""
        found: set[str] = set()
        todo, seen = [exchange], {exchange}
        while todo:
            current = self.exchanges.get(todo.pop())
            if current is None:
                continue
            next_ones = [binding.destination for binding in current.bindings]
            if current.alternate is not None:
                next_ones.append(Destination("exchange", current.alternate))
            for kind, name in next_ones:
                if kind == "queue":
                    found.add(name)
                elif name not in seen:
                    seen.add(name)
                    todo.append(name)
        return found

    def dead_letter_queues(self, exchange: str, key: str | None) -> set[str]:
        """The queues that the dead letters of a queue reach; its name where it has none of its own
        is unknown, as each message keeps its key then."""
        if key is not None:
            return set(self.route(exchange, key).queues)
        return self.reachable(exchange)


def _exchange(described: Mapping[str, Any]) -> Exchange:
    kind = str(described.get("type", "direct"))
    arguments = dict(_arguments(described))
    if kind == "x-delayed-message":
        kind = str(arguments.get("x-delayed-type", "direct"))
    if kind not in TYPES:
        kind = "fanout"  # a plugin's type: routing is unknown, so every destination counts
    policy = described.get("effective_policy_definition") or {}
    made = Exchange(str(described["name"]), kind, arguments=arguments)
    if made.alternate is None and isinstance(policy, Mapping):
        made.alternate = policy.get("alternate-exchange")
    return made


def _binding(described: Mapping[str, Any]) -> Binding:
    to = Destination(str(described["destination_type"]), str(described["destination"]))
    key = str(described.get("routing_key", ""))
    return Binding(str(described["source"]), to, key, freeze(_arguments(described)))


def _arguments(described: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = described.get("arguments")
    return arguments if isinstance(arguments, Mapping) else {}


def drawing_of(
    topology: Topology, queues: Objects, dead: Mapping[str, tuple[str, str | None]]
) -> dict[str, list[dict[str, Any]]]:
    """Nodes and edges of a drawing. An exchange of the broker's own that nothing is bound to is
    left out; one of a user's to which nothing is bound is marked, as it drops what it gets.

    Args:
        topology: exchanges and bindings.
        queues: the API's objects.
        dead: queues with a dead-letter exchange, and the key that goes with it.
    """
    used = {str(each["source"]) for each in topology.bindings}
    used |= {
        str(each["destination"])
        for each in topology.bindings
        if each["destination_type"] == "exchange"
    }
    used |= {exchange for exchange, _ in dead.values()}
    used |= {each.alternate for each in topology.exchanges.values() if each.alternate}
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    for name, exchange in sorted(topology.exchanges.items()):
        is_own = not name or name.startswith("amq.")
        if is_own and name not in used:
            continue
        node: dict[str, Any] = {"id": f"exchange:{name}", "kind": "exchange", "name": name}
        node["type"] = exchange.type
        if name and not exchange.bindings and exchange.alternate is None:
            node["unrouted"] = True
        nodes.append(node)
        if exchange.alternate:
            edges.append(_edge(f"exchange:{name}", f"exchange:{exchange.alternate}", "alternate"))
    for each in queues:
        name, ready = str(each["name"]), each.get("messages_ready", 0)
        queue = {"id": f"queue:{name}", "kind": "queue", "name": name, "ready": ready}
        queue["type"], queue["consumers"] = each.get("type", "classic"), each.get("consumers", 0)
        nodes.append(queue)
        if queue["consumers"]:
            consumer = {"id": f"consumer:{name}", "kind": "consumer", "name": name}
            nodes.append({**consumer, "consumers": queue["consumers"]})
            edges.append(_edge(f"queue:{name}", f"consumer:{name}", "consumer"))
        if name in dead:
            exchange_name, key = dead[name]
            to = f"exchange:{exchange_name}"
            if exchange_name == "" and key is not None:
                to = f"queue:{key}"  # the default exchange leads to the queue of that name
            edges.append({**_edge(f"queue:{name}", to, "dead_letter"), "key": key})
    for binding in topology.bindings:
        source, to = str(binding["source"]), str(binding["destination"])
        edge = _edge(f"exchange:{source}", f"{binding['destination_type']}:{to}", "binding")
        edge["key"] = binding.get("routing_key", "")
        if binding.get("arguments"):
            edge["arguments"] = binding["arguments"]
        edges.append(edge)
    known = {node["id"] for node in nodes}
    missing = {edge["to"] for edge in edges} - known
    for each_id in sorted(missing):
        kind, _, name = each_id.partition(":")
        nodes.append({"id": each_id, "kind": kind, "name": name, "missing": True})
    return {"nodes": nodes, "edges": edges}


def _edge(source: str, to: str, kind: str) -> dict[str, Any]:
    return {"from": source, "to": to, "kind": kind}
