"""Moves over HTTP: to another queue, or of dead letters to where they died."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from pamqp import commands

from broker_client.message import Outgoing, Properties
from broker_client.moving.move import MoveOptions, MoveProgress, move, replay
from broker_client.moving.selection import Selection
from broker_client.runtime.tasks import see_through
from broker_client.server.http.calls import Call, Operations, flag, text
from broker_client.server.http.errors import Refusal, bad_request
from broker_client.server.http.topology_operations import the_channel, the_queue
from broker_client.transport.embedded.link import EmbeddedLink

operations: Operations = Operations()

_HELD_FOR = 86_400.0  # seconds in flight, so that no message time-out ends a slow move
_CHOICE = (
    "reason",
    "from",
    "older_than",
    "headers",
    "message_ids",
    "limit",
    "rate",
    "check_target",
    "dry_run",
)


@operations.post(
    "/api/queues/{vhost}/{name}/move",
    "Move ready messages to the queue `to`; each copy is confirmed before its original is acked",
    body=("to", *_CHOICE),
)
async def move_messages(call: Call) -> Any:
    data = await call.json()
    source, to = the_queue(call).name, text(data, "to")
    options, dry_run = _options(data), flag(data, "dry_run", False)
    _check(call, source, () if dry_run else (to,))
    if to not in call.vhost().queues:
        raise bad_request(f"no queue {to!r} in vhost {call.vhost().name!r}")
    link = _link(call)
    return await _carried_out(call, link, move(link, source, to, options, dry_run=dry_run))


@operations.post(
    "/api/queues/{vhost}/{name}/replay",
    "Put dead letters back into the queues where they died; only counts them by default",
    body=_CHOICE,
)
async def replay_messages(call: Call) -> Any:
    data = await call.json()
    source = the_queue(call).name
    options, dry_run = _options(data), flag(data, "dry_run", True)
    _check(call, source, () if dry_run else ("",))
    link = _link(call)
    return await _carried_out(call, link, replay(link, source, options, dry_run=dry_run))


def _check(call: Call, source: str, targets: tuple[str, ...]) -> None:
    """Check the permissions that the caller needs over AMQP."""
    channel = the_channel(call)
    consume = commands.Basic.Consume()
    consume.queue = source
    channel.check(consume)
    for target in targets:
        refusal = channel.permissions.check_message(Outgoing("", target, b"", Properties()))
        if refusal:
            raise refusal


def _link(call: Call) -> EmbeddedLink:
    vhost = call.vhost().name
    return EmbeddedLink("", call.node, vhost, lambda: None, consumer_timeout=_HELD_FOR)


async def _carried_out(
    call: Call, link: EmbeddedLink, moving: Coroutine[Any, Any, MoveProgress]
) -> dict[str, Any]:
    """Wait for a move, which ends early, in order, where the client goes."""
    task = asyncio.create_task(moving, name="move over HTTP")
    gone = asyncio.create_task(_gone(call), name="move over HTTP: client")
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            raise Refusal(499, "client_closed_request", "the move was stopped")
        return _told(task.result())
    except asyncio.CancelledError:
        task.cancel()
        await see_through(task)
        raise
    finally:
        gone.cancel()
        await link.close()


async def _gone(call: Call) -> None:
    """Return when the client has closed its connection."""
    await call.request.receive()


def _told(moved: MoveProgress) -> dict[str, Any]:
    return {
        "seen": moved.seen,
        "selected": [
            {"queue": queue, "reason": reason, "count": count}
            for (queue, reason), count in sorted(moved.selected.items())
        ],
        "moved": moved.moved,
        "already_moved": moved.already_moved,
        "refused": dict(moved.refused),
        "left": moved.kept,
    }


def _options(data: Mapping[str, Any]) -> MoveOptions:
    headers = data.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise bad_request("headers must be an object of strings")
    ids = data.get("message_ids") or []
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise bad_request("message_ids must be a list of strings")
    selection = Selection(
        reason=_text(data, "reason"),
        origin=_text(data, "from"),
        older_than=_positive(data, "older_than", least=0),
        headers=headers,
        message_ids=frozenset(ids),
    )
    limit = _positive(data, "limit", least=1)
    if limit is not None and limit != int(limit):
        raise bad_request("limit must be a whole number")
    return MoveOptions(
        selection=selection,
        limit=None if limit is None else int(limit),
        rate=_positive(data, "rate", least=0.1),
        check_target=flag(data, "check_target", True),
    )


def _text(data: Mapping[str, Any], key: str) -> str | None:
    return None if data.get(key) is None else text(data, key)


def _positive(data: Mapping[str, Any], key: str, *, least: float) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < 1e12:
        raise bad_request(f"{key} must be a number, {least:g} or more")
    return value
