"""Dead letters of all queues, grouped by queue, reason and error."""

from __future__ import annotations

from typing import Any

from broker_client.dashboard.api import LoginRefusedError
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.queue_answers import peek_messages
from broker_client.dashboard.refusals import Refusal, bad_request
from broker_client.dashboard.requests import number
from broker_client.dashboard.views import sees
from broker_client.runtime.pace import paced

answers: Answers = Answers()

_MOST_LOOKED_AT = 1000
_MOST_QUEUES = 50
_SHOWN_BYTES = 4096
_GROWTH_OVER = 300.0


@answers.on("GET", "/ui/dead-letters")
async def dead_letter_queues(ask: Ask) -> Any:
    """The queues that get the dead letters of others."""
    vhosts, rights = await ask.dashboard.vhosts_of(ask.session), await ask.rights()
    sampler = ask.dashboard.sampler
    sample = await sampler.fresh()
    queues = []
    for (vhost, name), sources in sorted(sampler.dead_letter_queues.items()):
        if not sees(vhosts, vhost):
            continue
        row = sample.rows.get((vhost, name), {})
        pair = sampler.history.queue((vhost, name))
        growth = 0.0 if pair is None else pair.fine.growth(sample.time, _GROWTH_OVER)
        queues.append(
            {
                "vhost": vhost,
                "name": name,
                "ready": row.get("ready", 0),
                "growing": round(growth / _GROWTH_OVER, 3),
                "from": sorted(list(source) for source in sources),
                "lacking": rights.lacking_for_queue(vhost, name),
            }
        )
    return {"queues": queues}


@answers.on("POST", "/ui/dead-letters/groups")
async def dead_letter_groups(ask: Ask) -> Any:
    """The first dead letters of some queues, or of all, in groups."""
    data = await ask.json()
    count = number(data, "count", 500, 1, _MOST_LOOKED_AT) or 500
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    looked_at = of = 0
    refused = []
    for vhost, name in await _wanted(ask, data):
        row = ask.dashboard.sampler.latest.rows.get((vhost, name), {})
        try:
            messages = await peek_messages(ask, vhost, name, count, _SHOWN_BYTES)
        except (LoginRefusedError, Refusal):
            refused.append([vhost, name])
            continue
        looked_at += len(messages)
        of += max(len(messages), row.get("ready", 0))
        async for each in paced(messages):
            _add(groups, vhost, name, each)
    found = sorted(groups.values(), key=lambda each: -each["count"])
    return {"groups": found, "looked_at": looked_at, "of": of, "refused": refused}


async def _wanted(ask: Ask, data: dict[str, Any]) -> list[tuple[str, str]]:
    queues = data.get("queues")
    if queues is None:
        vhosts = await ask.dashboard.vhosts_of(ask.session)
        sample = await ask.dashboard.sampler.fresh()
        known = [
            key
            for key in sorted(ask.dashboard.sampler.dead_letter_queues)
            if sees(vhosts, key[0]) and data.get("vhost") in (None, key[0])
        ]
        return [key for key in known if sample.rows.get(key, {}).get("ready")][:_MOST_QUEUES]
    if not (
        isinstance(queues, list)
        and len(queues) <= _MOST_QUEUES
        and all(isinstance(each, list) and len(each) == 2 for each in queues)
        and all(isinstance(part, str) for each in queues for part in each)
    ):
        raise bad_request(f"queues must be a list of up to {_MOST_QUEUES} [vhost, name]")
    return [(vhost, name) for vhost, name in queues]


def _add(
    groups: dict[tuple[str, ...], dict[str, Any]], vhost: str, queue: str, message: dict[str, Any]
) -> None:
    origin = message.get("origin", {})
    told = {
        "origin": origin.get("queue", ""),
        "reason": origin.get("reason", ""),
        "error": origin.get("error", ""),
    }
    key = vhost, queue, *told.values()
    group = groups.get(key)
    if group is None:
        group = {"vhost": vhost, "queue": queue, **told, "count": 0, "example": message}
        groups[key] = group
    group["count"] += 1
    died = [
        each["time"]
        for each in message["story"]
        if each["kind"] == "dead_lettered" and "time" in each
    ]
    if died:
        group["oldest"] = min(died[-1], group.get("oldest", died[-1]))
        group["newest"] = max(died[-1], group.get("newest", died[-1]))
