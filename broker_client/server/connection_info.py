"""Descriptions of connections for operators, and of the server for its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.runtime.slotted import slotted

_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


@slotted
class ConnectionInfo:
    """A snapshot of one connection."""

    connection: int
    """As the node numbers it."""
    name: str
    """Peer and own address, as RabbitMQ names connections; unique while it is open."""
    connection_name: str
    """As the client calls itself."""
    user: str
    vhost: str
    peer: str
    channels: int
    opened_at: float
    """Seconds since the epoch."""
    client_properties: Mapping[str, Any]
    is_blocked: bool
    is_tls: bool


def server_properties(version: str) -> dict[str, Any]:
    """What a server says of itself in connection.start."""
    return {
        "product": "broker_client",
        "version": version,
        "platform": "Python",
        "information": "The built-in broker of broker_client",
        "capabilities": dict(_CAPABILITIES),
    }
