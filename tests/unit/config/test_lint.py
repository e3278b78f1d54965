"""Warnings at load, and mistakes between several parts of a configuration."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import pytest

from broker_client.config import (
    BrokerConfig,
    QueueConfig,
    SubscriptionConfig,
    VhostConfig,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError


def warned(vhost: dict[str, Any], **root: Any) -> list[tuple[str, str]]:
    """Path and first words of each warning."""
    config = load_config({"vhosts": {"/": vhost}, **root})
    return [(each.path, each.message) for each in config.warnings]


def refused(vhost: dict[str, Any], **root: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"/": vhost}, **root})
    return [(each.path, each.message) for each in caught.value.problems]


def a_queue(**options: Any) -> dict[str, Any]:
    return {"options": options}


QUORUM = {"arguments": {"x-queue-type": "quorum"}}
STREAM = {"arguments": {"x-queue-type": "stream"}}
SAFE = {
    "exchanges": ["dlx"],
    "queues": {"q": a_queue(dead_letter_exchange="dlx"), "dead": None},
    "bindings": ["dlx -> dead"],
}
NACK = {"strategy": "nack"}


# --------------------------------------------------------------------------- dead letters


def test_read_queue_without_a_dead_letter_exchange_is_warned_of_once() -> None:
    vhost = {"queues": ["q", "r"], "subscriptions": {"s": {"queue": "q"}, "t": {"queue": "q"}}}
    ((path, message),) = warned(vhost)
    assert path == "vhosts./.queues.q"
    assert message.startswith("has no dead-letter exchange: a message that its subscription")


def test_the_end_of_the_line_needs_no_dead_letter_exchange() -> None:
    both = {"s": {"queue": "q"}, "t": {"queue": "dead"}}
    assert warned({**SAFE, "subscriptions": both}) == []


def test_queue_that_dead_letters_reach_by_its_name_is_the_end_of_the_line() -> None:
    options = a_queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    subscriptions = {"s": {"queue": "q"}, "t": {"queue": "dead"}}
    vhost = {"queues": {"q": options, "dead": None}, "subscriptions": subscriptions}
    assert warned(vhost) == []


def test_with_no_ack_there_is_nothing_to_dead_letter() -> None:
    subscription = {"queue": "q", "options": {"no_ack": True}}
    assert warned({"queues": ["q"], "subscriptions": {"s": subscription}}) == []


@pytest.mark.parametrize("recovery", [None, [{"strategy": "nack", "requeue": True}]])
def test_requeue_on_a_quorum_queue_meets_the_delivery_limit(recovery: object) -> None:
    subscription = {"queue": "q", "recovery": recovery}
    ((path, message),) = warned(
        {"queues": {"q": {"options": QUORUM}}, "subscriptions": {"s": subscription}}
    )
    assert path == "vhosts./.queues.q"
    assert "requeued 20 times" in message


def test_quorum_queue_with_a_dead_letter_exchange_is_fine() -> None:
    queue = a_queue(dead_letter_exchange="dlx", **QUORUM)
    queues = {**SAFE["queues"], "q": queue}  # type: ignore[dict-item] # a literal of mixed values
    assert warned({**SAFE, "queues": queues, "subscriptions": {"s": {"queue": "q"}}}) == []


def test_undeclared_dead_letter_exchange_is_reported_with_the_nearest() -> None:
    vhost = {"exchanges": ["dlx"], "queues": {"q": a_queue(dead_letter_exchange="dlxx")}}
    ((path, message),) = warned(vhost)
    assert path == "vhosts./.queues.q.options"
    assert message.startswith("dead-letter exchange 'dlxx' is not declared (did you mean 'dlx'?)")


def test_dead_letters_to_the_default_exchange_need_a_key() -> None:
    ((_, message),) = warned({"queues": {"q": a_queue(dead_letter_exchange="")}})
    assert "write dead_letter_routing_key" in message


# --------------------------------------------------------------------------- chains

AGAIN = [{"strategy": "republish", "attempts": 2}, NACK]


def test_attempts_without_anything_behind_them_are_warned_of_where_they_stand() -> None:
    chain = {"strategy": "republish", "attempts": 3}
    subscriptions = {"s": {"queue": "q", "recovery": "patient"}}
    found = warned({**SAFE, "subscriptions": subscriptions}, recovery={"patient": chain})
    ((path, message),) = found
    assert path == "recovery.patient"
    assert message.startswith("after 3 attempts the message is nacked without requeue")


@pytest.mark.parametrize("chain", [AGAIN, [{"strategy": "republish", "defer": "1s"}], [NACK]])
def test_chain_that_says_how_it_ends_is_fine(chain: object) -> None:
    assert warned(SAFE, recovery={"patient": chain}) == []


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_republish_before_a_keyed_dead_letter_exchange_is_fine(kind: str) -> None:
    """The first key comes back with the dead letter, so nothing is lost."""
    vhost = {
        "exchanges": {"dlx": {"type": kind}},
        "queues": {"q": a_queue(dead_letter_exchange="dlx"), "dead": None},
        "bindings": ["dlx[placed] -> dead"],
        "subscriptions": {"s": {"queue": "q", "recovery": AGAIN}},
    }
    assert warned(vhost) == []


def test_strategy_behind_one_that_always_settles_is_warned_of() -> None:
    ((path, message),) = warned(SAFE, recovery={"r": [NACK, {"strategy": "ack"}]})
    assert path == "recovery.r[1]"
    assert message == "is never reached: the nack before it always settles"


# --------------------------------------------------------------------------- streams


def a_stream(**subscription: Any) -> dict[str, Any]:
    return {
        "queues": {"q": {"options": STREAM}},
        "subscriptions": {"s": {"queue": "q", "options": {"offset": "first"}, **subscription}},
    }


def test_stream_read_by_the_rules_is_fine() -> None:
    assert warned(a_stream()) == []


def test_stream_without_offset_is_warned_of() -> None:
    ((path, message),) = warned(a_stream(options=None))
    assert path == "vhosts./.subscriptions.s"
    assert message.startswith("a stream is read from its next message on")


@pytest.mark.parametrize(
    ("settings", "path", "text"),
    [
        ({"prefetch": 0}, "prefetch", "a stream needs a prefetch, 1 or more"),
        (
            {"options": {"no_ack": True, "offset": "next"}},
            "options.no_ack",
            "a stream cannot be read with no_ack",
        ),
        (
            {"recovery": [{"strategy": "republish"}]},
            "recovery",
            "a stream cannot be the target of republish; forward to another queue",
        ),
    ],
)
def test_stream_read_in_a_way_it_cannot_be_is_refused(
    settings: dict[str, Any], path: str, text: str
) -> None:
    assert refused(a_stream(**settings)) == [(f"vhosts./.subscriptions.s.{path}", text)]


def test_no_ack_with_recovery_is_refused() -> None:
    subscription = {"queue": "q", "options": {"no_ack": True}, "recovery": [NACK]}
    ((path, text),) = refused({**SAFE, "subscriptions": {"s": subscription}})
    assert path == "vhosts./.subscriptions.s"
    assert text == "no_ack leaves nothing to settle: take out no_ack or recovery"


def test_recovery_of_a_default_passes_over_no_ack() -> None:
    subscription = {"queue": "q", "options": {"no_ack": True}}
    vhost = {**SAFE, "subscriptions": {"s": subscription}}
    config = load_config(
        {"vhosts": {"/": vhost}, "defaults": {"subscriptions": {"recovery": [NACK]}}}
    )
    assert config.subscriptions["s"].recovery is None


# --------------------------------------------------------------------------- addresses, rounds


@pytest.mark.parametrize("url", ["embedded://broker.db", "embedded://a.sqlite"])
def test_node_in_memory_that_is_called_like_a_file_is_warned_of(url: str) -> None:
    config = load_config({"vhosts": {"/": {"connection": url}}})
    assert [str(each) for each in config.warnings] == [
        f"configuration: vhosts./.connection: {url} keeps its messages in memory; for a file of "
        f"that name write {url.replace('://', '://./')}"
    ]


@pytest.mark.parametrize("url", ["embedded://", "embedded://name", "embedded://./broker.db"])
def test_other_addresses_of_the_built_in_broker_are_not_warned_of(url: str) -> None:
    assert load_config({"vhosts": {"/": {"connection": url}}}).warnings == ()


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, True),
        ({"defer": "1s"}, False),
        ({"attempts": 3}, False),
        ({"immediate_nack": True}, False),
    ],
)
def test_republish_without_end_and_pause_is_warned_of(
    settings: dict[str, object], warned: bool
) -> None:
    chain = [{"strategy": "republish", **settings}, {"strategy": "nack"}]
    config = load_config({"vhosts": {"/": {}}, "recovery": {"r": chain}})
    found = [each.path for each in config.warnings if "retried forever" in each.message]
    assert found == (["recovery.r[0]"] if warned else [])


# --------------------------------------------------------------------------- where they go

DOUBTFUL = VhostConfig(name="/", queues={"q": QueueConfig(name="q")})


def test_warnings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "broker_client.config"):
        config = load_config(
            {"vhosts": {"/": {"queues": ["q"], "subscriptions": {"s": {"queue": "q"}}}}}
        )
        load_config(config)
    assert [each.getMessage() for each in caplog.records] == [str(config.warnings[0])]


def test_configuration_made_in_python_is_looked_at_too() -> None:
    subscription = SubscriptionConfig(name="s", queue="q")
    config = BrokerConfig(vhosts={"/": DOUBTFUL}, subscriptions={"s": subscription})
    assert config.warnings == ()
    assert [each.path for each in load_config(config).warnings] == ["vhosts./.queues.q"]


def test_mistake_of_a_configuration_made_in_python_is_refused() -> None:
    queue = QueueConfig.model_validate({"name": "q", "options": STREAM})
    vhost = VhostConfig(name="/", queues={"q": queue})
    subscription = SubscriptionConfig(name="s", queue="q", prefetch=0)
    config = BrokerConfig(vhosts={"/": vhost}, subscriptions={"s": subscription})
    with pytest.raises(ConfigError, match=r"subscriptions.s.prefetch: a stream needs a prefetch"):
        load_config(config)


def test_configuration_made_in_python_may_read_queues_that_others_declare() -> None:
    subscription = SubscriptionConfig(name="s", queue="theirs")
    config = BrokerConfig(vhosts={"/": DOUBTFUL}, subscriptions={"s": subscription})
    assert load_config(config).warnings == ()


# --------------------------------------------------------------------------- extras


@pytest.fixture
def bare_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package without its extras."""
    find = importlib.util.find_spec
    missing = ("cryptography", "redis")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )


KEY = {"key": "00" * 32, "algorithm": "aes-256-gcm"}
NEEDS_EXTRA: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("crypto", {}, {"encryption": {"p": KEY}}),
    (
        "crypto",
        {"publications": {"p": {"exchange": "", "encryption": {"name": "p", **KEY}}}},
        {},
    ),
    (
        "redis",
        {
            "subscriptions": {
                "s": {"queue": "q", "deduplicate": {"store": "redis", "url": "redis://h"}}
            }
        },
        {},
    ),
    (
        "redis",
        {"subscriptions": {"s": {"queue": "q", "redeliveries": {"counter": "c"}}}},
        {"redeliveries": {"counters": {"c": {"type": "redis", "url": "redis://h"}}}},
    ),
]


@pytest.mark.parametrize(("extra", "vhost", "root"), NEEDS_EXTRA)
def test_what_needs_a_missing_extra_is_refused_at_load(
    bare_install: None, extra: str, vhost: dict[str, Any], root: dict[str, Any]
) -> None:
    ((_, message),) = refused({"queues": ["q"], **vhost}, **root)
    assert f"amqp-broker-client[{extra}]" in message


def test_what_needs_no_extra_loads_without(bare_install: None) -> None:
    assert warned({**SAFE, "subscriptions": {"s": {"queue": "q"}}}) == []


# --------------------------------------------------------------------------- channels

AMQP = {"url": "amqp://h", "channel_max": 3}


def on_channels(count: int, **vhost: Any) -> list[tuple[str, str]]:
    queues = {"q": a_queue(dead_letter_exchange="dlx"), "dead": None}
    subscriptions = {f"s{number}": {"queue": "q"} for number in range(count)}
    return warned(
        {**SAFE, "connection": AMQP, "queues": queues, "subscriptions": subscriptions, **vhost}
    )


def pools_of(size: int) -> dict[str, Any]:
    return {"publication_channel_pools": {"confirm": {"max": size}, "regular": {"max": size}}}


def test_channel_max_below_what_is_declared_on_one_connection_says_who_uses_them() -> None:
    ((path, message),) = on_channels(3, separate_connections=False, **pools_of(2))
    assert path == "vhosts./.connection.channel_max"
    assert (
        "2 by publication_channel_pools.confirm.max and 3 by subscriptions (s0, s1, s2)" in message
    )
    assert "raise channel_max to 5" in message


def test_channel_max_is_looked_at_for_each_connection_of_its_own() -> None:
    assert on_channels(3, **pools_of(3)) == []
    ((_, message),) = on_channels(4, **pools_of(3))
    assert "4 by subscriptions" in message
    ((_, message),) = on_channels(1, **pools_of(5))
    assert "5 by publication_channel_pools.confirm.max;" in message


# --------------------------------------------------------------------------- quorum queues


def on_quorum(connection: str, arguments: dict[str, Any], *, exclusive: bool = False) -> list[str]:
    options = {"dead_letter_exchange": "dlx", "arguments": {"x-queue-type": "quorum", **arguments}}
    vhost = {
        **SAFE,
        "connection": connection,
        "queues": {"q": {"options": options}, "dead": None},
        "subscriptions": {"s": {"queue": "q", "options": {"exclusive": exclusive}}},
    }
    return [message for _, message in warned(vhost)]


def test_exclusive_consumer_of_a_quorum_queue_is_warned_of() -> None:
    (message,) = on_quorum("amqp://h", {}, exclusive=True)
    assert "x-single-active-consumer" in message
    assert on_quorum("amqp://h", {"x-single-active-consumer": True}, exclusive=True) == []


def test_delivery_limit_that_counts_shutdowns_is_warned_of_where_rabbitmq_has_the_queue() -> None:
    (message,) = on_quorum("amqp://h", {"x-delivery-limit": 4})
    assert "counts orderly shutdowns too" in message
    assert on_quorum("amqp://h", {"x-delivery-limit": 20}) == []
    assert on_quorum("embedded://", {"x-delivery-limit": 4}) == []


def test_more_redeliveries_than_a_quorum_queue_allows_are_never_reached() -> None:
    options = {"dead_letter_exchange": "dlx", "arguments": {"x-queue-type": "quorum"}}
    subscription = {"queue": "q", "redeliveries": {"counter": "memory", "limit": 21}}
    vhost = {
        **SAFE,
        "connection": "amqp://h",
        "queues": {"q": {"options": options}, "dead": None},
        "subscriptions": {"s": subscription},
    }
    ((path, message),) = warned(vhost)
    assert path.endswith("redeliveries.limit")
    assert "removes a message from a quorum queue after 20 (x-delivery-limit" in message
    subscription["redeliveries"] = {"counter": "memory", "limit": 20}
    assert warned(vhost) == []


REFUSED_BY_4: dict[str, dict[str, Any]] = {
    "x-consumer-timeout is refused": {"queues": {"q": {"x-consumer-timeout": 60_000}}},
    "x-max-priority is refused": {
        "queues": {"q": {"x-queue-type": "quorum", "x-max-priority": 5}},
    },
    "no shared prefetch": {"subscription": {"channel_prefetch": 2}},
    "frame_max below 8192": {"connection": {"frame_max": 4096}},
    "neither durable nor exclusive": {"options": {"durable": False}},
}


@pytest.mark.parametrize("says", REFUSED_BY_4)
@pytest.mark.parametrize("url", ["amqp://h", "embedded://"])
@pytest.mark.parametrize("compatibility", ["3.10", "4.3"])
def test_what_rabbitmq_4_refuses_is_warned_of(says: str, url: str, compatibility: str) -> None:
    given = REFUSED_BY_4[says]
    options = {"dead_letter_exchange": "dlx", **given.get("options", {})}
    if "queues" in given:
        options["arguments"] = given["queues"]["q"]
    vhost = {
        **SAFE,
        "connection": {"url": url, **given.get("connection", {})},
        "queues": {"q": {"options": options}, "dead": None},
        "subscriptions": {"s": {"queue": "q", **given.get("subscription", {})}},
    }
    ((path, message),) = warned(vhost, node={"compatibility": compatibility}) or [("", "")]
    of_every_version = says == "x-max-priority is refused"
    of_the_newest = says == "x-consumer-timeout is refused" and compatibility == "4.3"
    if url == "amqp://h" or of_every_version or of_the_newest:
        assert says in message
        assert path.startswith("vhosts./")
    else:
        assert message == ""
