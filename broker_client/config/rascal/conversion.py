"""Converts a configuration of Node's rascal.

What rascal accepts is in its README and schema: camelCase, milliseconds, collections as names,
lists or mappings, connections as URLs or parts. What has no counterpart here becomes a remark that
says why. Where our default is another one that matters (the broker that is connected to, what
becomes of a message whose handler fails), rascal's is written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.config.encryption import EncryptionConfig
from broker_client.config.rascal.collections import (
    bindings,
    chain_from,
    counter,
    entries,
    named_counters,
    shovels,
)
from broker_client.config.rascal.connections import ADDRESS, connection
from broker_client.config.rascal.draft import Draft
from broker_client.config.rascal.rules import (
    BINDING,
    ENCRYPTION,
    EXCHANGE,
    POOL,
    PUBLICATION,
    QUEUE,
    SUBSCRIPTION,
    Kept,
    Rules,
    Without,
    applied,
    section,
    whole,
)

_POOLS: Rules = {
    "regularPool": Kept("regular", section(POOL)),
    "confirmPool": Kept("confirm", section(POOL)),
}
_VHOST: Rules = {
    "namespace": "namespace",
    "concurrency": Kept("concurrency", whole),
    "connectionStrategy": "connection_strategy",
    "assert": "assert",
    "check": "check",
    "publicationChannelPools": Kept("publication_channel_pools", section(_POOLS)),
}
_ENTITIES: Mapping[str, Rules] = {"exchanges": EXCHANGE, "queues": QUEUE, "bindings": BINDING}
_ALGORITHMS = EncryptionConfig.model_json_schema()["properties"]["algorithm"]["enum"]
_ROOT = ("vhosts", "publications", "subscriptions", "shovels", "recovery", "encryption")


def converted(document: Mapping[str, Any]) -> Draft:
    """Convert `document`, a rascal configuration, which may be under the key ``rascal``."""
    inner = document.get("rascal")
    if "vhosts" not in document and isinstance(inner, Mapping):
        document = inner
    return _Conversion(document).result()


class _Conversion:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._root = Draft()
        self._recovery = Draft()
        self._unusable: set[str] = set()  # encryption profiles that were left out

    def result(self) -> Draft:
        document, root = self._document, self._root
        known = {*_ROOT, "redeliveries", "defaults", "$schema"}
        for key in document:
            if key not in known:
                root.note(f"left out: {key}: no such key in rascal")
        encryption = self._encryption(document.get("encryption"))
        for name, chain in entries(document.get("recovery"), self._recovery):
            self._put(self._recovery, name, chain_from(chain, self._recovery))
        defaults = self._defaults(document.get("defaults"))
        vhosts = Draft()
        for name, vhost in entries(document.get("vhosts"), vhosts):
            vhosts[name] = self._vhost(name, vhost)
        root["vhosts"] = vhosts
        for key in ("publications", "subscriptions"):
            self._put(root, key, self._collection(key, document.get(key)))
        self._put(root, "shovels", shovels(document.get("shovels")))
        self._put(root, "recovery", self._recovery)
        self._put(root, "encryption", encryption)
        counters = self._counters(document.get("redeliveries"))
        if counters:
            root["redeliveries"] = Draft({"counters": counters})
        self._put(root, "defaults", defaults)
        return root

    def _put(self, target: Draft, key: str, value: object) -> None:
        if value or getattr(value, "notes", None):
            target[key] = value

    # ------------------------------------------------------------------ vhosts

    def _vhost(self, key: str, value: object) -> Draft:
        vhost, rest = Draft(), dict(value) if isinstance(value, Mapping) else {}
        name = rest.pop("name", key)
        written = [each for each in self._connections(rest, key) if each]
        if name != key:
            vhost.note(f"rascal calls this vhost {name!r} on the broker")
            for each in written:
                if isinstance(each, Draft) and "url" not in each:
                    each.setdefault("vhost", name)
        if len(written) == 1:
            vhost["connection"] = written[0]
        elif written:
            vhost["connections"] = written
        for kind in _ENTITIES:
            self._put(vhost, kind, self._collection(kind, rest.pop(kind, None)))
        for kind in ("publications", "subscriptions"):
            self._put(vhost, kind, self._collection(kind, rest.pop(kind, None)))
        self._put(vhost, "defaults", self._vhost_defaults(rest.pop("defaults", None)))
        return applied(_VHOST, rest, vhost)

    def _connections(self, vhost: dict[str, Any], name: str) -> list[Draft | str]:
        given: list[Any] = []
        for key in ("connections", "connection"):
            value = vhost.pop(key, None)
            given += value if isinstance(value, list) else [value]
        given = [each for index, each in enumerate(given) if each and each not in given[:index]]
        found = [connection(each, name) for each in given or [{}]]
        elsewhere = self._default_address(vhost.get("defaults"))
        for each in found:
            if isinstance(each, Draft) and not elsewhere and not {*each} & {*ADDRESS[:-1]}:
                # Here the built-in broker serves who names none.
                each["hostname"] = "localhost"
        return found

    def _default_address(self, vhost_defaults: object) -> bool:
        """True where a connection without an address gets one from defaults."""
        root = self._document.get("defaults")
        of_vhosts = root.get("vhosts") if isinstance(root, Mapping) else None
        for defaults in (vhost_defaults, of_vhosts):
            found = defaults.get("connection") if isinstance(defaults, Mapping) else None
            if found:
                written = connection(found, "/")
                if isinstance(written, str) or {*written} & {*ADDRESS[:-1]}:
                    return True
        return False

    def _collection(self, kind: str, value: object) -> object:
        if kind == "bindings":
            return bindings(value)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return list(dict.fromkeys(value))
        found = Draft()
        for name, each in entries(value, found):
            found[name] = self._entry(kind, name, each)
        return found

    def _entry(self, kind: str, name: str, value: object) -> Draft | None:
        """One entry of a collection; None where it has no settings."""
        rest = dict(value) if isinstance(value, Mapping) else {}
        found, extra = Draft(), {}
        if kind == "publications":
            extra = {"encryption": Kept("encryption", self._profile)}
        elif kind == "subscriptions":
            self._own_recovery(name, rest, found)
            extra = {"encryption": Kept("encryption", self._profiles)}
        rules = {**_RULES[kind], **extra}
        rest.pop("name", None)
        applied(rules, rest, found)
        return found if found or found.notes else None

    # ------------------------------------------------------------------ recovery

    def _own_recovery(self, name: str, rest: dict[str, Any], found: Draft) -> None:
        """A subscription's own strategies: a chain, or chains by name."""
        value = rest.pop("recovery", None)
        if not value:
            return
        if isinstance(value, Mapping) and "strategy" not in value:
            for key, chain in value.items():
                self._put(self._recovery, f"{name}.{key}", chain_from(chain, found))
                found.note(f"recovery {key!r} is called {name + '.' + key!r} and stands at the end")
            return
        if isinstance(value, str) and value not in self._recovery:
            found.note(f"left out: recovery {value!r}: there is no such chain")
            return
        self._put(found, "recovery", value if isinstance(value, str) else chain_from(value, found))
        if "recovery" in found:
            found.note("recovery is applied here when the handler raises, not only when it asks")

    # ------------------------------------------------------------------ encryption

    def _encryption(self, value: object) -> Draft:
        found = Draft()
        for name, each in entries(value, found):
            try:
                found[name] = self._inline(each)
                found[name].pop("name", None)
            except Without as reason:
                self._unusable.add(name)
                found.note(f"left out: {name}: {reason}")
        return found

    def _inline(self, value: object) -> Draft:
        profile = applied(ENCRYPTION, value, Draft())
        if profile.get("algorithm") not in _ALGORITHMS:
            raise Without(f"no such algorithm here; there are {', '.join(_ALGORITHMS)}")
        return profile

    def _profile(self, value: object) -> object:
        if not isinstance(value, str):
            return self._inline(value)
        if value in self._unusable:
            raise Without("its profile was left out")
        return value

    def _profiles(self, value: object) -> object:
        if isinstance(value, str):
            return self._profile(value)
        found = Draft()
        for name, each in entries(value, found):
            found[name] = self._inline(each)
            found[name].pop("name", None)
        return found

    # ------------------------------------------------------------------ counters

    def _counters(self, value: object) -> Draft:
        found = Draft()
        declared = value.get("counters") if isinstance(value, Mapping) else None
        for name, each in entries(declared, found):
            given = dict(each) if isinstance(each, Mapping) else {}
            found[name] = counter(str(given.pop("type", None) or name), given)
        for name in named_counters(self._root):
            if name in ("inMemory", "inMemoryCluster") and name not in found:
                found[name] = counter(name, {})
        if [*found] == ["stub"]:
            del found["stub"]  # there without being declared
        return found

    # ------------------------------------------------------------------ defaults

    def _defaults(self, value: object) -> Draft:
        found = Draft()
        rest = dict(value) if isinstance(value, Mapping) else {}
        given = rest.pop("vhosts", None)
        vhosts = dict(given) if isinstance(given, Mapping) else {}
        own = self._vhost_defaults({key: vhosts.pop(key, None) for key in [*_ENTITIES]})
        settings = applied(_VHOST, {k: v for k, v in vhosts.items() if k != "connection"}, Draft())
        if vhosts.get("connection"):
            settings["connection"] = connection(vhosts["connection"], "/")
        self._put(found, "vhosts", settings)
        found.update(own)
        for kind in ("publications", "subscriptions"):
            self._put(found, kind, self._entry(kind, "", rest.pop(kind, None)))
        subscriptions = found.setdefault("subscriptions", Draft())
        if "recovery" not in subscriptions:
            subscriptions.note("in rascal a message that fails is nacked by default")
            subscriptions["recovery"] = [Draft({"strategy": "nack"})]
        for key in rest:
            found.note(f"left out: {key}: no defaults of this kind")
        return found

    def _vhost_defaults(self, value: object) -> Draft:
        found = Draft()
        if not isinstance(value, Mapping):
            return found
        for key, each in value.items():
            if each and key == "connection":
                found[key] = connection(each, "/")
            elif each and key in _ENTITIES:
                self._put(found, key, self._entry(key, "", each))
            elif each:
                found.note(f"left out: {key}: no defaults of this kind for a vhost")
        return found


_RULES: Mapping[str, Rules] = {
    **_ENTITIES,
    "publications": PUBLICATION,
    "subscriptions": SUBSCRIPTION,
}
