"""Where a message would go, and the drawing of a vhost."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_client.core.access import DEFAULT_EXCHANGE
from broker_client.dashboard.api import encoded
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.refusals import Refusal, bad_request, not_found
from broker_client.dashboard.requests import text
from broker_client.dashboard.rows import dead_letter_exchange, dead_letter_key
from broker_client.dashboard.sampler import paced_objects
from broker_client.dashboard.topology import Topology, drawing_of

answers: Answers = Answers()

_QUEUE = (
    "columns=name,type,messages_ready,consumers,arguments.x-dead-letter-exchange,"
    "arguments.x-dead-letter-routing-key,effective_policy_definition"
)
_MOST_NODES = 2000


@answers.on("GET", "/ui/exchanges/{vhost}/{exchange}")
async def describe_exchange(ask: Ask) -> Any:
    """An exchange, and what is bound to it."""
    vhost, name = ask.name("vhost"), ask.name("exchange")
    path = f"exchanges/{encoded(vhost)}/{encoded(name)}"
    is_default = name == DEFAULT_EXCHANGE
    return {
        "exchange": await ask.get(path),
        "bindings": [] if is_default else await ask.get(f"{path}/bindings/source"),
        "lacking": (await ask.rights()).lacking_for_exchange(vhost, name),
    }


@answers.on("POST", "/ui/routes")
async def routes(ask: Ask) -> Any:
    """Where a message with this key would go."""
    data = await ask.json()
    vhost, exchange = text(data, "vhost"), text(data, "exchange", "")
    exchange = "" if exchange == DEFAULT_EXCHANGE else exchange
    headers = data.get("headers") or {}
    if not isinstance(headers, dict):
        raise bad_request("headers must be an object")
    topology, _ = await _topology(ask, vhost)
    if exchange and exchange not in topology.exchanges:
        raise not_found()
    routed = topology.route(exchange, text(data, "routing_key", ""), headers)
    told: dict[str, Any] = {
        "queues": [
            {"name": name, "via": [list(step) for step in via]}
            for name, via in sorted(routed.queues.items())
        ],
        "unrouted": not routed.queues,
    }
    if routed.alternate is not None:
        told["alternate"] = routed.alternate
    return told


@answers.on("GET", "/ui/topology")
async def topology(ask: Ask) -> Any:
    """Exchanges, queues and consumers of a vhost, and what leads where."""
    vhost = ask.request.query_params.get("vhost")
    if vhost is None:
        raise bad_request("vhost must be given")
    found, queues = await _topology(ask, vhost)
    if len(found.exchanges) + len(queues) > _MOST_NODES:
        reason = f"{len(queues):,} queues are too many to draw"
        raise Refusal(409, "too_many", reason)
    dead = {
        each["name"]: (to, dead_letter_key(each))
        for each in queues
        if (to := dead_letter_exchange(each)) is not None
    }
    return await asyncio.to_thread(drawing_of, found, queues, dead)


async def _topology(ask: Ask, vhost: str) -> tuple[Topology, list[Any]]:
    api, account = ask.dashboard.api, ask.session.account
    queues = [
        each
        async for each in paced_objects(await api.body(f"queues/{encoded(vhost)}", account, _QUEUE))
    ]
    exchanges = await ask.get(f"exchanges/{encoded(vhost)}")
    bindings = await api.body(f"bindings/{encoded(vhost)}", account)
    names = [each["name"] for each in queues]
    described = [each async for each in paced_objects(bindings)]
    # In a thread: it is made in one step, and the broker may share the event loop.
    return await asyncio.to_thread(Topology, exchanges, described, names), queues
