"""Value, then the vhost's defaults, then the root's, then the profile's, then built-in."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.config import (
    BrokerConfig,
    VhostConfig,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError


def a_config(vhost: dict[str, Any], **root: Any) -> BrokerConfig:
    return load_config({"vhosts": {"/": vhost}, **root})


def a_vhost(vhost: dict[str, Any], **root: Any) -> VhostConfig:
    return a_config(vhost, **root).vhosts["/"]


@pytest.mark.parametrize(
    ("value", "of_vhost", "of_root", "ttl"),
    [
        ("1s", "2s", "3s", 1.0),
        (None, "2s", "3s", 2.0),
        (None, None, "3s", 3.0),
        (None, None, None, None),
    ],
)
def test_nearest_layer_wins(
    value: str | None, of_vhost: str | None, of_root: str | None, ttl: float | None
) -> None:
    def options(text: str | None) -> dict[str, Any]:
        return {"options": {"message_ttl": text}} if text else {}

    found = a_vhost(
        {"queues": {"q": options(value)}, "defaults": {"queues": options(of_vhost)}},
        defaults={"queues": options(of_root)},
    )
    assert found.queues["q"].options.message_ttl == ttl


def test_sections_are_merged_and_lists_are_replaced() -> None:
    found = a_vhost(
        {
            "exchanges": ["e"],
            "queues": {"q": {"options": {"arguments": {"x-a": 1, "x-b": [1]}}}},
            "bindings": ["e[mine] -> q", "e -> q"],
        },
        defaults={
            "queues": {"purge": True, "options": {"arguments": {"x-b": [2, 3], "x-c": 2}}},
            "bindings": {"binding_key": "theirs"},
        },
    )
    assert found.queues["q"].purge is True
    assert found.queues["q"].options.arguments == {"x-a": 1, "x-b": [1], "x-c": 2}
    assert [each.binding_keys for each in found.bindings] == [("mine",), ("theirs",)]


def test_falsy_value_wins_over_a_default() -> None:
    found = a_config(
        {"queues": ["q"], "subscriptions": {"s": {"queue": "q", "prefetch": 0}}},
        defaults={"subscriptions": {"prefetch": 50}},
    )
    assert found.subscriptions["s"].prefetch == 0


@pytest.mark.parametrize(
    ("vhost", "root", "longest"),
    [
        ({"connection": {"hostname": "h", "retry": {"max": "5s"}}}, {}, 5.0),
        ({"connection": "amqp://h", "defaults": {"connection": {"retry": {"max": "6s"}}}}, {}, 6.0),
        ({"connection": "amqp://h"}, {"vhosts": {"connection": {"retry": {"max": "7s"}}}}, 7.0),
    ],
)
def test_retry_of_a_connection_is_honoured_at_all_three_levels(
    vhost: dict[str, Any], root: dict[str, Any], longest: float
) -> None:
    (connection,) = a_vhost(vhost, defaults=root).connections
    assert connection.hostname == "h"
    assert connection.retry.max == longest


def test_retry_false_wins_over_a_default_section() -> None:
    (connection,) = a_vhost(
        {"connection": {"retry": False}},
        defaults={"vhosts": {"connection": {"retry": {"max": "5s"}}}},
    ).connections
    assert connection.retry.enabled is False


def test_default_address_serves_only_vhosts_without_one() -> None:
    config = load_config(
        {
            "vhosts": {"a": {}, "b": {"connection": "amqp://own"}, "c": {"connections": [{}]}},
            "defaults": {"vhosts": {"connection": {"url": "amqp://shared", "heartbeat": "3s"}}},
        }
    )
    found = {name: vhost.connections[0] for name, vhost in config.vhosts.items()}
    assert {name: each.hostname for name, each in found.items()} == {
        "a": "shared",
        "b": "own",
        "c": "shared",
    }
    assert {each.heartbeat for each in found.values()} == {3}
    assert found["a"].vhost == "a"


def test_other_vhost_settings_are_filled_from_the_root() -> None:
    found = a_vhost(
        {"publish_queue": {"batch": 7}},
        defaults={"vhosts": {"concurrency": 4, "publish_queue": {"max_queued": 9, "batch": 1}}},
    )
    assert found.concurrency == 4
    assert (found.publish_queue.batch, found.publish_queue.max_queued) == (7, 9)


def test_default_target_of_publications_does_not_meet_a_stated_one() -> None:
    config = a_config(
        {
            "exchanges": ["e"],
            "queues": ["q"],
            "publications": {"own": {"queue": "q"}, "shared": {"routing_key": "k"}},
        },
        defaults={"publications": {"exchange": "e", "confirm": False}},
    )
    own, shared = config.publications["own"], config.publications["shared"]
    assert (own.queue, own.exchange, own.confirm) == ("q", None, False)
    assert (shared.queue, shared.exchange) == (None, "e")


def test_publication_of_the_root_takes_the_defaults_of_its_vhost() -> None:
    config = load_config(
        {
            "vhosts": {
                "v": {"queues": ["q"], "defaults": {"publications": {"timeout": "3s"}}},
            },
            "publications": {"p": {"vhost": "v", "queue": "q"}},
        }
    )
    assert config.publications["p"].timeout == 3.0


def test_recovery_by_name_can_be_a_default() -> None:
    config = a_config(
        {"queues": ["q"], "subscriptions": {"s": {"queue": "q"}}},
        defaults={"subscriptions": {"recovery": "drop"}},
        recovery={"drop": {"strategy": "ack"}},
    )
    assert config.subscriptions["s"].recovery == config.recovery["drop"]


def test_implied_publication_and_subscription_take_the_defaults_of_their_vhost() -> None:
    config = load_config(
        {
            "vhosts": {
                "/": {"exchanges": ["e"], "queues": ["q"]},
                "v": {"queues": ["q"], "defaults": {"publications": {"timeout": "3s"}}},
            },
            "defaults": {
                "publications": {"exchange": "e", "confirm": False},
                "subscriptions": {"prefetch": 7, "recovery": "drop"},
            },
            "recovery": {"drop": {"strategy": "ack"}},
        }
    )
    root, nested = config.find_publication("/q"), config.find_publication("v/q")
    subscription = config.find_subscription("v/q")

    assert root is not None
    assert (root.name, root.queue, root.exchange, root.confirm) == ("/q", "q", None, False)
    assert nested is not None
    assert (nested.vhost, nested.timeout) == ("v", 3.0)
    assert subscription is not None
    assert (subscription.vhost, subscription.queue, subscription.prefetch) == ("v", "q", 7)
    assert subscription.recovery == config.recovery["drop"]


def test_unknown_recovery_of_a_default_is_reported_though_nothing_uses_it() -> None:
    with pytest.raises(ConfigError) as caught:
        a_config({}, defaults={"subscriptions": {"recovery": "patient"}})
    (problem,) = caught.value.problems
    assert problem.path == "defaults.subscriptions.recovery"
    assert problem.message == "unknown recovery 'patient' (allowed: none is declared)"


# --------------------------------------------------------------------------- profile

EVERYTHING = {
    "connection": "amqp://h",
    "queues": {"q": {}, "s": {"options": {"arguments": {"x-queue-type": "stream"}}}},
    "publications": {"p": {"queue": "q"}},
    "subscriptions": {"s": {"queue": "q"}},
}


def test_profile_test_has_its_own_defaults() -> None:
    config = a_config(EVERYTHING, profile="test")
    vhost = config.vhosts["/"]
    queue = vhost.queues["q"]

    assert vhost.connections[0].heartbeat == 50
    assert queue.purge is True
    assert queue.options.durable is True
    assert queue.options.all_arguments == {"x-expires": 600_000}
    assert config.publications["p"].options.persistent is False
    assert config.subscriptions["s"].close_timeout == 0.5


def test_profile_test_leaves_streams_alone() -> None:
    queue = a_vhost(EVERYTHING, profile="test").queues["s"]
    assert queue.purge is False
    assert queue.options.all_arguments == {"x-queue-type": "stream"}


def test_defaults_section_wins_over_the_profile() -> None:
    found = a_vhost(EVERYTHING, profile="test", defaults={"queues": {"purge": False}})
    assert found.queues["q"].purge is False


def test_profile_default_is_no_profile() -> None:
    assert a_config(EVERYTHING, profile="default") == a_config(EVERYTHING)


def test_wrong_default_is_reported_once_however_many_it_reaches() -> None:
    with pytest.raises(ConfigError) as caught:
        a_config({"queues": ["a", "b", "c"]}, defaults={"queues": {"prge": True}})
    assert [each.path for each in caught.value.problems] == ["defaults.queues.prge"]


def test_list_replaces_the_list_of_a_default() -> None:
    arguments = {"x-list": ["a", "b", "c"]}
    config = load_config(
        {
            "vhosts": {"/": {"queues": {"q": {"options": {"arguments": {"x-list": ["z"]}}}}}},
            "defaults": {"queues": {"options": {"arguments": arguments}}},
        }
    )
    assert config.vhosts["/"].queues["q"].options.arguments == {"x-list": ["z"]}
