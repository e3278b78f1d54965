"""Commands over the control socket: one JSON object per connection and request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from broker_client.errors import BrokerClientError, ReplyError
from broker_client.node.definitions.exporting import export_definitions
from broker_client.node.node import Node


async def answer(node: Node, line: bytes) -> bytes:
    """The answer to a request, once what it changed is kept."""
    told = carried_out(node, line)
    await node.drain()
    return told


def carried_out(node: Node, line: bytes) -> bytes:
    """Carry out a request; returns ``{"ok": ...}``, or ``{"error": "why"}``."""
    try:
        request = json.loads(line)
        do = _COMMANDS[request["do"]]
        told = {"ok": do(node, request)}
    except ReplyError as error:
        told = {"error": error.reply_text}
    except BrokerClientError as error:
        told = {"error": str(error)}
    except (ValueError, KeyError, TypeError):
        told = {"error": f"the request must be one of {', '.join(_COMMANDS)}, with its fields"}
    return json.dumps(told, default=str).encode()


def _stats(node: Node, _request: Mapping[str, Any]) -> Any:
    stats = node.stats()
    return {
        "name": stats.name,
        "pid": os.getpid(),
        "connections": stats.connections,
        "channels": stats.channels,
        "alarms": list(node.alarms),
        "vhosts": list(node.administration.vhosts),
        "time": node.now(),
        "queues": [asdict(queue) for queue in stats.queues],
    }


def _definitions(node: Node, request: Mapping[str, Any]) -> Any:
    exported = export_definitions(node, request.get("vhost"))
    return {"document": exported.document, "notes": exported.notes}


def _pause(node: Node, request: Mapping[str, Any]) -> None:
    node.pause_queue(str(request["queue"]), vhost=str(request["vhost"]))


def _resume(node: Node, request: Mapping[str, Any]) -> None:
    node.resume_queue(str(request["queue"]), vhost=str(request["vhost"]))


_COMMANDS: dict[str, Callable[[Node, Mapping[str, Any]], Any]] = {
    "stats": _stats,
    "definitions": _definitions,
    "pause": _pause,
    "resume": _resume,
}
