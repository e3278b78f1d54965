"""Names on the broker: namespaces, reply queues, and what refers to them (rascal 1.2, 1.4)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker_client.config import BrokerConfig, PublicationConfig, QueueConfig, VhostConfig
from broker_client.config.loader import load_config

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


def a_config(vhost: dict[str, Any], **root: Any) -> BrokerConfig:
    return load_config({"vhosts": {"/": vhost}, **root})


def a_vhost(**settings: Any) -> VhostConfig:
    return a_config(settings).vhosts["/"]


def test_namespace_stands_in_front_of_exchanges_and_queues() -> None:
    vhost = a_vhost(namespace="ns", exchanges=["e"], queues=["q"])
    assert vhost.exchanges["e"].qualified_name == vhost.exchange_name("e") == "ns:e"
    assert vhost.queues["q"].qualified_name == vhost.queue_name("q") == "ns:q"


def test_default_exchange_is_in_no_namespace() -> None:
    vhost = a_vhost(namespace="ns")
    assert vhost.exchanges[""].qualified_name == vhost.exchange_name("") == ""


@pytest.mark.parametrize("namespace", [None, False, ""])
def test_without_namespace_names_are_as_written(namespace: object) -> None:
    vhost = a_vhost(namespace=namespace, exchanges=["e"], queues=["q"], bindings=["e -> q"])
    assert vhost.exchanges["e"].qualified_name == "e"
    assert vhost.queues["q"].qualified_name == "q"
    assert vhost.bindings[0].qualified_source == "e"


def test_namespace_true_is_a_fresh_uuid_each_load() -> None:
    names = {a_vhost(namespace=True, queues=["q"]).queues["q"].qualified_name for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(rf"{UUID}:q", name) for name in names)


def test_profile_test_has_a_namespace() -> None:
    config = a_config({"queues": ["q"]}, profile="test")
    assert re.fullmatch(rf"{UUID}:q", config.vhosts["/"].queues["q"].qualified_name)


@pytest.mark.parametrize(
    "options",
    [{"dead_letter_exchange": "e"}, {"arguments": {"x-dead-letter-exchange": "e"}}],
)
def test_dead_letter_exchange_is_named_with_its_namespace(options: dict[str, Any]) -> None:
    options = {**options, "dead_letter_routing_key": "k"}
    queue = a_vhost(namespace="ns", exchanges=["e"], queues={"q": {"options": options}}).queues["q"]
    assert queue.arguments == {"x-dead-letter-exchange": "ns:e", "x-dead-letter-routing-key": "k"}


@pytest.mark.parametrize(
    "options", [{"alternate_exchange": "f"}, {"arguments": {"alternate-exchange": "f"}}]
)
def test_alternate_exchange_is_named_with_its_namespace(options: dict[str, Any]) -> None:
    vhost = a_vhost(namespace="ns", exchanges={"f": None, "e": {"options": options}})
    assert vhost.exchanges["e"].arguments == {"alternate-exchange": "ns:f"}


def test_dead_letters_to_the_default_exchange_stay_there() -> None:
    options = {"dead_letter_exchange": "", "dead_letter_routing_key": "k"}
    queue = a_vhost(namespace="ns", queues={"q": {"options": options}}).queues["q"]
    assert queue.arguments["x-dead-letter-exchange"] == ""


# --------------------------------------------------------------------------- bindings


def test_binding_leads_to_names_on_the_broker() -> None:
    long = {"source": "e", "destination": "f", "destination_type": "exchange"}
    first, second = a_vhost(
        namespace="ns",
        exchanges=["e", "f"],
        queues={"f": {"reply_to": "me"}},
        bindings=["e[k] -> f", long],
    ).bindings
    assert (first.qualified_source, first.qualified_destination) == ("ns:e", "ns:f:me")
    assert (second.qualified_source, second.qualified_destination) == ("ns:e", "ns:f")
    assert first.qualified_keys == ("k",)


@pytest.mark.parametrize(
    ("binding", "keys"),
    [
        ({"binding_keys": ["a", "b"]}, ("ns:a", "ns:b")),
        ({"binding_key": "#"}, ("ns:#",)),
        ({}, ("#",)),  # a key left out stays
    ],
)
def test_keys_are_qualified_when_asked_unless_left_out(
    binding: dict[str, Any], keys: tuple[str, ...]
) -> None:
    (found,) = a_vhost(
        namespace="ns",
        exchanges=["e"],
        queues=["q"],
        bindings=[{"source": "e", "destination": "q", "qualify_binding_keys": True, **binding}],
    ).bindings
    assert found.qualified_keys == keys


# --------------------------------------------------------------------------- reply queues


def test_reply_queue_has_a_suffix() -> None:
    queues = a_vhost(
        namespace="ns", queues={"q1": {"reply_to": "me"}, "q2": {"reply_to": True}, "q3": {}}
    ).queues
    assert queues["q1"].qualified_name == "ns:q1:me"
    assert re.fullmatch(f"ns:q2:{UUID}", queues["q2"].qualified_name)
    assert queues["q3"].qualified_name == "ns:q3"


def test_publication_tells_its_reply_queue_by_its_name_on_the_broker() -> None:
    config = a_config(
        {
            "namespace": "ns",
            "queues": {"q": None, "answers": {"reply_to": "me"}},
            "publications": {
                "ask": {"queue": "q", "reply_to": "answers"},
                "elsewhere": {
                    "queue": "q",
                    "reply_to": "answers",
                    "options": {"reply_to": "theirs"},
                },
                "tell": {"queue": "q"},
            },
        }
    )
    found = [config.reply_queue_of(each) for each in config.publications.values()]
    assert found == ["ns:answers:me", "theirs", None]


# --------------------------------------------------------------------------- who publishes where


def test_targets_and_sources_are_names_on_the_broker() -> None:
    config = a_config(
        {
            "namespace": "ns",
            "exchanges": ["e"],
            "queues": {"q": {"reply_to": "me"}},
            "publications": {
                "to_e": {"exchange": "e", "routing_key": "k"},
                "to_default": {"exchange": "", "routing_key": "somewhere"},
                "to_q": {"queue": "q"},
            },
            "subscriptions": {"s": {"queue": "q"}},
        }
    )
    assert {name: config.target_of(each) for name, each in config.publications.items()} == {
        "to_e": ("ns:e", "k"),
        "to_default": ("", "somewhere"),
        "to_q": ("", "ns:q:me"),
    }
    assert config.source_of(config.subscriptions["s"]) == "ns:q:me"
    assert config.qualify("/", "q") == "ns:q:me"
    assert config.qualify("/", "e") == "ns:e"
    assert config.qualify("/", "of nobody") == "ns:of nobody"


def test_implied_subscriptions_are_one_for_each_queue_that_has_none_of_its_name() -> None:
    config = load_config(
        {
            "vhosts": {
                "/": {"queues": ["a", "b"], "subscriptions": {"/a": {"queue": "b"}}},
                "v": {"queues": ["a"]},
            }
        }
    )
    found = [(each.name, each.vhost, each.queue) for each in config.implied_subscriptions()]
    assert found == [("/b", "/", "b"), ("v/a", "v", "a")]


def test_names_hold_after_a_round_trip_through_plain_data() -> None:
    config = a_config(
        {
            "namespace": True,
            "exchanges": ["e"],
            "queues": {"q": {"reply_to": True}},
            "bindings": ["e -> q"],
        }
    )
    again = BrokerConfig.model_validate(config.model_dump())
    first, second = config.vhosts["/"], again.vhosts["/"]
    assert first.queues == second.queues
    assert first.bindings[0].qualified_destination == second.bindings[0].qualified_destination


def test_models_made_in_python_are_named_alike() -> None:
    vhost = VhostConfig(
        name="/", namespace="ns", queues={"q": QueueConfig(name="q", reply_to="me")}
    )
    config = BrokerConfig(vhosts={"/": vhost})
    assert config.target_of(PublicationConfig(name="p", queue="q")) == ("", "ns:q:me")
    assert QueueConfig(name="q").qualified_name == "q"
