"""The largest body that a broker accepts, as far as a client can know it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_client.transport.versions import rabbitmq_version


class SizeLimit(NamedTuple):
    """The largest body that a broker takes."""

    size_bytes: int
    """0 is no limit."""
    source: str
    """What sets it, as text."""


NO_SIZE_LIMIT = SizeLimit(0, "nobody")
_MIB = 2**20
_PRECONDITION_FAILED = 406
_SIZE_REFUSED = re.compile(r"message size \d+ .*max size (\d+)")


def size_limit_in(reply_code: int, reply_text: str) -> SizeLimit | None:
    """The limit a broker names as it closes a channel over a message that is too large."""
    told = _SIZE_REFUSED.search(reply_text) if reply_code == _PRECONDITION_FAILED else None
    return None if told is None else SizeLimit(int(told[1]), "the broker's own max_message_size")


def usual_size_limit(server: Mapping[str, Any]) -> SizeLimit:
    """The largest body that a broker with these server properties takes unless told otherwise.

    RabbitMQ: `max_message_size` is 128 MiB from 3.8 on and 16 MiB from 4.0 on; clients are not
    notified of it.
    """
    number = rabbitmq_version(server)
    if number is None or number < (3, 8):
        return NO_SIZE_LIMIT
    version = server["version"]
    source = (
        f"the default of RabbitMQ {version}; "
        "if it has another limit, set max_message_size of the connection"
    )
    return SizeLimit((128 if number < (4, 0) else 16) * _MIB, source)
