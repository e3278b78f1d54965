"""The version of RabbitMQ, and what it means for a client.

Brokers tell their product and version in the server properties of the handshake. What differs for
applications is the table "RabbitMQ, by version" in docs/amqp-support.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Version = tuple[int, int]

SHARED_PREFETCH_UNTIL: Version = (4, 3)
"""From here on basic.qos with `global` sets the prefetch of each consumer, without a word."""
DELAYED_RETRY_SINCE: Version = (4, 3)
"""From here on quorum queues with `x-delayed-retry-type` hold back what is given back."""
LEAST_FRAME_MAX = 8192
"""Bytes: the smallest `frame_max` that RabbitMQ takes from 4.1 on. Before, AMQP's own 4096."""


def rabbitmq_version(server: Mapping[str, Any]) -> Version | None:
    """Major and minor version of a RabbitMQ with these server properties; None for others."""
    parts = str(server.get("version")).split(".")
    if server.get("product") != "RabbitMQ" or len(parts) < 2:
        return None
    major, minor = parts[:2]
    return (int(major), int(minor)) if (major + minor).isdecimal() else None
