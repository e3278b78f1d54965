"""What rascal checks and assumes in a configuration, row by row (sections 0, 1.1, 1.2, 1.11)."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

import broker_client
from broker_client import Broker
from broker_client.config import (
    BrokerConfig,
    ConnectionConfig,
    PoolConfig,
    PublicationConfig,
    RetryConfig,
    SubscriptionConfig,
)
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError

A_VHOST: dict[str, Any] = {"exchanges": ["e"], "queues": ["q"]}


def problems(vhost: dict[str, Any], **root: Any) -> list[str]:
    """Path and text of what is wrong with `vhost`, called ``v``, and with the keys beside it."""
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"v": {**A_VHOST, **vhost}}, **root}, environ={})
    return [f"{each.path}: {each.message}" for each in caught.value.problems]


# --------------------------------------------------------------------------- layers, defaults


async def test_broker_shows_the_configuration_with_everything_filled_in() -> None:
    source = {"vhosts": {"/": {"queues": ["q"]}}, "defaults": {"publications": {"timeout": "3s"}}}
    async with Broker.create(source) as broker:
        config = broker.config
    assert isinstance(config, BrokerConfig)
    assert list(config.vhosts["/"].exchanges) == [""]
    implied = config.find_publication("/q")
    assert implied is not None
    assert implied.timeout == 3.0
    assert source == {
        "vhosts": {"/": {"queues": ["q"]}},
        "defaults": {"publications": {"timeout": "3s"}},
    }


def test_list_replaces_the_list_of_a_default() -> None:
    arguments = {"x-list": ["a", "b", "c"]}
    config = load_config(
        {
            "vhosts": {"/": {"queues": {"q": {"options": {"arguments": {"x-list": ["z"]}}}}}},
            "defaults": {"queues": {"options": {"arguments": arguments}}},
        }
    )
    assert config.vhosts["/"].queues["q"].options.arguments == {"x-list": ["z"]}


def test_defaults_are_those_rascal_recommends() -> None:
    connection = ConnectionConfig.model_validate("amqp://h")
    assert (connection.heartbeat, connection.connect_timeout) == (10, 10.0)
    assert connection.management.timeout == 1.0
    assert connection.retry == RetryConfig(min=1.0, max=60.0, factor=2.0, strategy="exponential")
    pool = PoolConfig()
    assert (pool.max, pool.acquire_timeout, pool.idle_timeout) == (5, 15.0, 60.0)
    assert SubscriptionConfig(name="s", queue="q").prefetch == 10


def test_names_that_programs_begin_with_are_exported() -> None:
    assert {"Broker", "BrokerConfig", "load_config"} <= set(broker_client.__all__)


def test_entry_without_a_name_is_refused() -> None:
    assert problems({"queues": [{"purge": True}]}) == [
        "vhosts.v.queues[0]: needs a name: add 'name', as text"
    ]


def test_retry_of_true_is_the_default() -> None:
    config = load_config(
        {"vhosts": {"/": A_VHOST}, "subscriptions": {"s": {"queue": "q", "retry": True}}}
    )
    retry = config.subscriptions["s"].retry
    assert (retry.enabled, retry.min, retry.max, retry.factor) == (True, 1.0, 60.0, 2.0)


def test_publication_has_rascals_defaults() -> None:
    publication = PublicationConfig(name="p", exchange="")
    assert (publication.vhost, publication.exchange, publication.routing_key) == ("/", "", "")
    assert (publication.confirm, publication.timeout) == (True, 10.0)
    assert (publication.options.persistent, publication.options.mandatory) == (True, True)
    assert publication.encryption is None


# --------------------------------------------------------------------------- unknown keys


@pytest.mark.parametrize(
    ("vhost", "root", "place"),
    [
        ({"bad": 1}, {}, "vhosts.v"),
        ({"publications": {"p": {"queue": "q", "bad": 1}}}, {}, "vhosts.v.publications.p"),
        ({"subscriptions": {"s": {"queue": "q", "bad": 1}}}, {}, "vhosts.v.subscriptions.s"),
        ({}, {"encryption": {"k": {"key": "00", "bad": 1}}}, "encryption.k"),
        ({}, {"shovels": {"x": {"bad": 1}}}, "shovels.x"),
        ({"exchanges": {"e": {"bad": 1}}}, {}, "vhosts.v.exchanges.e"),
        ({"queues": {"q": {"bad": 1}}}, {}, "vhosts.v.queues.q"),
        ({"bindings": {"e -> q": {"bad": 1}}}, {}, "vhosts.v.bindings.e -> q"),
        ({"publication_channel_pools": {"bad": {}}}, {}, "vhosts.v.publication_channel_pools"),
        ({"connection": {"hostname": "h", "bad": 1}}, {}, "vhosts.v.connection"),
        (
            {"connection": {"hostname": "h", "management": {"bad": 1}}},
            {},
            "vhosts.v.connection.management",
        ),
    ],
)
def test_unknown_key_is_told_with_its_place_and_what_is_allowed(
    vhost: dict[str, Any], root: dict[str, Any], place: str
) -> None:
    found = problems(vhost, **root)
    assert any(each.startswith(f"{place}.bad: unknown key (") for each in found), found
    assert any("allowed: " in each for each in found)


def test_every_unknown_key_is_told_not_the_first_alone() -> None:
    found = problems({"queues": {"q": {"bad": 1, "worse": 2}}})
    assert [each.split(":")[0] for each in found] == [
        "vhosts.v.queues.q.bad",
        "vhosts.v.queues.q.worse",
    ]


def test_key_that_rascal_gave_up_says_what_took_its_place() -> None:
    assert problems({"subscriptions": {"s": {"queue": "q", "deferCloseChannel": 5}}}) == [
        "vhosts.v.subscriptions.s.deferCloseChannel: unknown key: deferCloseChannel is rascal's: "
        "a subscription that ends waits up to close_timeout for what is unsettled"
    ]


# --------------------------------------------------------------------------- what is missing


def test_configuration_without_vhosts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^configuration: vhosts: No vhosts specified$"):
        load_config({})


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        ({"destination": "q"}, "source: is missing"),
        ({"source": "e"}, "destination: is missing"),
        (
            {"source": "e", "destination": "q", "destination_type": "topic"},
            "destination_type: unknown value 'topic' (allowed: exchange, queue)",
        ),
        ({"source": "x", "destination": "q"}, "source: unknown exchange 'x' (allowed: e)"),
        ({"source": "e", "destination": "x"}, "destination: unknown queue 'x' (allowed: q)"),
        (
            {"source": "e", "destination": "x", "destination_type": "exchange"},
            "destination: unknown exchange 'x' (allowed: e)",
        ),
    ],
)
def test_wrong_binding_is_refused(binding: dict[str, Any], text: str) -> None:
    assert problems({"bindings": {"b": binding}}) == [f"vhosts.v.bindings.b.{text}"]


def test_binding_without_a_destination_type_leads_to_a_queue() -> None:
    bindings = [{"source": "e", "destination": "q"}]
    config = load_config({"vhosts": {"v": {**A_VHOST, "bindings": bindings}}})
    assert config.vhosts["v"].bindings[0].destination_type == "queue"


@pytest.mark.parametrize(
    ("publication", "text"),
    [
        ({"vhost": "v"}, ": name either an exchange or a queue"),
        ({"vhost": "v", "exchange": "e", "queue": "q"}, ": name either an exchange or a queue"),
        ({"queue": "q"}, ".vhost: unknown vhost '/' (allowed: v)"),
        ({"vhost": "x", "queue": "q"}, ".vhost: unknown vhost 'x' (allowed: v)"),
        ({"vhost": "v", "exchange": "x"}, ".exchange: unknown exchange 'x' (allowed: '', e)"),
        ({"vhost": "v", "queue": "x"}, ".queue: unknown queue 'x' (allowed: q)"),
    ],
)
def test_wrong_publication_is_refused(publication: dict[str, Any], text: str) -> None:
    assert problems({}, publications={"p": publication}) == [f"publications.p{text}"]


@pytest.mark.parametrize(
    ("subscription", "text"),
    [
        ({"vhost": "v"}, "queue: is missing"),
        ({"queue": "q"}, "vhost: unknown vhost '/' (allowed: v)"),
        ({"vhost": "v", "queue": "x"}, "queue: unknown queue 'x' (allowed: q)"),
        (
            {"vhost": "v", "queue": "q", "redeliveries": {"counter": "c"}},
            "redeliveries.counter: unknown counter 'c' (allowed: memory, stub)",
        ),
    ],
)
def test_wrong_subscription_is_refused(subscription: dict[str, Any], text: str) -> None:
    assert problems({}, subscriptions={"s": subscription}) == [f"subscriptions.s.{text}"]


@pytest.mark.parametrize("kind", ["publication", "subscription"])
def test_name_hoisted_from_two_vhosts_is_refused(kind: str) -> None:
    entry = {f"{kind}s": {"x": {"queue": "q"}}}
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"v": {**A_VHOST, **entry}, "w": {**A_VHOST, **entry}}})
    (problem,) = caught.value.problems
    assert problem.path == f"vhosts.w.{kind}s.x"
    assert problem.message == f"duplicate {kind} 'x', declared in another place already"


def test_nested_entry_that_names_another_vhost_is_refused() -> None:
    assert problems({"subscriptions": {"s": {"queue": "q", "vhost": "w"}}}) == [
        "vhosts.v.subscriptions.s.vhost: stands in vhost 'v' but names vhost 'w'"
    ]


# --------------------------------------------------------------------------- running


async def test_message_id_is_made_up_and_told() -> None:
    async with Broker.create({"vhosts": {"/": {"queues": ["q"]}}}) as broker:
        told: list[str] = []
        publications = [await broker.publish("/q", n) for n in range(2)]
        for publication in publications:
            publication.on("success", told.append)
            assert re.fullmatch("[0-9a-f]{32}", (await publication).message_id)
        chosen = await broker.publish("/q", "x", message_id="mine")
        chosen.on("success", told.append)
        await chosen
    assert told == [*(each.message_id for each in publications), "mine"]
    assert len(set(told)) == 3


async def test_package_that_is_missing_fails_the_publish_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of the encryption is the call's, not an event of the publication."""
    for module in ("padding", "ciphers"):
        monkeypatch.setitem(sys.modules, f"cryptography.hazmat.primitives.{module}", None)
    profile = {"name": "k", "key": "00" * 32, "algorithm": "aes-256-cbc"}
    publications = {"p": {"queue": "q", "encryption": profile}}
    async with Broker.create(
        {"vhosts": {"/": {"queues": ["q"], "publications": publications}}}
    ) as broker:
        with pytest.raises(broker_client.BrokerClientError, match=r"broker-client\[crypto\]"):
            await broker.publish("p", "x")
        assert broker.stats().vhosts["/"].publish_queue.published == 0
