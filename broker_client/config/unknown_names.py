"""Finds references to unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_client.config.consuming import BUILT_IN_COUNTERS
from broker_client.config.problems import Key, hint
from broker_client.config.recovery import Forward
from broker_client.config.tree import Items, Section, locate
from broker_client.errors import Problem


def unknown_names(root: Section) -> list[Problem]:
    """A problem for each reference in the long form `root` to what is not declared.

    It reads the sections and not the models, so that one wrong value elsewhere does not hide
    what is wrong here. Values of a wrong type are left to the models.
    """
    return list(_Names(root).problems())


class _Names:
    def __init__(self, root: Section) -> None:
        self._root = root
        self._vhosts: Section = root["vhosts"]

    def problems(self) -> Iterator[Problem]:
        for name, vhost in self._vhosts.items():
            yield from self._bindings(name, vhost)
        yield from self._publications()
        yield from self._subscriptions()
        yield from self._shovels()
        yield from self._schedules()
        yield from self._forwards()

    def _check(
        self, path: tuple[Key, ...], kind: str, name: object, known: Iterable[str]
    ) -> Iterator[Problem]:
        names = list(known)
        if isinstance(name, str) and name not in names:
            shown, line = locate(self._root, path)
            yield Problem(shown, f"unknown {kind} {name!r}" + hint(name, names), line=line)

    def _bindings(self, vhost_name: str, vhost: Section) -> Iterator[Problem]:
        for index, binding in enumerate(vhost["bindings"]):
            path: tuple[Key, ...] = ("vhosts", vhost_name, "bindings", index)
            exchanges = vhost["exchanges"]
            yield from self._check((*path, "source"), "exchange", binding.get("source"), exchanges)
            kind = binding.get("destination_type") or "queue"
            known = exchanges if kind == "exchange" else vhost["queues"]
            yield from self._check((*path, "destination"), kind, binding.get("destination"), known)

    def _publications(self) -> Iterator[Problem]:
        for name, publication in self._root["publications"].items():
            path = ("publications", name)
            vhost_name = publication.get("vhost") or "/"
            yield from self._check((*path, "vhost"), "vhost", vhost_name, self._vhosts)
            vhost = self._vhosts.get(vhost_name) if isinstance(vhost_name, str) else None
            if vhost is None:
                continue
            exchanges = ["", *vhost["exchanges"]]
            yield from self._check(
                (*path, "exchange"), "exchange", publication.get("exchange"), exchanges
            )
            yield from self._check(
                (*path, "queue"), "queue", publication.get("queue"), vhost["queues"]
            )
            yield from self._check(
                (*path, "reply_to"), "reply queue", publication.get("reply_to"), vhost["queues"]
            )

    def _subscriptions(self) -> Iterator[Problem]:
        for name, subscription in self._root["subscriptions"].items():
            path = ("subscriptions", name)
            vhost_name = subscription.get("vhost") or "/"
            yield from self._check((*path, "vhost"), "vhost", vhost_name, self._vhosts)
            vhost = self._vhosts.get(vhost_name) if isinstance(vhost_name, str) else None
            if vhost is None:
                continue
            yield from self._check(
                (*path, "queue"), "queue", subscription.get("queue"), vhost["queues"]
            )
            redeliveries = subscription.get("redeliveries")
            if isinstance(redeliveries, Section):
                known = dict.fromkeys(
                    [*_counters(vhost), *_counters(self._root), *BUILT_IN_COUNTERS]
                )
                counter = redeliveries.get("counter")
                yield from self._check(
                    (*path, "redeliveries", "counter"), "counter", counter, known
                )

    def _shovels(self) -> Iterator[Problem]:
        implied = {
            "publication": list(self._implied_publications()),
            "subscription": [
                _prefix(name) + queue
                for name, vhost in self._vhosts.items()
                for queue in vhost["queues"]
            ],
        }
        for name, shovel in (self._root.get("shovels") or Section()).items():
            for kind, more in implied.items():
                target = shovel.get(kind)
                if target not in more:
                    path = ("shovels", name, kind)
                    yield from self._check(path, kind, target, self._root[f"{kind}s"])

    def _schedules(self) -> Iterator[Problem]:
        implied = list(self._implied_publications())
        for name, schedule in (self._root.get("schedules") or Section()).items():
            target = schedule.get("publication")
            if target not in implied:
                path = ("schedules", name, "publication")
                yield from self._check(path, "publication", target, self._root["publications"])

    def _forwards(self) -> Iterator[Problem]:
        known = [*self._root["publications"], *self._implied_publications()]
        chains: list[tuple[tuple[Key, ...], object]] = []
        recovery = self._root.get("recovery")
        if isinstance(recovery, Section):
            chains += [(("recovery", name), chain) for name, chain in recovery.items()]
        for name, subscription in self._root["subscriptions"].items():
            chains.append((("subscriptions", name, "recovery"), subscription.get("recovery")))
        for path, chain in chains:
            for index, strategy in enumerate(chain if isinstance(chain, Items) else ()):
                target: object = None
                if isinstance(strategy, Forward):
                    target = strategy.publication
                elif isinstance(strategy, Section) and strategy.get("strategy") == "forward":
                    target = strategy.get("publication")
                if target in known:
                    continue
                declared = self._root["publications"]
                yield from self._check(
                    (*path, index, "publication"), "publication", target, declared
                )

    def _implied_publications(self) -> Iterator[str]:
        """What `BrokerConfig.find_publication` finds without a declaration."""
        for name, vhost in self._vhosts.items():
            prefix = _prefix(name)
            for entity in ("", *vhost["exchanges"], *vhost["queues"]):
                yield prefix + entity


def _prefix(vhost: str) -> str:
    return "/" if vhost == "/" else f"{vhost}/"


def _counters(parent: Section) -> list[str]:
    redeliveries = parent.get("redeliveries")
    found = redeliveries.get("counters") if isinstance(redeliveries, Section) else None
    return list(found) if isinstance(found, Section) else []
