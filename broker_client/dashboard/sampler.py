"""Samples the broker every few seconds, once for all viewers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from broker_client.dashboard import attention
from broker_client.dashboard.api import (
    Account,
    LoginRefusedError,
    ManagementApi,
    decoded,
    encoded,
)
from broker_client.dashboard.history import SERIES, History, Key
from broker_client.dashboard.news import News
from broker_client.dashboard.refusals import Refusal, unreachable
from broker_client.dashboard.rows import (
    COLUMNS,
    Row,
    dead_letter_exchange,
    dead_letter_key,
    row_of,
)
from broker_client.dashboard.topology import Topology
from broker_client.runtime.pace import paced
from broker_client.runtime.slotted import slotted

log: logging.Logger = logging.getLogger("broker_client.dashboard")

INTERVAL = 5.0  # seconds, as RabbitMQ's collect_statistics_interval
_UNWATCHED = 30.0  # seconds, without viewers
_SPARK = 24
_GROWTH_OVER = 300.0
_TOPOLOGY_KEPT = 60.0
_OVERVIEW = (
    "columns=product_name,product_version,rabbitmq_version,cluster_name,node,object_totals,"
    "broker_client"
)
_NODE = (
    "columns=name,running,mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,"
    "fd_used,fd_total,proc_used,uptime,partitions"
)
_BLOCKED = ("blocked", "blocking")


@slotted
class Sample:
    """What there was at one time, all of it: what a user may not see is left out later."""

    number: int
    time: float
    """Seconds since the epoch."""
    rows: Mapping[Key, Row]
    overview: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]]
    attention: Sequence[attention.Finding]


NOTHING = Sample(0, 0.0, {}, {}, (), ())


@slotted(frozen=False)
class _DeadLetters:
    """Which queues get the dead letters of others, and for how long that is taken to hold."""

    queues: dict[Key, set[Key]] = field(default_factory=dict)
    """With those whose dead letters they get."""
    settings: object = None
    looked_at: float = 0.0


class Sampler:
    """Keeps the latest sample, and the history."""

    def __init__(self, api: ManagementApi, account: Account, news: News) -> None:
        """
        Args:
            api: that is asked.
            account: by whom.
            news: notified of each sample.
        """
        self._api, self._account, self._news = api, account, news
        self.latest: Sample = NOTHING
        self.failure: str = ""
        """Why the latest attempt failed; "" where it went well."""
        self.history: History = History()
        self._past = attention.Past()
        self._dead_letters = _DeadLetters()
        self._watchers = 0
        self._watched_anew = asyncio.Event()

    @property
    def dead_letter_queues(self) -> Mapping[Key, set[Key]]:
        """The queues that get dead letters, with those whose they are."""
        return self._dead_letters.queues

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began = time.monotonic()
            await self._look_or_say_why_not()
            while (left := began + self._interval - time.monotonic()) > 0:
                self._watched_anew.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._watched_anew.wait()
                except TimeoutError:
                    pass

    @property
    def _interval(self) -> float:
        return INTERVAL if self._watchers else _UNWATCHED

    def watch(self) -> None:
        """Count a viewer."""
        self._watchers += 1
        self._watched_anew.set()

    def unwatch(self) -> None:
        """Count one viewer less."""
        self._watchers -= 1

    async def fresh(self) -> Sample:
        """A sample that is not old; waits for the next where need be.

        Raises:
            Refusal: 502, the broker does not answer.
        """
        self.watch()
        try:
            deadline = time.monotonic() + 2 * INTERVAL
            while time.time() - self.latest.time > 2 * INTERVAL:
                if self.failure or time.monotonic() > deadline:
                    raise unreachable(self.failure or "the broker has not answered yet")
                await self._news.wait(1.0)
        finally:
            self.unwatch()
        return self.latest

    async def _look_or_say_why_not(self) -> None:
        try:
            await self.look()
        except LoginRefusedError:
            self._failed(
                "the management API refuses the login with which the dashboard monitors it"
            )
        except Refusal as refusal:
            self._failed(refusal.reason)
        except Exception:
            # One answer that is unlike all others must not end the watch.
            log.exception("polling %s failed", self._api.place)
            self._failed("the dashboard failed: see the log of the server")

    def _failed(self, reason: str) -> None:
        if reason != self.failure:
            log.warning("%s: %s", self._api.place, reason)
        self.failure = reason
        self._news.tell()

    async def look(self) -> None:
        """Look once.

        Raises:
            Refusal: no answer.
            LoginRefusedError: the login is refused.
        """
        overview = await self._api.get("overview", self._account, _OVERVIEW)
        body = await self._api.body("queues", self._account, f"columns={COLUMNS}")
        now = time.time()
        queues = [each async for each in paced_objects(body)]
        rows = {(each["vhost"], each["name"]): row_of(each, now) async for each in paced(queues)}
        await self._find_dead_letters(queues, now)
        await self._remember(rows, now)
        nodes = await self._nodes()
        blocked = await self._blocked()
        alarms = _alarms(overview, nodes)
        growth = {key: self._growth(key, now) for key in self._dead_letters.queues}
        found = await attention.find(list(rows.values()), alarms, blocked, growth, self._past, now)
        if self.failure:
            log.info("%s answers again", self._api.place)
        self.failure = ""
        self.latest = Sample(self.latest.number + 1, now, rows, overview, nodes, found)
        self._news.tell()

    async def _nodes(self) -> list[Mapping[str, Any]]:
        """The nodes; none where the login may not see them."""
        try:
            nodes: list[Mapping[str, Any]] = await self._api.get("nodes", self._account, _NODE)
        except LoginRefusedError:
            return []
        return nodes

    async def _blocked(self) -> list[Mapping[str, Any]]:
        columns = "columns=name,user,vhost,state"
        connections = await self._api.body("connections", self._account, columns)
        return [each async for each in paced_objects(connections) if each.get("state") in _BLOCKED]

    async def _remember(self, rows: Mapping[Key, Row], now: float) -> None:
        sums: dict[str, list[float]] = {}
        async for key, row in paced(list(rows.items())):
            values = [float(row.get(name, 0)) for name in SERIES]
            total = sums.setdefault(key[0], [0.0] * len(SERIES))
            for at, value in enumerate(values):
                total[at] += value
            pair = self.history.put_queue(key, now, values)
            if pair is not None:
                spark = pair.fine.latest(now, _SPARK)
                if any(value != spark[-1] for value in spark if value is not None):
                    row["spark"] = [None if value is None else int(value) for value in spark]
            if key in self._dead_letters.queues:
                row["dead_letter_queue"] = True
        for vhost, total in sums.items():
            self.history.put_vhost(vhost, now, total)
        self.history.forget(set(sums), set(rows))

    def _growth(self, key: Key, now: float) -> float:
        pair = self.history.queue(key)
        return 0.0 if pair is None else pair.fine.growth(now, _GROWTH_OVER)

    # ---------------------------------------------------------------- dead letters

    async def _find_dead_letters(self, queues: Sequence[Mapping[str, Any]], now: float) -> None:
        """Bring up to date which queues get dead letters: at a change, and from time to time."""
        settings = {
            (each["vhost"], each["name"]): (exchange, dead_letter_key(each))
            for each in queues
            if (exchange := dead_letter_exchange(each)) is not None
        }
        known = self._dead_letters
        if settings == known.settings and now - known.looked_at < _TOPOLOGY_KEPT:
            return
        topologies: dict[str, Topology] = {}
        found: dict[Key, set[Key]] = {}
        async for (vhost, name), (exchange, key) in paced(list(settings.items())):
            if vhost not in topologies:
                topologies[vhost] = await self._topology(vhost, queues)
            for target in topologies[vhost].dead_letter_queues(exchange, key):
                found.setdefault((vhost, target), set()).add((vhost, name))
        self._dead_letters = _DeadLetters(found, settings, now)

    async def _topology(self, vhost: str, queues: Sequence[Mapping[str, Any]]) -> Topology:
        names = [each["name"] for each in queues if each["vhost"] == vhost]
        exchanges = await self._api.get(f"exchanges/{encoded(vhost)}", self._account)
        bindings = await self._api.body(f"bindings/{encoded(vhost)}", self._account)
        described = [each async for each in paced_objects(bindings)]
        return await asyncio.to_thread(Topology, exchanges, described, names)


def _alarms(overview: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    found = set(overview.get("broker_client", {}).get("alarms", ()))
    for node in nodes:
        if node.get("mem_alarm"):
            found.add("memory")
        if node.get("disk_free_alarm"):
            found.add("disk")
    return sorted(map(str, found))


async def paced_objects(body: bytes) -> AsyncIterator[Any]:
    """The members of a JSON array, decoded one by one: the broker may share the event loop.

    Raises:
        Refusal: 502, it is not such an array.
    """
    text = body.decode("utf-8", "replace")
    if not text.startswith("["):
        for each in decoded(body):
            yield each
        return
    async for each in paced(_members(text)):
        yield each


def _members(text: str) -> Iterator[Any]:
    """Decodes the members of an array, one after the other."""
    decoder, at = json.JSONDecoder(), 1
    try:
        while True:
            while text[at] in " ,\n\r\t":
                at += 1
            if text[at] == "]":
                return
            value, at = decoder.raw_decode(text, at)
            yield value
    except (IndexError, ValueError, RecursionError):
        reason = "the management API answered with something that is not JSON"
        raise unreachable(reason) from None
