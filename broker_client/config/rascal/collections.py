"""Collections of a rascal configuration: bindings, shovels, recovery chains, counters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from broker_client.config.rascal.draft import Draft
from broker_client.config.rascal.rules import (
    BINDING,
    STRATEGIES,
    Dropped,
    Kept,
    Rules,
    applied,
    whole,
)
from broker_client.config.shorthand import parse_binding

_COUNTERS = {"stub": "stub", "inMemory": "memory", "inMemoryCluster": "memory"}


def entries(value: object, notes: Draft) -> Iterator[tuple[str, Any]]:
    """(name, settings) of a collection in any of rascal's forms."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        for number, each in enumerate(value, 1):
            if isinstance(each, str):
                yield each, None
            elif isinstance(each, Mapping):
                name = each.get("name")
                if not name:
                    name = f"unnamed-{number}"
                    notes.note(f"{name}: rascal makes up a name at each start")
                yield str(name), each
    elif value is not None:
        notes.note("a list or a mapping was expected here: left out")


# Rascal looks for this anywhere in the name of a binding.
_ANYWHERE = re.compile(r"([\w:.\-]+)\s*(?:\[\s*(.*)\s*\])?\s*->\s*([\w:.\-]+)")


def bindings(value: object) -> object:
    """Bindings in the form they have: names, a list or a mapping."""
    if isinstance(value, list):
        listed = [
            _binding(each, each.get("name") if isinstance(each, Mapping) else None)
            for each in value
        ]
        return [each for index, each in enumerate(listed) if each not in listed[:index]]
    found = Draft()
    for name, each in entries(value, found):
        entry = _binding(each or {}, name)
        key = str(entry.pop("name", name)) if isinstance(entry, Draft) else name
        found[key] = entry or None
    return found


def _binding(value: object, name: object) -> Draft | str:
    if isinstance(value, str):
        name, value = value, {}
    rest = dict(value) if isinstance(value, Mapping) else value
    if isinstance(rest, dict):
        rest.pop("name", None)
    found = Draft()
    if name:
        found["name"] = str(name)
    applied(BINDING, rest, found)
    if "->" in str(name):
        try:
            parse_binding(str(name))
        except ValueError:
            _take_apart(str(name), found)
    return found["name"] if [*found] == ["name"] and not found.notes else found


def _take_apart(name: str, found: Draft) -> None:
    """Say in full what rascal finds in a name that is more than a binding."""
    found["name"] = name.replace("->", "to")
    match = _ANYWHERE.search(name)
    if match is None:
        return
    found.setdefault("source", match[1])
    found.setdefault("destination", match[3])
    keys = [key for key in re.split(r"[,\s]+", match[2] or "") if key]
    if keys:
        found["binding_keys"] = list(dict.fromkeys([*found.get("binding_keys", []), *keys]))


def shovels(value: object) -> object:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    found = Draft()
    rules: Rules = {"subscription": "subscription", "publication": "publication"}
    for name, each in entries(value, found):
        rest = {key: item for key, item in (each or {}).items() if key != "name"}
        found[name] = applied(rules, rest, Draft()) or None
    return found


def chain_from(value: object, notes: Draft) -> list[Draft]:
    """A chain without the strategies that are not there."""
    found = []
    for each in value if isinstance(value, list) else [value]:
        name = str(each.get("strategy")) if isinstance(each, Mapping) else ""
        if name not in STRATEGIES:
            notes.note(f"left out: strategy {name!r}: no such strategy")
            continue
        strategy = applied(STRATEGIES[name], each, Draft())
        options = strategy.get("options")
        if isinstance(options, Draft):
            for key in ("routing_key", "restore_routing_headers"):
                if key in options:
                    strategy.setdefault(key, options.pop(key))
            if not options and not options.notes:
                del strategy["options"]
        found.append(strategy)
    return found


def counter(kind: str, settings: dict[str, Any]) -> Draft:
    settings.pop("name", None)
    written = _COUNTERS.get(kind)
    if written is None:
        found = Draft({"type": "custom"})
        found.note(f"{kind} is given to Broker.create as a counter of this name")
        if settings:
            found["options"] = settings
        return found
    found = Draft({"type": written})
    if kind == "inMemoryCluster":
        found.note("each process counts for itself; `redis` or `sqlite` is shared")
    rules: Rules = {"timeout": Dropped("the subscription has one")}
    if written == "memory":
        rules = {**rules, "size": Kept("size", whole)}
    return applied(rules, settings, found)


def named_counters(value: object) -> Iterator[str]:
    """Every counter that a subscription of the result names."""
    if isinstance(value, list):
        for each in value:
            yield from named_counters(each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if key == "counter" and isinstance(each, str):
                yield each
            else:
                yield from named_counters(each)
