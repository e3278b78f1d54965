"""Configurations of node's rascal, in every shape it accepts, become ours and load."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from broker_client.config import (
    BrokerConfig,
    ConnectionConfig,
    Forward,
    Nack,
    PublicationConfig,
    Republish,
    Strategy,
    SubscriptionConfig,
    VhostConfig,
)
from broker_client.config.loader import load_text
from broker_client.config.rascal.conversion import converted
from broker_client.config.rascal.draft import written
from tests.unit.config.strange import STRANGE, places

KEY = "f8" * 32


def yaml_of(document: dict[str, Any]) -> str:
    return written(converted(document))


def imported(document: dict[str, Any]) -> BrokerConfig:
    return load_text(yaml_of(document), environ={})


def a_vhost(**settings: Any) -> VhostConfig:
    return imported({"vhosts": {"/": settings}}).vhosts["/"]


def remarks(document: dict[str, Any]) -> list[str]:
    lines = [line.strip() for line in yaml_of(document).splitlines()]
    found = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    return [each for each in found if not each.startswith("in rascal a message that fails")]


# --------------------------------------------------------------------------- collections

SHAPES: list[Any] = [
    ["a", "b"],
    ["a", "b", "a"],
    [{"name": "a"}, {"name": "b"}],
    ["a", {"name": "b"}],
    {"a": {}, "b": {}},
    {"a": None, "b": {"name": "b"}},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_exchanges_and_queues_mean_the_same_in_every_shape(shape: Any) -> None:
    vhost = a_vhost(exchanges=shape, queues=shape)
    assert list(vhost.exchanges) == ["", "a", "b"]
    assert list(vhost.queues) == ["a", "b"]


def test_entry_without_a_name_gets_one_and_a_remark() -> None:
    document = {"vhosts": {"/": {"queues": ["a", {"options": {"durable": False}}]}}}
    assert list(imported(document).vhosts["/"].queues) == ["a", "unnamed-2"]
    assert remarks(document) == ["unnamed-2: rascal makes up a name at each start"]


@pytest.mark.parametrize(
    "shape",
    [
        ["e[a, b] -> q"],
        ["e[a,b]->q", "e[a,b]->q"],
        {"e[a b] -> q": {}},
        {"e[a] -> q": {"bindingKey": "b"}},
        {"x": {"source": "e", "destination": "q", "bindingKeys": ["a", "b"]}},
        [{"name": "e[a, b] -> q"}],
        [{"source": "e", "destination": "q", "bindingKeys": ["a", "b"]}],
        [{"name": "x", "source": "e", "destination": "q", "bindingKeys": ["b", "a"]}],
        ["e[a] -> q", {"source": "e", "destination": "q", "bindingKey": "b"}],
        {"both keys: e[a, b] -> q": {}},
    ],
)
def test_bindings_mean_the_same_in_every_shape(shape: Any) -> None:
    found = a_vhost(exchanges=["e"], queues=["q"], bindings=shape).bindings
    assert {(each.source, each.destination) for each in found} == {("e", "q")}
    assert sorted(key for each in found for key in each.binding_keys) == ["a", "b"]


def test_binding_keeps_its_settings() -> None:
    (found,) = a_vhost(
        exchanges=["e", "f"],
        bindings={
            "e -> f": {
                "destinationType": "exchange",
                "qualifyBindingKeys": True,
                "options": {"x-match": "all", "kind": "a"},
            }
        },
    ).bindings
    assert (found.destination, found.destination_type) == ("f", "exchange")
    assert found.qualify_binding_keys
    assert found.options.arguments == {"x-match": "all", "kind": "a"}
    assert found.binding_keys == ("#",)


@pytest.mark.parametrize(
    "shape",
    [["s -> p"], {"s -> p": {}}, {"x": {"subscription": "s", "publication": "p"}}],
)
def test_shovels_mean_the_same_in_every_shape(shape: Any) -> None:
    vhost = {
        "queues": ["q", "r"],
        "publications": {"p": {"queue": "r"}},
        "subscriptions": {"s": {"queue": "q"}},
    }
    (found,) = imported({"vhosts": {"/": vhost}, "shovels": shape}).shovels.values()
    assert (found.subscription, found.publication) == ("s", "p")


# --------------------------------------------------------------------------- connections


def a_connection(value: Any, **vhost: Any) -> ConnectionConfig:
    (found,) = a_vhost(connection=value, **vhost).connections
    return found


@pytest.mark.parametrize(
    ("value", "url"),
    [
        (None, "amqp://guest:guest@localhost:5672/"),
        ({}, "amqp://guest:guest@localhost:5672/"),
        ({"socketOptions": {"timeout": 1000}}, "amqp://guest:guest@localhost:5672/"),
        ("amqp://u:p%40@h:1/v", "amqp://u:p%40@h:1/v"),
        ("amqp://h", "amqp://guest:guest@h:5672/"),
        ("amqps://h/", "amqps://guest:guest@h:5671/"),
        ({"url": "amqp://h/v", "hostname": "other", "vhost": "x"}, "amqp://guest:guest@h:5672/v"),
        ({"hostname": "h", "port": "1", "user": "u", "password": "p@"}, "amqp://u:p%40@h:1/"),
        (
            {"protocol": "amqps", "hostname": "h", "vhost": "a/b"},
            "amqps://guest:guest@h:5671/a%2Fb",
        ),
        (["amqp://h/v"], "amqp://guest:guest@h:5672/v"),
        ([{"hostname": "h", "slashes": True}], "amqp://guest:guest@h:5672/"),
    ],
)
def test_connection_leads_where_it_led(value: Any, url: str) -> None:
    assert a_connection(value).url.get_secret_value() == url


def test_both_keys_of_connections_are_joined() -> None:
    found = a_vhost(
        connections=["amqp://a", {"hostname": "b"}, None], connection="amqp://a"
    ).connections
    assert [each.hostname for each in found] == ["a", "b"]


def test_vhost_of_an_address_without_a_path_is_the_servers_first() -> None:
    document = {"vhosts": {"v1": {"connection": "amqp://h"}}}
    assert imported(document).vhosts["v1"].connections[0].vhost == "/"
    assert "rascal connects an address without a path to vhost '/'" in remarks(document)[0]


def test_vhost_of_parts_is_the_key() -> None:
    (found,) = (
        imported({"vhosts": {"v1": {"connection": {"hostname": "h"}}}}).vhosts["v1"].connections
    )
    assert found.vhost == "v1"


@pytest.mark.parametrize(
    "value",
    [
        {
            "hostname": "h",
            "options": {
                "heartbeat": 5,
                "connection_timeout": 1500,
                "channelMax": 100,
                "frameMax": 8192,
            },
        },
        {"url": "amqp://h?heartbeat=5&connection_timeout=1500&channelMax=100&frameMax=8192"},
        "amqp://h?heartbeat=5&connection_timeout=1500&channelMax=100&frameMax=8192",
    ],
)
def test_options_of_a_connection_are_taken_from_query_and_mapping(value: Any) -> None:
    found = a_connection(value)
    assert (found.heartbeat, found.connect_timeout) == (5, 1.5)
    assert (found.channel_max, found.frame_max) == (100, 8192)
    assert "?" not in found.url.get_secret_value()


def test_socket_options_are_taken_as_far_as_they_go() -> None:
    value = {
        "protocol": "amqps",
        "socketOptions": {
            "timeout": 10000,
            "rejectUnauthorized": False,
            "clientProperties": {"connection_name": "billing", "team": "a"},
            "ca": ["-----BEGIN"],
            "noDelay": True,
        },
    }
    found = a_connection(value)
    assert found.connect_timeout == 10.0
    assert found.tls is not None
    assert found.tls.verify is False
    assert (found.name, found.client_properties) == ("billing", {"team": "a"})
    assert remarks({"vhosts": {"/": {"connection": value}}}) == [
        "left out: ca: write tls: {cafile: ..., certfile: ..., keyfile: ...} with files",
        "left out: noDelay true: always so",
    ]


@pytest.mark.parametrize(
    ("management", "address", "user"),
    [
        (None, "http://h:15672", "u"),
        ("https://m:1", "https://m:1", "u"),
        ({"url": "http://a:b@m:1"}, "http://m:1", "a"),
        ({"protocol": "https", "port": 2, "user": "a", "slashes": True}, "https://h:2", "a"),
    ],
)
def test_management_is_where_it_was(management: Any, address: str, user: str) -> None:
    found = a_connection({"hostname": "h", "user": "u", "management": management}).management
    assert (found.address, found.user) == (address, user)


def test_management_keeps_its_timeout() -> None:
    management = {"url": "http://m", "options": {"timeout": 2500}}
    assert a_connection({"hostname": "h", "management": management}).management.timeout == 2.5


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (False, (1.0, 60.0, 2.0, "exponential", False)),
        (True, (1.0, 60.0, 2.0, "exponential", True)),
        (
            {"min": 500, "max": 30000, "factor": 1.5, "strategy": "exponential"},
            (0.5, 30.0, 1.5, "exponential", True),
        ),
        ({"min": 2000, "strategy": "linear"}, (2.0, 2.0, 2.0, "linear", True)),
        ({"delay": 250}, (0.25, 0.25, 2.0, "linear", True)),
        ({"min": 90000}, (90.0, 90.0, 2.0, "exponential", True)),
    ],
)
def test_retry_waits_as_long(retry: Any, expected: tuple[Any, ...]) -> None:
    connection = a_connection({"hostname": "h", "retry": retry}).retry
    subscriptions = {"s": {"queue": "q", "retry": retry}}
    config = imported({"vhosts": {"/": {"queues": ["q"], "subscriptions": subscriptions}}})
    for found in (connection, config.subscriptions["s"].retry):
        assert (
            found.min,
            found.max,
            found.factor,
            found.strategy,
            found.enabled,
        ) == expected


# --------------------------------------------------------------------------- entities


def test_exchange_and_queue_keep_their_settings() -> None:
    vhost = a_vhost(
        namespace="ns",
        concurrency=5,
        connectionStrategy="fixed",
        **{"assert": True, "check": True},
        exchanges={
            "e": {
                "type": "fanout",
                "assert": False,
                "check": True,
                "options": {
                    "durable": False,
                    "internal": True,
                    "autoDelete": True,
                    "alternateExchange": "f",
                    "arguments": {"a": 1},
                },
            },
            "f": {},
        },
        queues={
            "q": {
                "purge": True,
                "replyTo": "me",
                "options": {
                    "exclusive": True,
                    "durable": False,
                    "autoDelete": True,
                    "messageTtl": 1500,
                    "expires": 60000,
                    "deadLetterExchange": "e",
                    "deadLetterRoutingKey": "k",
                    "maxLength": 10,
                    "maxPriority": 5,
                    "arguments": {"x-queue-mode": "lazy", "x-message-ttl": 60000},
                },
            }
        },
    )
    assert (vhost.namespace, vhost.concurrency, vhost.connection_strategy) == ("ns", 5, "fixed")
    assert (vhost.assert_, vhost.check) == (True, True)
    exchange, queue = vhost.exchanges["e"], vhost.queues["q"]
    assert (exchange.type, exchange.assert_, exchange.check) == ("fanout", False, True)
    assert (exchange.options.durable, exchange.options.internal) == (False, True)
    assert exchange.options.auto_delete is True
    assert exchange.arguments == {"alternate-exchange": "ns:f", "a": 1}
    assert (queue.purge, queue.qualified_name) == (True, "ns:q:me")
    assert (queue.options.exclusive, queue.options.durable) == (True, False)
    assert queue.arguments == {
        "x-message-ttl": 60000,  # an argument wins over an option
        "x-expires": 60000,
        "x-dead-letter-exchange": "ns:e",
        "x-dead-letter-routing-key": "k",
        "x-max-length": 10,
        "x-max-priority": 5,
        "x-queue-mode": "lazy",
    }
    assert queue.options.message_ttl == 1.5


def test_pools_keep_their_sizes_and_times() -> None:
    pool = {
        "autostart": True,
        "min": 2,
        "max": 10,
        "idleTimeoutMillis": 5000,
        "acquireTimeoutMillis": 1500,
        "destroyTimeoutMillis": 500,
        "evictionRunIntervalMillis": 10000,
        "rejectionDelayMillis": 1000,
        "testOnBorrow": True,
    }
    pools = a_vhost(
        publicationChannelPools={"regularPool": pool, "confirmPool": {"max": 3}}
    ).publication_channel_pools
    found = pools.regular
    assert (found.autostart, found.min, found.max) == (True, 2, 10)
    assert (found.idle_timeout, found.acquire_timeout, found.close_timeout) == (5.0, 1.5, 0.5)
    assert pools.confirm.max == 3


def a_publication(value: dict[str, Any], **root: Any) -> PublicationConfig:
    vhost = {"exchanges": ["e"], "queues": ["q"], "publications": {"p": value}}
    return imported({"vhosts": {"/": vhost}, **root}).publications["p"]


def test_publication_keeps_its_settings() -> None:
    found = a_publication(
        {
            "exchange": "e",
            "routingKey": "a.b",
            "confirm": False,
            "timeout": 2500,
            "replyTo": "q",
            "autoCreated": False,
            "options": {
                "persistent": False,
                "mandatory": False,
                "contentType": "text/plain",
                "headers": {"h": 1, "price": "5$"},
                "priority": 3,
                "expiration": "1500",
                "appId": "a",
                "userId": "u",
                "CC": "cc",
                "BCC": ["b", "c"],
                "messageId": "fixed",
            },
        }
    )
    assert (found.exchange, found.routing_key, found.confirm) == ("e", "a.b", False)
    assert (found.timeout, found.reply_to) == (2.5, "q")
    options = found.options
    assert (options.persistent, options.mandatory, options.priority) == (False, False, 3)
    assert (options.content_type, options.expiration) == ("text/plain", 1.5)
    assert (options.app_id, options.user_id) == ("a", "u")
    assert options.headers == {"h": 1, "price": "5$", "CC": ["cc"], "BCC": ["b", "c"]}


@pytest.mark.parametrize("timeout", [0, False])
def test_publish_without_a_limit_gets_our_limit_and_a_remark(timeout: object) -> None:
    assert a_publication({"queue": "q", "timeout": timeout}).timeout == 10.0


def test_publication_to_the_default_exchange_stays_there() -> None:
    found = a_publication({"exchange": "", "routingKey": "q"})
    assert (found.exchange, found.queue, found.routing_key) == ("", None, "q")


def a_subscription(value: dict[str, Any], **root: Any) -> SubscriptionConfig:
    vhost = {"queues": ["q"], "subscriptions": {"s": {"queue": "q", **value}}}
    return imported({"vhosts": {"/": vhost}, **root}).subscriptions["s"]


def test_subscription_keeps_its_settings() -> None:
    found = a_subscription(
        {
            "contentType": "text/plain",
            "prefetch": 3,
            "channelPrefetch": 7,
            "closeTimeout": 1500,
            "redeliveries": {"limit": 5, "timeout": 250, "counter": "stub"},
            "options": {
                "noAck": False,
                "exclusive": True,
                "priority": 2,
                "consumerTag": "t",
                "arguments": {"a": 1},
            },
        }
    )
    assert (found.content_type, found.prefetch, found.channel_prefetch) == ("text/plain", 3, 7)
    assert found.close_timeout == 1.5
    assert (found.redeliveries.limit, found.redeliveries.timeout) == (5, 0.25)
    assert (found.options.exclusive, found.options.consumer_tag) == (True, "t")
    assert found.options.all_arguments == {"x-priority": 2, "a": 1}


def test_what_has_no_counterpart_is_remarked_with_its_reason() -> None:
    subscription = {
        "queue": "q",
        "deferCloseChannel": 10000,
        "promisifyAckOrNack": True,
        "handler": "saveUser.js",
        "prefech": 1,
    }
    vhost = {"queues": ["q"], "subscriptions": {"s": subscription}}
    assert remarks({"vhosts": {"/": vhost}, "extra": 1}) == [
        "left out: extra: no such key in rascal",
        "left out: deferCloseChannel 10000: a subscription that ends waits for what is unsettled, "
        "up to close_timeout",
        "left out: promisifyAckOrNack true: ack_or_nack is always awaited",
        "left out: handler: handlers are given to subscribe",
        "left out: prefech 1: no such key in rascal",
    ]


def test_publications_and_subscriptions_of_the_root_are_kept() -> None:
    config = imported(
        {
            "vhosts": {"v": {"queues": ["q"]}},
            "publications": {"p": {"vhost": "v", "queue": "q"}},
            "subscriptions": [{"name": "s", "vhost": "v", "queue": "q"}],
        }
    )
    assert config.publications["p"].vhost == "v"
    assert config.subscriptions["s"].vhost == "v"


# --------------------------------------------------------------------------- recovery


def chain_of(value: Any, **vhost: Any) -> tuple[Strategy, ...]:
    return imported({"vhosts": {"/": vhost}, "recovery": {"r": value}}).recovery["r"]


def test_strategies_keep_their_settings() -> None:
    chain = chain_of(
        [
            {
                "strategy": "republish",
                "defer": 1500,
                "attempts": 10,
                "immediateNack": True,
                "restoreRoutingHeaders": False,
            },
            {
                "strategy": "forward",
                "publication": "/q",
                "attempts": 0,
                "xDeathFix": True,
                "options": {"routingKey": "k", "expiration": 250, "CC": ["x"]},
            },
            {"strategy": "nack", "requeue": True, "defer": 100},
        ],
        queues=["q"],
    )
    republish, forward, nack = chain
    assert republish == Republish(
        defer=1.5, attempts=10, immediate_nack=True, restore_routing_headers=False
    )
    assert isinstance(forward, Forward)
    assert (forward.publication, forward.attempts, forward.x_death_fix) == ("/q", None, True)
    assert (forward.routing_key, forward.options.expiration) == ("k", 0.25)
    assert forward.options.headers == {"CC": ["x"]}
    assert nack == Nack(requeue=True, defer=0.1)


def test_one_strategy_and_a_list_of_one_are_the_same() -> None:
    assert chain_of({"strategy": "nack"}) == chain_of([{"strategy": "nack"}]) == (Nack(),)


def test_unknown_strategy_is_remarked() -> None:
    document = {
        "vhosts": {"/": {}},
        "recovery": {"r": [{"strategy": "retry"}, {"strategy": "ack"}]},
    }
    assert len(imported(document).recovery["r"]) == 1
    assert remarks(document) == ["left out: strategy 'retry': no such strategy"]


def test_message_that_fails_is_nacked_as_in_rascal() -> None:
    assert a_subscription({}).recovery == (Nack(),)
    implied = imported({"vhosts": {"/": {"queues": ["q"]}}}).find_subscription("/q")
    assert implied is not None
    assert implied.recovery == (Nack(),)


@pytest.mark.parametrize("value", ["r", [{"strategy": "republish"}], {"strategy": "republish"}])
def test_recovery_of_a_subscription_is_kept(value: Any) -> None:
    found = a_subscription({"recovery": value}, recovery={"r": {"strategy": "republish"}})
    assert found.recovery == (Republish(),)


def test_chains_of_a_subscription_by_name_move_to_the_root() -> None:
    vhost = {
        "queues": ["q"],
        "subscriptions": {"s": {"queue": "q", "recovery": {"again": [{"strategy": "republish"}]}}},
    }
    config = imported({"vhosts": {"/": vhost}})
    assert config.recovery["s.again"] == (Republish(),)
    assert config.subscriptions["s"].recovery == (Nack(),)


def test_recovery_that_names_nothing_is_remarked() -> None:
    vhost = {"queues": ["q"], "subscriptions": {"s": {"queue": "q", "recovery": "gone"}}}
    assert imported({"vhosts": {"/": vhost}}).subscriptions["s"].recovery == (Nack(),)
    assert remarks({"vhosts": {"/": vhost}}) == [
        "left out: recovery 'gone': there is no such chain"
    ]


# --------------------------------------------------------------------------- counters, encryption


@pytest.mark.parametrize(
    ("counters", "used", "kind", "size"),
    [
        ({"mine": {"type": "inMemory", "size": 10}}, "mine", "memory", 10),
        ([{"name": "mine", "type": "inMemoryCluster", "timeout": 100}], "mine", "memory", 1000),
        ({"inMemory": {"size": 7}}, "inMemory", "memory", 7),
        (["inMemory"], "inMemory", "memory", 1000),
        (None, "inMemory", "memory", 1000),
        (None, "inMemoryCluster", "memory", 1000),
        ({"stub": {}}, "stub", "stub", 1000),
        ({"mine": {"type": "redis", "ttl": 5}}, "mine", "custom", 1000),
    ],
)
def test_counter_counts_as_it_did(counters: Any, used: str, kind: str, size: int) -> None:
    vhost = {
        "queues": ["q"],
        "subscriptions": {"s": {"queue": "q", "redeliveries": {"counter": used}}},
    }
    config = imported({"vhosts": {"/": vhost}, "redeliveries": {"counters": counters}})
    found = config.counter_of(config.subscriptions["s"])
    assert (found.type, found.size) == (kind, size)


PROFILE = {"key": KEY, "algorithm": "aes-256-cbc", "ivLength": 16}


def test_encryption_profiles_are_kept_named_and_inline() -> None:
    config = imported(
        {
            "vhosts": {
                "/": {
                    "queues": ["q"],
                    "publications": {
                        "named": {"queue": "q", "encryption": "v1"},
                        "own": {"queue": "q", "encryption": {"name": "v2", **PROFILE}},
                    },
                    "subscriptions": {
                        "all": {"queue": "q"},
                        "one": {"queue": "q", "encryption": {"v3": {"name": "v3", **PROFILE}}},
                    },
                }
            },
            "encryption": {"v1": PROFILE},
        }
    )
    named, own = (config.publications[name].encryption for name in ("named", "own"))
    assert named == config.encryption["v1"]
    assert own is not None
    assert (own.name, own.key_bytes, own.iv_bytes) == ("v2", bytes.fromhex(KEY), 16)
    assert list(config.profiles_of(config.subscriptions["all"])) == ["v1"]
    assert list(config.profiles_of(config.subscriptions["one"])) == ["v3"]


def test_profile_of_another_algorithm_is_left_out_wherever_it_is_named() -> None:
    document = {
        "vhosts": {
            "/": {"queues": ["q"], "publications": {"p": {"queue": "q", "encryption": "old"}}}
        },
        "encryption": {"old": {**PROFILE, "algorithm": "des3"}},
    }
    assert imported(document).publications["p"].encryption is None
    profile, publication = sorted(remarks(document), reverse=True)
    assert profile.startswith("left out: old: no such algorithm here; there are aes-256-cbc")
    assert publication == "left out: encryption: its profile was left out"
    assert KEY not in "".join(remarks(document))


# --------------------------------------------------------------------------- defaults


def test_defaults_hold_for_what_does_not_state_its_own() -> None:
    config = imported(
        {
            "defaults": {
                "vhosts": {
                    "connection": {
                        "hostname": "shared",
                        "slashes": True,
                        "options": {"heartbeat": 50},
                        "management": {"options": {"timeout": 1000}},
                        "retry": {"max": 5000},
                    },
                    "namespace": "ns",
                    "concurrency": 3,
                    "exchanges": {"type": "direct"},
                    "queues": {"purge": True, "options": {"durable": False}},
                    "bindings": {"bindingKey": "k"},
                    "publicationChannelPools": {"confirmPool": {"max": 2}},
                },
                "publications": {"timeout": 1500, "options": {"persistent": False}},
                "subscriptions": {"closeTimeout": 500, "prefetch": 4},
            },
            "vhosts": {
                "a": {
                    "exchanges": ["e"],
                    "queues": ["q"],
                    "bindings": ["e -> q"],
                    "publications": {"p": {"queue": "q"}},
                    "subscriptions": {"s": {"queue": "q"}},
                },
                "b": {
                    "connection": "amqp://own/b",
                    "queues": ["q"],
                    "defaults": {"queues": {"purge": False}, "connection": {"retry": False}},
                },
            },
        }
    )
    first, second = config.vhosts["a"], config.vhosts["b"]
    assert [each.connections[0].hostname for each in (first, second)] == ["shared", "own"]
    assert first.connections[0].heartbeat == second.connections[0].heartbeat == 50
    assert (first.connections[0].retry.max, second.connections[0].retry.enabled) == (5.0, False)
    assert (first.namespace, first.concurrency) == ("ns", 3)
    assert first.exchanges["e"].type == "direct"
    assert (first.queues["q"].purge, second.queues["q"].purge) == (True, False)
    assert first.queues["q"].options.durable is False
    assert first.bindings[0].binding_keys == ("k",)
    assert first.publication_channel_pools.confirm.max == 2
    assert config.publications["p"].timeout == 1.5
    assert config.publications["p"].options.persistent is False
    assert (config.subscriptions["s"].close_timeout, config.subscriptions["s"].prefetch) == (0.5, 4)


# --------------------------------------------------------------------------- whole documents

EXAMPLES = sorted((Path(__file__).parents[1] / "data" / "rascal").glob("*.json"))


def test_there_are_whole_documents() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_whole_document_loads_with_every_name_it_declares(path: Path) -> None:
    document = json.loads(path.read_text())
    config = imported(document)
    document = document.get("rascal", document)
    for name, vhost in document["vhosts"].items():
        for kind in ("exchanges", "queues"):
            declared = vhost.get(kind, [])
            names = {each if isinstance(each, str) else each["name"] for each in declared}
            assert names <= set(getattr(config.vhosts[name], kind))
        for kind in ("publications", "subscriptions"):
            assert set(vhost.get(kind, {})) <= set(getattr(config, kind))


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_strange_value_in_any_place_is_still_written_as_yaml(strange: object) -> None:
    for original in EXAMPLES:
        document = json.loads(original.read_text())
        for path in places(document):
            changed = copy.deepcopy(document)
            here = changed
            for key in path[:-1]:
                here = here[key]
            here[path[-1]] = copy.deepcopy(strange)
            assert yaml_of(changed).endswith("\n")


def test_document_under_a_key_of_its_own_is_found() -> None:
    assert imported({"rascal": {"vhosts": {"v": {}}}}).vhosts.keys() == {"v"}


# --------------------------------------------------------------------------- docs/rascal.md

PAGE = (Path(__file__).parents[3] / "docs" / "rascal.md").read_text(encoding="utf-8")


def test_example_of_the_page_is_what_the_command_makes_of_it() -> None:
    (source,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    (result,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert yaml_of(json.loads(source)) == result
