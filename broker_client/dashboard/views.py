"""The part of a sample that a user may see. Users with the same view share the result."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from broker_client.dashboard.broker_info import BrokerInfo
from broker_client.dashboard.rows import Row
from broker_client.dashboard.sampler import Sample
from broker_client.runtime.pace import as_json, paced

Vhosts = frozenset[str] | None
"""That a user may see; None is all of them."""

_SHARED = 16
_SUMS = ("ready", "unacked", "deferred", "consumers")
_RATES = ("publish", "deliver", "ack")
_VISIBLE_TO_ALL = ("alarm",)


def sees(vhosts: Vhosts, vhost: str) -> bool:
    """May a user who sees `vhosts` see this one?"""
    return vhosts is None or vhost in vhosts


def visible_rows(sample: Sample, vhosts: Vhosts) -> list[Row]:
    """The rows of a sample that the user may see."""
    return [row for (vhost, _), row in sample.rows.items() if sees(vhosts, vhost)]


async def overview_of(sample: Sample, vhosts: Vhosts) -> dict[str, Any]:
    """The page "overview", for one who sees `vhosts`."""
    totals: dict[str, Any] = dict.fromkeys(_SUMS, 0)
    rates = dict.fromkeys(_RATES, 0.0)
    rows = visible_rows(sample, vhosts)
    async for row in paced(rows):
        for name in _SUMS:
            totals[name] += row.get(name, 0)
        for name in _RATES:
            rates[name] += row.get(name, 0)
    totals["queues"] = len(rows)
    overview = sample.overview
    if vhosts is None:
        counted = overview.get("object_totals") or {}
        for name in ("connections", "channels", "exchanges"):
            totals[name] = counted.get(name, 0)
    broker = BrokerInfo.of(overview)
    if not broker.is_ours:
        del totals["deferred"]
    shown: dict[str, Any] = {
        "time": sample.time,
        "sample": sample.number,
        "broker": broker.as_json(),
        "cluster_name": broker.name,
        "node": overview.get("node", ""),
        "totals": totals,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "alarms": [each["alarm"] for each in sample.attention if each["kind"] == "alarm"],
        "attention": [each for each in sample.attention if _concerns(each, vhosts)],
    }
    if vhosts is None and sample.nodes:
        shown["node_state"] = sample.nodes[0]
        shown["nodes"] = list(sample.nodes)
    return shown


def _concerns(finding: Mapping[str, Any], vhosts: Vhosts) -> bool:
    if "vhost" in finding:
        return sees(vhosts, finding["vhost"])
    return vhosts is None or finding["kind"] in _VISIBLE_TO_ALL


async def delta_of(before: Sample | None, sample: Sample, vhosts: Vhosts) -> dict[str, Any]:
    """What has changed since `before` of the queues that the user may see."""
    rows = visible_rows(sample, vhosts)
    if before is None:
        return {"full": True, "queues": rows}
    changed = [
        row async for row in paced(rows) if before.rows.get((row["vhost"], row["name"])) != row
    ]
    gone = [list(key) for key in before.rows.keys() - sample.rows.keys() if sees(vhosts, key[0])]
    return {"full": False, "changed": changed, "gone": gone}


class SharedEvents:
    """The events of a stream, encoded once for all who see the same and have seen the same."""

    def __init__(self) -> None:
        self._encoded: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    async def queues(self, before: Sample | None, sample: Sample, vhosts: Vhosts) -> bytes:
        key = ("queues", before and before.number, sample.number, vhosts)
        if key not in self._encoded:
            self._keep(key, await event("queues", await delta_of(before, sample, vhosts)))
        return self._encoded[key]

    async def overview(self, sample: Sample, vhosts: Vhosts) -> bytes:
        key = ("overview", sample.number, vhosts)
        if key not in self._encoded:
            self._keep(key, await event("overview", await overview_of(sample, vhosts)))
        return self._encoded[key]

    def _keep(self, key: tuple[object, ...], encoded: bytes) -> None:
        self._encoded[key] = encoded
        while len(self._encoded) > _SHARED:
            self._encoded.popitem(last=False)


async def event(name: str, data: Any) -> bytes:
    """One event of a stream (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    return b"event: " + name.encode() + b"\ndata: " + await as_json(data) + b"\n\n"


def small_event(name: str, data: Mapping[str, Any]) -> bytes:
    """The same for what is short."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
