"""The JSON schema of the YAML, as users write it, for their editors."""

from __future__ import annotations

from typing import Any

from broker_client.config import BrokerConfig
from broker_client.config.expand import PROFILES, ROOT_DEFAULTS, VHOST_DEFAULTS
from broker_client.config.values import DURATION_PATTERN

Schema = dict[str, Any]

_COLLECTIONS = {
    "vhosts": "VhostConfig",
    "exchanges": "ExchangeConfig",
    "queues": "QueueConfig",
    "publications": "PublicationConfig",
    "subscriptions": "SubscriptionConfig",
}
_DEFAULTS = {**_COLLECTIONS, "bindings": "BindingConfig", "connection": "ConnectionConfig"}
_ROOT_ONLY = {
    "shovels": "ShovelConfig",
    "schedules": "ScheduleConfig",
    "encryption": "EncryptionConfig",
}
_STRATEGIES = ("Ack", "Nack", "Republish", "Forward")
_SHOVEL_PATTERN = r"^\s*\S+\s*->\s*\S+\s*$"
_BINDING_PATTERN = r"^\s*[^\s\[\]]+\s*(\[[^\[\]]+\])?\s*->\s*[^\s\[\]]+\s*$"


def config_schema() -> Schema:
    """The schema: every key, short form, unit and default."""
    root = BrokerConfig.model_json_schema()
    defs: Schema = root.pop("$defs")
    defs = {name: _written(each) for name, each in defs.items()}
    root = _written(root)
    _short_forms(root, defs)
    _named_things(root, defs)
    _defaults_sections(root, defs)
    defs["Variable"] = {
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
        "description": "Filled in from the environment.",
    }
    root |= {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "broker_client configuration",
        "required": ["vhosts"],
        "$defs": dict(sorted(defs.items())),
    }
    return dict(sorted(root.items()))


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _written(model: Schema) -> Schema:
    """The schema of a model with its values as they stand in YAML."""
    properties = {key: _value(each) for key, each in model.get("properties", {}).items()}
    written = {**model, "properties": properties}
    written.pop("title", None)
    if written.get("required"):
        # The key of a collection names its entries.
        written["required"] = [key for key in written["required"] if key != "name"]
    if not written.get("required"):
        written.pop("required", None)
    return written


def _value(schema: Schema) -> Schema:
    """The schema of one value: durations with units in the default, and room for ``${NAME}``."""
    value = {key: each for key, each in schema.items() if key != "title"}
    about = {key: value.pop(key) for key in ("description", "default") if key in value}
    alternatives = value.pop("anyOf", None) or [value]
    default = about.get("default")
    if default is None or isinstance(default, dict | list):
        about.pop("default", None)
    elif isinstance(default, int | float) and any(map(_is_duration, alternatives)):
        about["default"] = f"{default:.15g}s"  # never 2.16e+06s, which is not a duration
    alternatives = [each for each in alternatives if each.get("type") != "null"]
    if not all(_takes_any_text(each) for each in alternatives):
        alternatives.append(_ref("Variable"))
    return {**about, **(alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives})}


def _is_duration(schema: Schema) -> bool:
    return schema.get("pattern") == DURATION_PATTERN


def _takes_any_text(schema: Schema) -> bool:
    """True where ``${NAME}`` fits already, or where only a mapping or list makes sense."""
    if "enum" in schema or "const" in schema:
        return "const" in schema
    if schema.get("type") == "string":
        return "pattern" not in schema
    return "$ref" in schema or "oneOf" in schema or schema.get("type") in ("object", "array")


def _collection(name: str, entry: Schema, text: Schema) -> Schema:
    nothing = {"type": "null"}
    by_name = [entry, text, nothing] if name in ("bindings", "shovels") else [entry, nothing]
    return {
        "anyOf": [
            {"type": "object", "additionalProperties": {"anyOf": by_name}},
            {"type": "array", "items": {"anyOf": [text, entry]}},
            nothing,
        ]
    }


def _about(schema: Schema) -> Schema:
    return {"description": schema["description"]}


def _short_forms(root: Schema, defs: Schema) -> None:
    text = {"type": "string"}
    vhost = defs["VhostConfig"]["properties"]
    for name, model in _COLLECTIONS.items():
        found = _collection(name, _ref(model), text)
        if name in root["properties"]:
            root["properties"][name] = {**_about(root["properties"][name]), **found}
        if name in root["properties"] and name != "vhosts":
            vhost[name] = {"description": f"{name.capitalize()} of this vhost by name.", **found}
        elif name in vhost:
            vhost[name] = {**_about(vhost[name]), **found}
    short = {"type": "string", "pattern": _BINDING_PATTERN}
    vhost["bindings"] = {
        **_about(vhost["bindings"]),
        **_collection("bindings", _ref("BindingConfig"), short),
    }
    one = {"anyOf": [text, _ref("ConnectionConfig")]}
    about = _about(vhost["connections"])
    for key in ("connection", "connections"):
        several = {"type": "array", "items": one}
        vhost[key] = {**about, "anyOf": [*one["anyOf"], several]}
    binding = defs["BindingConfig"]
    keys = {"anyOf": [{"type": "array", "items": text, "minItems": 1}, text]}
    binding["properties"]["binding_keys"] |= keys
    binding["properties"]["binding_key"] = {**text, "description": "One more key."}
    binding.pop("required")  # a key or name in short form holds source and destination
    for model in ("ConnectionConfig", "SubscriptionConfig"):
        retry = defs[model]["properties"]["retry"]
        boolean = {"type": "boolean"}
        defs[model]["properties"]["retry"] = {
            **_about(retry),
            "anyOf": [boolean, _ref("RetryConfig"), _ref("Variable")],
        }
    for model in _STRATEGIES:
        defs[model]["required"] = ["strategy", *defs[model].get("required", [])]
    strategy = {"oneOf": [_ref(model) for model in _STRATEGIES]}
    chain = {"anyOf": [strategy, {"type": "array", "items": strategy}]}
    root["properties"]["recovery"] |= {"type": "object", "additionalProperties": chain}
    subscription = defs["SubscriptionConfig"]["properties"]
    recovery = _about(subscription["recovery"])
    subscription["recovery"] = {**recovery, "anyOf": [text, *chain["anyOf"]]}


def _named_things(root: Schema, defs: Schema) -> None:
    """Shovels, schedules, encryption profiles, counters, and where they are referred to by name."""
    text = {"type": "string"}
    short = {"type": "string", "pattern": _SHOVEL_PATTERN}
    for name, model in _ROOT_ONLY.items():
        words = short if name == "shovels" else text
        about = _about(root["properties"][name])
        root["properties"][name] = {**about, **_collection(name, _ref(model), words)}
    defs["ShovelConfig"].pop("required")  # a key or name in short form holds both
    counters = defs["CountersConfig"]["properties"]
    counters["counters"] = {
        **_about(counters["counters"]),
        **_collection("counters", _ref("CounterConfig"), text),
    }
    defs["CounterConfig"].pop("required")  # its name may say the type
    profile = _ref("EncryptionConfig")
    publication = defs["PublicationConfig"]["properties"]
    publication["encryption"] = {**_about(publication["encryption"]), "anyOf": [text, profile]}
    subscription = defs["SubscriptionConfig"]["properties"]
    several = _collection("encryption", profile, text)["anyOf"]
    subscription["encryption"] = {**_about(subscription["encryption"]), "anyOf": [text, *several]}
    connection = defs["ConnectionConfig"]["properties"]
    management = [text, _ref("ManagementConfig")]
    connection["management"] = {**_about(connection["management"]), "anyOf": management}


def _defaults_sections(root: Schema, defs: Schema) -> None:
    about = "Values for everything of a kind that does not state its own."
    for key, model in _DEFAULTS.items():
        partial = {name: each for name, each in defs[model].items() if name != "required"}
        hidden = {"name"} | (
            {*_DEFAULTS, "connections"} - {"connection"} if key == "vhosts" else set()
        )
        partial["properties"] = {
            name: each for name, each in partial["properties"].items() if name not in hidden
        }
        defs[f"{model}Defaults"] = partial

    def sections(keys: tuple[str, ...]) -> Schema:
        found: Schema = {key: _ref(f"{_DEFAULTS[key]}Defaults") for key in keys}
        if "connection" in found:
            found["connection"] = {"anyOf": [{"type": "string"}, found["connection"]]}
        return {
            "type": "object",
            "description": about,
            "additionalProperties": False,
            "properties": found,
        }

    root["properties"]["$schema"] = {
        "type": "string",
        "description": "Where this schema is, for editors of JSON files.",
    }
    root["properties"]["defaults"] = sections(ROOT_DEFAULTS)
    root["properties"]["profile"] = {
        "description": "`test` fits the defaults to a test run.",
        "default": "default",
        "anyOf": [{"enum": list(PROFILES)}, _ref("Variable")],
    }
    defs["VhostConfig"]["properties"]["defaults"] = sections(VHOST_DEFAULTS)
