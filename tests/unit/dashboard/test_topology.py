"""Routes and drawings from the data of a management API."""

from __future__ import annotations

from typing import Any

from broker_client.dashboard.topology import Topology, drawing_of


def an_exchange(name: str, type: str = "topic", **arguments: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "arguments": arguments}


def a_binding(source: str, to: str, key: str = "", kind: Any = "queue", **arguments: Any) -> Any:
    return {
        "source": source,
        "destination": to,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
    }


RED_OR_THREE: dict[str, Any] = {"x-match": "any", "color": "red", "size": 3}


def test_topic_exchange_routes_by_words() -> None:
    bindings = [a_binding("t", "a", "x.*"), a_binding("t", "b", "#"), a_binding("t", "c", "y")]
    routed = Topology([an_exchange("t")], bindings).route("t", "x.1")
    assert routed.queues == {"a": [("t", "x.*")], "b": [("t", "#")]}
    assert routed.alternate is None


def test_headers_exchange_routes_by_headers() -> None:
    binding = a_binding("h", "a", **RED_OR_THREE)
    topology = Topology([an_exchange("h", "headers")], [binding])
    assert topology.route("h", "", {"color": "red"}).queues == {"a": [("h", "")]}
    assert topology.route("h", "", {"color": "blue"}).queues == {}


def test_alternate_exchange_takes_what_nobody_takes() -> None:
    exchanges = [an_exchange("t", **{"alternate-exchange": "rest"}), an_exchange("rest", "fanout")]
    topology = Topology(exchanges, [a_binding("rest", "unrouted"), a_binding("t", "a", "x")])
    routed = topology.route("t", "y")
    assert routed.alternate == "rest"
    assert list(routed.queues) == ["unrouted"]
    assert topology.route("t", "x").alternate is None


def test_exchanges_in_a_circle_end() -> None:
    exchanges = [an_exchange("a", "fanout"), an_exchange("b", "fanout")]
    bindings = [
        a_binding("a", "b", kind="exchange"),
        a_binding("b", "a", kind="exchange"),
        a_binding("b", "q"),
    ]
    assert Topology(exchanges, bindings).route("a", "").queues == {"q": [("a", ""), ("b", "")]}


def test_default_exchange_leads_to_the_queue_of_that_name() -> None:
    topology = Topology([], [], ["q"])
    assert topology.route("", "q").queues == {"q": [("", "q")]}
    assert topology.route("", "r").queues == {}


def test_dead_letters_keep_their_keys_unless_one_is_set() -> None:
    bindings = [a_binding("dlx", "a", "x"), a_binding("dlx", "b", "y")]
    topology = Topology([an_exchange("dlx", "direct")], bindings)
    assert topology.dead_letter_queues("dlx", "x") == {"a"}
    assert topology.dead_letter_queues("dlx", None) == {"a", "b"}
    assert topology.dead_letter_queues("gone", None) == set()


def test_bad_bindings_and_types_of_plugins_break_nothing() -> None:
    exchanges = [an_exchange("h", "headers"), an_exchange("hash", "x-consistent-hash")]
    bindings = [
        a_binding("h", "a", **{"x-match": "some"}),
        a_binding("hash", "b", "1"),
        a_binding("unknown", "c"),
    ]
    topology = Topology(exchanges, bindings)
    assert topology.route("h", "").queues == {}
    assert list(topology.route("hash", "k").queues) == ["b"]


def test_drawing_marks_what_leads_nowhere() -> None:
    exchanges = [
        an_exchange("", "direct"),
        an_exchange("amq.topic"),
        an_exchange("events"),
        an_exchange("lost"),
    ]
    queues: list[dict[str, Any]] = [
        {"name": "orders", "messages_ready": 4, "consumers": 2},
        {"name": "dead", "type": "quorum"},
    ]
    topology = Topology(exchanges, [a_binding("events", "orders", "#")], ["orders", "dead"])
    drawn = drawing_of(topology, queues, {"orders": ("", "dead"), "dead": ("missing", None)})
    nodes = {each["id"]: each for each in drawn["nodes"]}
    assert set(nodes) == {
        "exchange:",
        "exchange:events",
        "exchange:lost",
        "exchange:missing",
        "queue:orders",
        "queue:dead",
        "consumer:orders",
    }
    assert nodes["exchange:lost"]["unrouted"] is True
    assert nodes["exchange:missing"]["missing"] is True
    assert nodes["queue:orders"]["ready"] == 4
    assert {(each["from"], each["to"], each["kind"]) for each in drawn["edges"]} == {
        ("exchange:events", "queue:orders", "binding"),
        ("queue:orders", "consumer:orders", "consumer"),
        ("queue:orders", "queue:dead", "dead_letter"),
        ("queue:dead", "exchange:missing", "dead_letter"),
    }
