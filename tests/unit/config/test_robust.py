"""Whatever stands in a configuration, the answer is a configuration or readable problems."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.errors import ConfigError

GOOD: dict[str, Any] = {
    "vhosts": {
        "/": {
            "connection": {
                "url": "amqps://h",
                "retry": {"max": "5s"},
                "tls": {"verify_hostname": False},
                "management": {"port": 1},
                "client_properties": {"a": 1},
                "frame_max": "64KiB",
            },
            "namespace": "ns",
            "redeliveries": {"counters": {"mine": {"type": "sqlite", "path": "x.db"}}},
            "exchanges": ["e", {"name": "f"}],
            "queues": {"q": {"options": {"arguments": {"x": 1}}}},
            "bindings": ["e -> q", {"source": "e", "destination": "q", "binding_keys": ["k"]}],
            "publications": {
                "p": {
                    "exchange": "e",
                    "options": {"headers": {"h": 1}},
                    "reply_to": "q",
                    "encryption": "k",
                }
            },
            "subscriptions": {
                "s": {
                    "queue": "q",
                    "recovery": "again",
                    "encryption": ["k"],
                    "redeliveries": {"counter": "mine"},
                    "deduplicate": {"window": "1m"},
                    "options": {"offset": "first"},
                }
            },
            "defaults": {"connection": {"heartbeat": "5s"}, "queues": {"purge": True}},
        }
    },
    "recovery": {"again": [{"strategy": "republish"}, {"strategy": "forward", "publication": "p"}]},
    "defaults": {
        "publications": {"timeout": "1s", "encryption": "k"},
        "subscriptions": {"recovery": "again", "encryption": ["k"]},
        "vhosts": {"connection": {"tls": {"verify": True}}, "redeliveries": {"counters": ["stub"]}},
    },
    "shovels": ["s -> p", {"name": "x", "subscription": "s", "publication": "p"}],
    "encryption": {"k": {"key": "ab" * 16, "algorithm": "aes-128-gcm"}},
    "redeliveries": {"counters": {"memory": {"size": 5}}},
    "node": {"scan": {"interval": "50ms"}, "memory_limit": "1MiB"},
    "profile": "test",
}
STRANGE: list[Any] = [None, -1, 2.5, "", "x", "a -> b", [], {}, [None], [[]], {"name": []}]


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))


def with_value(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(GOOD)
    here: Any = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = copy.deepcopy(value)
    return changed


def test_the_starting_point_is_good() -> None:
    assert load_config(GOOD, environ={}).subscriptions["s"].recovery


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_strange_value_in_any_place_gives_a_configuration_or_readable_problems(
    value: object,
) -> None:
    refused = 0
    for path in places(GOOD):
        text = refusal(with_value(path, value))
        assert not re.search("pydantic|[Ii]nput|Value error|type=", text), path
        refused += bool(text)
    assert refused > 0


def refusal(source: dict[str, Any]) -> str:
    """What is wrong with `source`, "" when nothing is."""
    try:
        load_config(source, environ={})
    except ConfigError as error:
        return str(error)
    return ""
