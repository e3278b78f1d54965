"""The schema for editors: up to date, and consistent with the loader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_client.config.loader import load_config
from broker_client.config.schema import config_schema

CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = config_schema()

KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def fits(value: Any, schema: Any) -> bool:
    """Whether `value` is valid under `schema`; knows the keywords that our schema uses."""
    if isinstance(schema, bool):
        return schema
    unknown = schema.keys() - {*CHECKS, "description", "default", "title", "$defs", "$schema"}
    unknown -= {"discriminator", "format", "writeOnly"}
    assert not unknown, f"teach this test the keywords {unknown}"
    return all(CHECKS[key](value, schema) for key in schema.keys() & CHECKS.keys())


def _properties(value: Any, schema: Any) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    return all(fits(each, known.get(key, rest)) for key, each in value.items())


def _type(value: Any, schema: Any) -> bool:
    if isinstance(value, bool) and schema["type"] in ("integer", "number"):
        return False
    return isinstance(value, KINDS[schema["type"]])


CHECKS: dict[str, Any] = {
    "$ref": lambda value, schema: fits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]),
    "type": _type,
    "properties": _properties,
    "additionalProperties": _properties,
    "required": lambda value, schema: (
        not isinstance(value, dict) or set(schema["required"]) <= value.keys()
    ),
    "anyOf": lambda value, schema: any(fits(value, each) for each in schema["anyOf"]),
    "oneOf": lambda value, schema: sum(fits(value, each) for each in schema["oneOf"]) == 1,
    "enum": lambda value, schema: value in schema["enum"],
    "const": lambda value, schema: value == schema["const"],
    "pattern": lambda value, schema: (
        not isinstance(value, str) or re.search(schema["pattern"], value) is not None
    ),
    "items": lambda value, schema: (
        not isinstance(value, list) or all(fits(each, schema["items"]) for each in value)
    ),
    "minItems": lambda value, schema: (
        not isinstance(value, list) or len(value) >= schema["minItems"]
    ),
    "minimum": lambda value, schema: isinstance(value, str) or value >= schema["minimum"],
    "maximum": lambda value, schema: isinstance(value, str) or value <= schema["maximum"],
}


def test_schema_in_the_repository_is_current() -> None:
    stored = json.loads((CONFIG / "schema.json").read_text(encoding="utf-8"))
    assert stored == SCHEMA, "run: python -m broker_client schema > config/schema.json"


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.name)
def test_ready_made_file_fits_the_schema(path: Path) -> None:
    assert fits(yaml.safe_load(path.read_text(encoding="utf-8")), SCHEMA)


GOOD = [
    "vhosts: [/]",
    "vhosts: {/: }",
    "vhosts: {/: {connection: amqp://h}}",
    "vhosts: {/: {connections: [amqp://h, {hostname: h, retry: false, heartbeat: 5s}]}}",
    "vhosts: {/: {exchanges: [e, {name: f, type: x-delayed-message}]}}",
    "vhosts: {/: {queues: {q: , r: {assert: false, options: {message_ttl: 250ms}}}}}",
    "vhosts: {/: {exchanges: [e], queues: [q], bindings: ['e[a, b] -> q', {source: e, "
    "destination: q, binding_key: k}]}}",
    "vhosts: {/: {exchanges: [e], queues: [q], bindings: {b: 'e -> q', 'e[k] -> q': }}}",
    "vhosts: {/: {publish_queue: {max_queued_bytes: 64MiB, policy: reject}}}",
    "vhosts: {/: {queues: [q]}}\nsubscriptions: {s: {queue: q, recovery: [{strategy: ack}], "
    "prefetch: '${PREFETCH:-5}', retry: {max: 5s}}}",
    "vhosts: {/: {queues: [q]}}\nsubscriptions: {s: {queue: q, recovery: r}}\n"
    "recovery: {r: {strategy: republish, defer: 1s}}",
    "vhosts: {/: {queues: [q], publications: {p: {queue: q, encryption: k}}, "
    "subscriptions: {s: {queue: q, encryption: [k], options: {offset: 7d}}}}}\n"
    f"encryption: {{k: {{key: {'ab' * 16}, algorithm: aes-128-cbc}}}}\nshovels: [s -> p]",
    "vhosts: {/: {queues: [q], namespace: true, assert: true, redeliveries: {counters: [memory]}}}"
    "\nredeliveries: {counters: {mine: {type: sqlite, path: c.db}, memory: {size: 5}}}\n"
    "shovels: {x: /q -> /q, y: {subscription: /q, publication: /q}}",
    "vhosts: {/: {connection: {url: amqps://h, management: https://h, frame_max: 64KiB, "
    "tls: {verify_hostname: false}}, namespace: mine, startup: retry}}",
    "vhosts: {/: {connection: {hostname: h, management: {port: 1, timeout: 2s}}}}\n"
    "node: {memory_limit: 1MiB, scan: {interval: 50ms}, event_log: {path: log}}",
    "vhosts: {/: {defaults: {connection: {heartbeat: 5s}, queues: {purge: true}}}}",
    "vhosts: {/: }\nprofile: test\ndefaults: {subscriptions: {prefetch: 3}, "
    "vhosts: {concurrency: 2}}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_loader_takes_fits_the_schema(text: str) -> None:
    value = yaml.safe_load(text)
    assert load_config(value, environ={}).vhosts
    assert fits(value, SCHEMA)


BAD = [
    "vhost: {/: {}}",
    "vhosts: {/: {qeues: []}}",
    "vhosts: {/: {queues: {q: {options: {message_ttl: 10}}}}}",
    "vhosts: {/: {queues: {q: {options: {message_ttl: 10 parsecs}}}}}",
    "vhosts: {/: {exchanges: {e: {type: topics}}}}",
    "vhosts: {/: {exchanges: [e], queues: [q], bindings: ['e q']}}",
    "vhosts: {/: {subscriptions: {s: {prefetch: 5}}}}",
    "vhosts: {/: {queues: {q: {purge: 3.5}}}}",
    "vhosts: {/: {publish_queue: {policy: block}}}",
    "vhosts: {/: {}}\nrecovery: {r: {strategy: republsh}}",
    "vhosts: {/: {}}\nrecovery: {r: {defer: 1s}}",
    "vhosts: {/: {}}\nprofile: tests",
    "vhosts: {/: {connection: {url: amqps://h, tls: {cafil: x}}}}",
    "vhosts: {/: {startup: again}}",
    "vhosts: {/: {}}\nshovels: [a b]",
    "vhosts: {/: {}}\nencryption: {k: {key: ab, algorithm: des}}",
    "vhosts: {/: {}}\nnode: {scan: {interval: 5}}",
    "vhosts: {/: {}}\ndefaults: {queus: {}}",
]


@pytest.mark.parametrize("text", BAD)
def test_what_the_loader_refuses_does_not_fit_the_schema(text: str) -> None:
    value = yaml.safe_load(text)
    with pytest.raises(ValueError, match="configuration: "):
        load_config(value, environ={})
    assert not fits(value, SCHEMA)


def test_defaults_are_shown_as_users_write_them() -> None:
    retry = SCHEMA["$defs"]["RetryConfig"]["properties"]
    assert retry["min"]["default"] == "1s"
    assert SCHEMA["$defs"]["ConnectionConfig"]["properties"]["heartbeat"]["default"] == "10s"


def test_every_key_has_a_description() -> None:
    missing = [
        f"{name}.{key}"
        for name, model in SCHEMA["$defs"].items()
        for key, each in model.get("properties", {}).items()
        if not each.get("description") and "Defaults" not in name and "$ref" not in each
    ]
    assert missing == []
