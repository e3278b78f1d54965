"""Expands the short forms of a configuration to the models' form.

Short forms become long ones, the layers of defaults are filled in (value, then the vhost's
``defaults``, then the root's, then the profile's; the models add the built-in ones), publications
and subscriptions of vhosts move to the root, names of recovery chains become the chains, and names
of encryption profiles the profiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_client.config.problems import hint, unknown_key
from broker_client.config.recovery import STRATEGIES
from broker_client.config.shorthand import binding_section, collection
from broker_client.config.tree import Items, Section, Spot, joined, merged, stated
from broker_client.config.url import parse_url
from broker_client.config.url_query import connection_keys
from broker_client.errors import Problem

ENTITIES = ("exchanges", "queues", "bindings")
HOISTED = ("publications", "subscriptions")
BY_NAME = ("shovels", "schedules", "encryption")
ROOT_DEFAULTS = ("vhosts", *ENTITIES, *HOISTED)
VHOST_DEFAULTS = ("connection", *ENTITIES, *HOISTED)

PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "test": {
        "vhosts": {"connection": {"heartbeat": "50s"}, "namespace": True},
        # RabbitMQ 4 deprecates transient queues that are not exclusive, and can be configured to
        # refuse them, so the queues of a test run are durable and expire.
        "exchanges": {"options": {"auto_delete": True}},  # go with the last queue bound to them
        "queues": {"purge": True, "options": {"expires": "10m"}},
        "publications": {"options": {"persistent": False}},
        "subscriptions": {"close_timeout": "500ms"},
    },
}

_ADDRESS = ("url", "scheme", "hostname", "port", "user", "password", "vhost")


class Expanded(NamedTuple):
    """The long form of a configuration."""

    root: Section
    """Ready for `BrokerConfig`."""
    implied: dict[str, tuple[Section, Section]]
    """Of each vhost, what the layers say of a publication and a subscription without settings."""


def expand(tree: Section, problems: list[Problem]) -> Expanded:
    """The long form of `tree`; what is wrong is added to `problems`."""
    return _Expansion(tree, problems).expanded()


class _Layer:
    """One layer of defaults: its sections and the printed path they stand under."""

    def __init__(self, content: Section, path: str) -> None:
        self._content, self._path = content, path

    def fill(self, kind: str, value: Section) -> Section:
        """`value`, one of `kind`, with what this layer adds to it."""
        defaults, path = self._content.get(kind), joined(self._path, kind)
        if kind == "connection" and defaults is None:
            vhosts = self._content.get("vhosts")
            if isinstance(vhosts, Section):
                defaults, path = vhosts.get(kind), joined(joined(self._path, "vhosts"), kind)
        if kind == "connection":
            defaults = connection_section(defaults, Spot())
        if not isinstance(defaults, Section):
            return value
        return merged(value, _fitting(kind, value, defaults), path)


def _filled(layers: list[_Layer], kind: str, value: Section) -> Section:
    for layer in layers:
        value = layer.fill(kind, value)
    return value


def _fitting(kind: str, value: Section, defaults: Section) -> Section:
    """`defaults` without what would contradict `value` instead of completing it."""
    skipped: set[str] = set()
    if kind == "publications" and {"exchange", "queue"} & stated(value):
        skipped = {"exchange", "queue"}
    elif kind == "connection" and set(_ADDRESS) & stated(value):
        skipped = set(_ADDRESS) if _is_encrypted(value) else {*_ADDRESS, "tls"}
        skipped |= _in_query(value)
        if _names_a_password(value):
            skipped |= {"user_file", "password_file", "credentials", "refresh_credentials"}
    elif kind == "subscriptions" and _takes_no_ack(value):
        skipped = {"recovery"}
    elif kind == "vhosts":
        skipped = {"connection", "connections"}  # filled in one connection at a time
    elif kind == "bindings":
        defaults, _ = binding_section(defaults, "", Spot())
        skipped = {"name"}
    elif kind == "queues" and _is_stream(value):
        # RabbitMQ: a stream can neither be purged nor expire.
        skipped = {"purge", "options"}
    kept = Section(defaults)
    for key in skipped:
        kept.pop(key, None)
    return kept


def _is_stream(queue: Section) -> bool:
    options = queue.get("options")
    arguments = options.get("arguments") if isinstance(options, Section) else None
    return isinstance(arguments, Section) and arguments.get("x-queue-type") == "stream"


def _takes_no_ack(subscription: Section) -> bool:
    options = subscription.get("options")
    return isinstance(options, Section) and options.get("no_ack") is True


def _is_encrypted(connection: Section) -> bool:
    return str(connection.get("url") or connection.get("scheme")).lower().startswith("amqps")


def _in_query(connection: Section) -> set[str]:
    """The keys that the query of the URL stands for."""
    try:
        parts = parse_url(str(connection.get("url")))
        return set(connection_keys(parts.query, parts.scheme))
    except ValueError:
        return set()  # the model says what is wrong


def _names_a_password(connection: Section) -> bool:
    userinfo = str(connection.get("url")).rpartition("@")[0].rpartition("/")[2]
    return ":" in userinfo or connection.get("password") is not None


def connection_section(value: object, spot: Spot) -> object:
    """A connection given as a URL, as a mapping."""
    if not isinstance(value, str):
        return value
    section = Section()
    section.put("url", value, spot)
    return section


def _section(value: dict[str, Any]) -> Section:
    return Section(
        {key: _section(each) if isinstance(each, dict) else each for key, each in value.items()}
    )


def _without(section: Section, *keys: str) -> Section:
    kept = Section(section)
    for key in keys:
        kept.pop(key, None)
    return kept


def _chain(value: object, path: str) -> object:
    """A chain of one strategy may leave out the list."""
    if isinstance(value, list):
        return value
    items = Items()
    items.add(value, Spot(path=path))
    return items


class _Expansion:
    def __init__(self, tree: Section, problems: list[Problem]) -> None:
        self._tree = tree
        self._problems = problems
        self._layers = self._root_layers()
        self._profiles = Section()

    def expanded(self) -> Expanded:
        result = _without(self._tree, "defaults", "profile", "$schema")
        vhosts = collection(self._tree, "vhosts", "", self._problems)
        recovery = self._recovery(result)
        for kind in BY_NAME:
            if kind in self._tree:
                found = collection(self._tree, kind, "", self._problems)
                result.put(kind, found, self._tree.spot(kind))
        self._counters(result, "")
        self._profiles = result.get("encryption") or Section()
        hoisted = {kind: collection(self._tree, kind, "", self._problems) for kind in HOISTED}
        layers_of = {name: self._vhost_layers(name, vhost) for name, vhost in vhosts.items()}
        done = Section()
        for name, vhost in vhosts.items():
            for kind in HOISTED:
                self._hoist(kind, name, vhost, hoisted[kind])
            done.put(name, self._vhost(name, vhost, layers_of[name]), vhosts.spot(name))
        result.put("vhosts", done, self._tree.spot("vhosts"))
        for kind, found in hoisted.items():
            filled = Section()
            for name, entry in found.items():
                layers = layers_of.get(str(entry.get("vhost") or "/"), self._layers)
                filled.put(name, _filled(layers, kind, entry), found.spot(name))
            result.put(kind, filled, self._tree.spot(kind))
        for name, entry in result["subscriptions"].items():
            self._resolve_recovery(name, entry, recovery, result["subscriptions"].spot(name))
            self._resolve_profiles(name, entry, result["subscriptions"].spot(name))
        for name, entry in result["publications"].items():
            self._resolve_profile(name, entry, result["publications"].spot(name))
        implied = {
            name: self._implied(name, layers, recovery) for name, layers in layers_of.items()
        }
        return Expanded(result, implied)

    def _implied(
        self, vhost: str, layers: list[_Layer], recovery: Section
    ) -> tuple[Section, Section]:
        bare = {"name": "", "vhost": vhost}
        publication = _filled(layers, "publications", Section({**bare, "exchange": ""}))
        subscription = _filled(layers, "subscriptions", Section({**bare, "queue": ""}))
        self._resolve_recovery("", subscription, recovery, Spot())
        self._resolve_profiles("", subscription, Spot())
        self._resolve_profile("", publication, Spot())
        return publication, subscription

    # ------------------------------------------------------------------ layers

    def _root_layers(self) -> list[_Layer]:
        layers = [_Layer(self._defaults_of(self._tree, "", ROOT_DEFAULTS), "defaults")]
        profile, spot = self._tree.get("profile") or "default", self._tree.spot("profile")
        if str(profile) not in PROFILES:
            message = f"unknown profile {profile!r}" + hint(str(profile), list(PROFILES))
            self._problems.append(Problem("profile", message, line=spot.line))
        else:
            layers.append(_Layer(_section(PROFILES[profile]), f"profile {profile}"))
        return layers

    def _vhost_layers(self, name: str, vhost: Section) -> list[_Layer]:
        path = joined("vhosts", name)
        own = self._defaults_of(vhost, path, VHOST_DEFAULTS)
        return [_Layer(own, joined(path, "defaults")), *self._layers]

    def _defaults_of(self, parent: Section, path: str, allowed: tuple[str, ...]) -> Section:
        value, spot = parent.get("defaults"), parent.spot("defaults")
        place = joined(path, "defaults")
        if value is None:
            return Section()
        if not isinstance(value, Section):
            self._problems.append(Problem(place, "must be a mapping", line=spot.line))
            return Section()
        for key, each in value.items():
            line = value.spot(key).line or spot.line
            if key not in allowed:
                message = unknown_key(key, allowed)
                self._problems.append(Problem(joined(place, key), message, line=line))
            elif not isinstance(each, Section) and key != "connection":
                self._problems.append(Problem(joined(place, key), "must be a mapping", line=line))
        defaults: Section = value
        return defaults

    # ------------------------------------------------------------------ vhosts

    def _vhost(self, name: str, vhost: Section, layers: list[_Layer]) -> Section:
        path = joined("vhosts", name)
        own = _without(vhost, "defaults", "connection", "connections", *ENTITIES, *HOISTED)
        filled = _filled(layers, "vhosts", own)
        spot = vhost.spot("connection" if "connection" in vhost else "connections")
        filled.put("connections", self._connections(vhost, path, layers), spot)
        for kind in ENTITIES:
            found = collection(vhost, kind, path, self._problems)
            entries = Section()
            for key, entry in found.items():
                entries.put(key, _filled(layers, kind, entry), found.spot(key))
            filled.put(kind, entries, vhost.spot(kind))
        bindings = Items()
        for key, entry in filled["bindings"].items():
            bindings.add(entry, filled["bindings"].spot(key))
        filled.put("bindings", bindings, vhost.spot("bindings"))
        self._counters(filled, path)
        return filled

    def _connections(self, vhost: Section, path: str, layers: list[_Layer]) -> Items:
        written: list[tuple[object, Spot]] = []
        for key in ("connection", "connections"):
            value, spot, place = vhost.get(key), vhost.spot(key), joined(path, key)
            if isinstance(value, Items):
                for index, each in enumerate(value):
                    written.append((each, value.spots[index]._replace(path=joined(place, index))))
            elif value is not None:
                written.append((value, spot._replace(path=place)))
        if not written:
            written.append((Section(), Spot(path=joined(path, "connection"))))
        result, seen = Items(), list[object]()
        for value, spot in written:
            if value in seen:
                continue
            seen.append(value)
            section = connection_section(value, spot)
            if isinstance(section, Section):
                section = _filled(layers, "connection", section)
            result.add(section, spot)
        return result

    # ------------------------------------------------------------------ publications, recovery

    def _hoist(self, kind: str, vhost_name: str, vhost: Section, target: Section) -> None:
        path = joined("vhosts", vhost_name)
        found = collection(vhost, kind, path, self._problems)
        for name, entry in found.items():
            spot = found.spot(name)
            claimed = entry.get("vhost") or vhost_name
            if claimed != vhost_name:
                message = f"stands in vhost {vhost_name!r} but names vhost {claimed!r}"
                self._problems.append(Problem(f"{spot.path}.vhost", message, line=spot.line))
            if name in target:
                singular = kind.removesuffix("s")
                message = f"duplicate {singular} {name!r}, declared in another place already"
                self._problems.append(Problem(str(spot.path), message, line=spot.line))
                continue
            entry.put("vhost", vhost_name, entry.spot("vhost"))
            target.put(name, entry, spot)

    def _recovery(self, root: Section) -> Section:
        """The named chains, each as a list, also put into `root`."""
        value, spot = root.get("recovery"), root.spot("recovery")
        chains = Section()
        if isinstance(value, Section):
            for name, chain in value.items():
                path = joined("recovery", name)
                chains.put(name, _chain(chain, path), value.spot(name)._replace(path=path))
            root.put("recovery", chains, spot)
        return chains

    def _resolve_recovery(self, name: str, entry: Section, chains: Section, at: Spot) -> None:
        value, spot = entry.get("recovery"), entry.spot("recovery")
        path = spot.path or joined(at.path or joined("subscriptions", name), "recovery")
        if not isinstance(value, str):
            if value is not None:
                entry.put("recovery", _chain(value, path), spot._replace(path=path))
            return
        if value in chains:
            entry.put("recovery", chains[value], chains.spot(value))
            return
        del entry["recovery"]
        message = f"unknown recovery {value!r}" + (
            f"; for the strategy write {{strategy: {value}}}"
            if value in STRATEGIES
            else hint(value, list(chains))
        )
        self._problems.append(Problem(path, message, line=spot.line or at.line))

    # ------------------------------------------------------------------ counters, encryption

    def _counters(self, parent: Section, path: str) -> None:
        """Counters by name, in every spelling of a collection."""
        value, spot = parent.get("redeliveries"), parent.spot("redeliveries")
        if isinstance(value, Section) and value.get("counters") is not None:
            place = spot.path or joined(path, "redeliveries")
            written = Section(value)
            found = collection(value, "counters", place, self._problems)
            written.put("counters", found, value.spot("counters"))
            parent.put("redeliveries", written, spot)

    def _resolve_profile(self, name: str, entry: Section, at: Spot) -> None:
        value, spot = entry.get("encryption"), entry.spot("encryption")
        if isinstance(value, str):
            path = spot.path or joined(at.path or joined("publications", name), "encryption")
            self._put_profile(entry, "encryption", value, spot._replace(path=path))

    def _resolve_profiles(self, name: str, entry: Section, at: Spot) -> None:
        value, spot = entry.get("encryption"), entry.spot("encryption")
        if value is None:
            return
        place = at.path or joined("subscriptions", name)
        if isinstance(value, str):
            one = Items()
            one.add(value, spot._replace(path=spot.path or joined(place, "encryption")))
            entry.put("encryption", one, spot)
        found = collection(entry, "encryption", place, self._problems)
        for key, profile in list(found.items()):
            if stated(profile) == {"name"}:
                self._put_profile(found, key, key, found.spot(key))
        entry.put("encryption", found, spot)

    def _put_profile(self, target: Section, key: str, name: str, spot: Spot) -> None:
        if name in self._profiles:
            target.put(key, self._profiles[name], self._profiles.spot(name))
            return
        del target[key]
        message = f"unknown encryption profile {name!r}" + hint(name, list(self._profiles))
        self._problems.append(Problem(spot.path or key, message, line=spot.line))
