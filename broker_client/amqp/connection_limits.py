"""Limits that a server proposes in connection.tune, and those that a client may ask for."""

from __future__ import annotations

from typing import NamedTuple

from broker_client.amqp import violations

FRAME_MIN_SIZE = 4_096
"""Every peer must take frames of this size (AMQP 0-9-1 §1.4.2.6, tune-ok.frame-max)."""


class ConnectionLimits(NamedTuple):
    """Limits that a server proposes and enforces."""

    frame_max: int = 131_072
    """Bytes of the largest frame; 0 for no limit but that of the body."""
    channel_max: int = 2_047
    """Channels of one connection; 0 for no limit."""
    heartbeat: int = 60
    """Seconds; 0 for none."""
    max_message_size: int = 134_217_728
    """Bytes of the largest body."""


def check_limit(name: str, wanted: int, offered: int, minimum: int) -> None:
    """Refuse values of tune-ok that exceed the limits, by RabbitMQ's rules.

    Raises:
        ReplyError: 530.
    """
    if wanted and wanted < minimum:
        raise violations.not_negotiated(name, wanted, minimum, is_minimum=True)
    if offered and (not wanted or wanted > offered):
        raise violations.not_negotiated(name, wanted, offered, is_minimum=False)
