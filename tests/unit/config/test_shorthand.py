"""Short forms: bindings in one line, collections in three spellings."""

from __future__ import annotations

import pytest

from broker_client.config import BindingConfig, VhostConfig
from broker_client.config.loader import load_config
from broker_client.config.shorthand import ShortBinding, parse_binding


@pytest.mark.parametrize(
    ("text", "binding"),
    [
        ("e -> q", ShortBinding("e", "q", ())),
        ("e->q", ShortBinding("e", "q", ())),
        ("e[k] -> q", ShortBinding("e", "q", ("k",))),
        ("  e [ a.#,b.*  c ]->q ", ShortBinding("e", "q", ("a.#", "b.*", "c"))),
        ("s-1 -> p-1", ShortBinding("s-1", "p-1", ())),
        ("e/1:x.y[k] -> q/1", ShortBinding("e/1:x.y", "q/1", ("k",))),
        ("é>e -> q", ShortBinding("é>e", "q", ())),
    ],
)
def test_binding_in_short_form_is_taken_apart_whole(text: str, binding: ShortBinding) -> None:
    assert parse_binding(text) == binding


@pytest.mark.parametrize(
    "text",
    ["", "e", "e ->", "-> q", "a b -> q", "e -> q r", "e[k -> q", "e[k]x -> q", "a -> b -> c"],
)
def test_what_is_no_binding_is_refused_whole(text: str) -> None:
    with pytest.raises(ValueError, match="is not a binding; write 'source -> destination'"):
        parse_binding(text)


@pytest.mark.parametrize("text", ["e -> q,r", "e,f -> q"])
def test_several_destinations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one binding for each"):
        parse_binding(text)


def test_empty_brackets_are_refused() -> None:
    with pytest.raises(ValueError, match="empty brackets"):
        parse_binding("e[ ] -> q")


def a_vhost(**settings: object) -> VhostConfig:
    return load_config({"vhosts": {"/": settings}}).vhosts["/"]


@pytest.mark.parametrize(
    "queues",
    [
        ["a", "b"],
        ["a", {"name": "b"}],
        [{"name": "a"}, {"name": "b", "options": None}],
        {"a": None, "b": {}},
        {"a": {"name": "a"}, "b": {}},
    ],
)
def test_collection_means_the_same_in_every_spelling(queues: object) -> None:
    assert a_vhost(queues=queues) == a_vhost(queues={"a": {}, "b": {}})


def test_settings_are_kept_in_every_spelling() -> None:
    by_name = a_vhost(exchanges={"e": {"type": "fanout"}})
    listed = a_vhost(exchanges=[{"name": "e", "type": "fanout"}])
    assert by_name == listed
    assert by_name.exchanges["e"].type == "fanout"


def bindings(value: object) -> list[BindingConfig]:
    return list(a_vhost(exchanges=["e", "f"], queues=["q"], bindings=value).bindings)


@pytest.mark.parametrize(
    "value",
    [
        ["e[a, b] -> q"],
        {"x": "e[a, b] -> q"},
        {"e[a, b] -> q": None},
        {"e[a] -> q": {"binding_key": "b"}},
        [{"source": "e", "destination": "q", "binding_keys": ["a", "b"]}],
        [{"source": "e", "destination": "q", "binding_keys": "a", "name": "x"}, "e[b] -> q"],
    ],
)
def test_binding_is_written_in_many_ways(value: object) -> None:
    found = bindings(value)
    assert {(each.source, each.destination) for each in found} == {("e", "q")}
    assert sorted(key for each in found for key in each.binding_keys) == ["a", "b"]


def test_keys_of_all_spellings_are_joined_without_doubles() -> None:
    (found,) = bindings({"e[c, a] -> q": {"binding_keys": ["a", "b"], "binding_key": "b"}})
    assert found.binding_keys == ("a", "b", "c")


def test_bindings_of_one_pair_may_differ_in_keys_or_arguments_alone() -> None:
    long = {"source": "e", "destination": "q"}
    found = bindings(
        ["e -> q", {**long, "binding_key": "k"}, {**long, "options": {"arguments": {"a": 1}}}]
    )
    assert [(each.binding_keys, each.options.arguments) for each in found] == [
        (("#",), {}),
        (("k",), {}),
        (("#",), {"a": 1}),
    ]
    assert len({each.name for each in found}) == 3


def test_attribute_wins_over_the_short_form() -> None:
    (found,) = bindings({"e -> q": {"destination": "f", "destination_type": "exchange"}})
    assert (found.destination, found.destination_type) == ("f", "exchange")


@pytest.mark.parametrize("key", ["connection", "connections"])
def test_connection_is_a_url_a_mapping_or_a_list(key: str) -> None:
    for value in ("amqp://h", {"hostname": "h"}, ["amqp://h"], [{"url": "amqp://h"}]):
        found = a_vhost(**{key: value}).connections
        assert [each.masked_url for each in found] == ["amqp://guest:***@h:5672/"]


def test_both_connection_keys_are_joined_without_doubles() -> None:
    found = a_vhost(connection="amqp://a", connections=["amqp://b", "amqp://a"]).connections
    assert [each.hostname for each in found] == ["a", "b"]
