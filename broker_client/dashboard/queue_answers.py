"""One queue, the messages in it, and one message edited and sent again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from broker_client.dashboard.api import LoginRefusedError, check, encoded
from broker_client.dashboard.argument_words import words_of
from broker_client.dashboard.asks import Answers, Ask
from broker_client.dashboard.links import refusal_of_error
from broker_client.dashboard.messages import HASHED_BYTES, message_of
from broker_client.dashboard.refusals import Refusal, bad_request
from broker_client.dashboard.requests import MAX_MESSAGE_BYTES, number, text
from broker_client.dashboard.resending import edit_of, replace_message
from broker_client.dashboard.rows import as_object, dead_letter_exchange, dead_letter_key, row_of
from broker_client.dashboard.sampler import paced_objects
from broker_client.errors import BrokerClientError

answers: Answers = Answers()

_MOST_PEEKED = 200
_MOST_SHOWN_BYTES = 1_000_000
_PEEK_WARNING = (
    "RabbitMQ marks a message that was looked at as redelivered, and a quorum queue counts it as "
    "a delivery."
)
_HELD = (("in_flight", "in-flight"), ("deferred", "deferred"))


@answers.on("GET", "/ui/queues/{vhost}/{queue}")
async def describe_queue(ask: Ask) -> Any:
    """A queue, its consumers and bindings; of our broker also what it holds back."""
    vhost, name = ask.vhost_and_queue()
    path = f"queues/{encoded(vhost)}/{encoded(name)}"
    queue = await ask.get(path)
    bindings, row = await ask.get(f"{path}/bindings"), _row(ask, queue)
    described: dict[str, Any] = {
        "queue": queue,
        "row": row,
        "words": words_of(queue),
        "bindings": [each for each in bindings if each.get("source")],
        "consumers": [_consumer(each) for each in queue.get("consumer_details") or ()],
        "lacking": (await ask.rights()).lacking_for_queue(vhost, name),
    }
    if "broker_client" in queue:
        for key, part in _HELD:
            held = await _held(ask, f"{path}/{part}")
            if held is not None:
                described[key] = held
        _add_longest(described["consumers"], described.get("in_flight") or ())
    exchange = dead_letter_exchange(queue)
    if exchange is not None:
        targets = ask.dashboard.sampler.dead_letter_queues
        described["dead_letters_to"] = {
            "exchange": exchange,
            "routing_key": dead_letter_key(queue),
            "queues": [list(to) for to, sources in targets.items() if (vhost, name) in sources],
        }
    return described


def _row(ask: Ask, queue: Mapping[str, Any]) -> Any:
    """What the queue list says, with what is newer."""
    sample = ask.dashboard.sampler.latest
    known = sample.rows.get((queue["vhost"], queue["name"]), {})
    kept = {key: known[key] for key in ("spark", "dead_letter_queue") if key in known}
    return {**row_of(queue, datetime.now(UTC).timestamp()), **kept}


async def _held(ask: Ask, path: str) -> Any:
    """A list that needs a permission; None without it."""
    try:
        return await ask.get(path, "most=100")
    except LoginRefusedError:
        return None


def _consumer(described: Mapping[str, Any]) -> dict[str, Any]:
    channel = as_object(described.get("channel_details"))
    own = as_object(described.get("broker_client"))
    told: dict[str, Any] = {
        "tag": described.get("consumer_tag"),
        "channel": channel.get("name"),
        "connection": channel.get("connection_name"),
        "user": channel.get("user"),
        "prefetch": described.get("prefetch_count"),
        "ack_required": described.get("ack_required"),
        "active": described.get("active", True),
        "exclusive": described.get("exclusive"),
    }
    if own:
        told["holder"] = own.get("channel"), told["tag"]
        told["unacked"] = own.get("in_flight")
        told["since"] = own.get("since")
        told["message_timeout"] = own.get("message_timeout")
        told["counts"] = {
            each: own.get(each) for each in ("acked", "requeued", "rejected", "timed_out")
        }
    return told


def _add_longest(consumers: list[dict[str, Any]], held: Sequence[Mapping[str, Any]]) -> None:
    """Note since when each consumer holds what it holds the longest, where that is among `held`."""
    since: dict[tuple[Any, ...], float] = {}
    for each in held:
        holder = each["channel"], each["consumer_tag"]
        since[holder] = min(each["delivered_at"], since.get(holder, each["delivered_at"]))
    for consumer in consumers:
        holder = consumer.pop("holder", ())
        if holder in since:
            consumer["holds_since"] = since[holder]


# --------------------------------------------------------------------------- peek


async def peek_messages(
    ask: Ask, vhost: str, queue: str, count: int, shown_bytes: int
) -> list[dict[str, Any]]:
    """The first messages of a queue, which stay there."""
    body = {
        "count": count,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "truncate": max(shown_bytes, HASHED_BYTES),
    }
    content = json.dumps(body).encode()
    path = f"queues/{encoded(vhost)}/{encoded(queue)}/get"
    async with ask.dashboard.turns.taken(vhost, queue):
        answer = await ask.dashboard.api.request("POST", path, ask.session.account, content=content)
    check(answer)
    messages: list[dict[str, Any]] = []
    async for each in paced_objects(answer.body):
        messages.append(message_of(each, len(messages), shown_bytes))
    return messages


@answers.on("POST", "/ui/queues/{vhost}/{queue}/peek")
async def peek(ask: Ask) -> Any:
    """Look at the first messages of a queue."""
    vhost, name = ask.vhost_and_queue()
    data = await ask.json()
    count = number(data, "count", 50, 1, _MOST_PEEKED) or 50
    shown_bytes = number(data, "truncate", 65_536, 1, _MOST_SHOWN_BYTES) or 65_536
    messages = await peek_messages(ask, vhost, name, count, shown_bytes)
    path = f"queues/{encoded(vhost)}/{encoded(name)}"
    queue = as_object(await ask.get(path, "columns=messages_ready,broker_client.paused"))
    told = {"messages": messages, "ready": max(queue.get("messages_ready", 0), len(messages))}
    if "broker_client" not in queue:
        told["warning"] = _PEEK_WARNING
    return told


# --------------------------------------------------------------------------- edit and resend


@answers.on("POST", "/ui/queues/{vhost}/{queue}/resend")
async def resend(ask: Ask) -> Any:
    """Publish an edited copy and, once it is confirmed, remove the original."""
    vhost, name = ask.vhost_and_queue()
    data = await ask.json(MAX_MESSAGE_BYTES)
    key = text(data, "key")
    if data.get("confirmed") is not True:
        raise bad_request("confirmed must be true")
    edit = edit_of(data)
    target = f"queue {name} in {vhost}"
    credentials = ask.session.account.credentials
    assert credentials is not None
    try:
        links = ask.dashboard.links
        turn = ask.dashboard.turns.taken(vhost, name)
        async with links.open(credentials, vhost) as link, turn:
            moved = await replace_message(link, name, key, edit)
    except (BrokerClientError, Refusal) as error:
        refusal = error if isinstance(error, Refusal) else refusal_of_error(error)
        ask.record("resend", target, refusal.status)
        raise refusal from None
    if not moved.selected:
        ask.record("resend", target, 409)
        raise Refusal(409, "gone", "the message is not there any more: nothing was done")
    ask.record("resend", target, 200, f"to {edit.exchange!r} with key {edit.routing_key!r}")
    refused = next(iter(moved.refused), "")
    taken = moved.moved + moved.already_moved > 0
    return {"routed": not refused, "taken": taken, "reason": refused}
