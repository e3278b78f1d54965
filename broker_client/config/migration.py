"""What to write in place of a key of node's rascal."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RENAMED = {
    "protocol": "scheme",
    "regularPool": "regular",
    "confirmPool": "confirm",
    "idleTimeoutMillis": "idle_timeout",
    "acquireTimeoutMillis": "acquire_timeout",
    "destroyTimeoutMillis": "close_timeout",
}

_OTHERWISE = {
    "deferCloseChannel": "a subscription that ends waits up to close_timeout for what is unsettled",
    "promisifyAckOrNack": "ack_or_nack is always awaited; leave it out",
    "socketOptions": "its settings are connect_timeout, tls and client_properties here",
    "evictionRunIntervalMillis": "channels are closed when idle_timeout is over; leave it out",
    "rejectionDelayMillis": "channels are opened again when the link is up; leave it out",
    "testOnBorrow": "a channel is always looked at before it is used; leave it out",
    "slashes": "leave it out",
    "autoCreated": "leave it out",
    "fullyQualifiedName": "it follows from name and namespace; leave it out",
    "workflow": "handlers are given to subscribe; leave it out",
    "workflows": "handlers are given to subscribe; leave it out",
    "handler": "handlers are given to subscribe; leave it out",
    "handlers": "handlers are given to subscribe; leave it out",
}


def snake_case(name: str) -> str:
    """``messageTtl`` as ``message_ttl``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def advice(name: str, known: Sequence[str]) -> str | None:
    """What to do about the unknown key `name`, if it looks like one of rascal's.

    Args:
        name: the key as written.
        known: the keys that may stand there.
    """
    if name in _OTHERWISE:
        return f"{name} is rascal's: {_OTHERWISE[name]}"
    if name == "options" and "heartbeat" in known:
        return (
            "options are rascal's: heartbeat, channel_max, frame_max and connect_timeout stand "
            "beside the url here"
        )
    if name == "node" and "publish_queue" in known:
        return "node stands at the root of the file, once for all vhosts"
    written = _RENAMED.get(name, snake_case(name))
    if written != name and written in known:
        return f"{name} is written {written} here"
    return None
