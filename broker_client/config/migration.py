"""What to write in place of a key of Node's rascal, or of another client or tool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RENAMED = {
    "protocol": "scheme",
    "regularPool": "regular",
    "confirmPool": "confirm",
    "idleTimeoutMillis": "idle_timeout",
    "acquireTimeoutMillis": "acquire_timeout",
    "destroyTimeoutMillis": "close_timeout",
}

_ELSEWHERE = {  # what others call a thing, and what it may be called here
    "args": ("arguments",),
    "consumers": ("subscriptions",),
    "delay": ("defer",),
    "delivery_mode": ("persistent",),
    "dest": ("destination",),
    "dlx": ("dead_letter_exchange",),
    "host": ("hostname",),
    "key": ("binding_key", "routing_key"),
    "max_retries": ("attempts",),
    "pass": ("password",),
    "prefetch_count": ("prefetch",),
    "producers": ("publications",),
    "publishers": ("publications",),
    "retries": ("attempts", "recovery"),
    "routing_key": ("binding_key",),
    "target": ("destination",),
    "ttl": ("message_ttl", "expiration"),
    "username": ("user",),
    "x-dead-letter-exchange": ("dead_letter_exchange",),
    "x-dead-letter-routing-key": ("dead_letter_routing_key",),
    "x-expires": ("expires",),
    "x-max-length": ("max_length",),
    "x-max-priority": ("max_priority",),
    "x-message-ttl": ("message_ttl",),
}

_AT_ROOT = {  # sections of the whole file, and what else their name may be about
    "node": ", once for all vhosts",
    "profile": ", once for all vhosts",
    "shovels": ", once for all vhosts",
    "recovery": "; a subscription names one of its chains as its own recovery",
    "encryption": "; a publication or subscription names its profiles as its own encryption",
    "schedules": ", once for all vhosts",
    "tracing": ", once for all vhosts",
    "server": ", once for all vhosts; the address of a broker is hostname, in a connection",
    "defaults": ", or in a vhost",
    "redeliveries": ", or in a vhost; a subscription names a counter in its own redeliveries",
    "publications": ", or in a vhost",
    "subscriptions": ", or in a vhost",
}

_IN_VHOST = ("bindings", "exchanges", "queues")

_OTHERWISE = {
    "deferCloseChannel": "a subscription that ends waits up to close_timeout for what is unsettled",
    "promisifyAckOrNack": "ack_or_nack is always awaited; leave it out",
    "socketOptions": "its settings are connect_timeout, tls and client_properties here",
    "evictionRunIntervalMillis": "channels are closed when idle_timeout is over; leave it out",
    "rejectionDelayMillis": "channels are opened again when the link is up; leave it out",
    "testOnBorrow": "a channel is always checked before it is used; leave it out",
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


def advice(
    name: str, known: Sequence[str], sections: Mapping[str, Sequence[str]] | None = None
) -> str | None:
    """Advice for the unknown key `name`, if its meaning can be guessed.

    Args:
        name: the key as written.
        known: the keys that may stand there.
        sections: those of `known` that lead to further keys, with these keys.
    """
    if name in _OTHERWISE:
        return f"{name} is rascal's: {_OTHERWISE[name]}"
    if name == "options" and "heartbeat" in known:
        return (
            "options are rascal's: heartbeat, channel_max, frame_max and connect_timeout stand "
            "beside the url here"
        )
    if name in _AT_ROOT and name not in known:
        return f"{name} stands at the root of the file{_AT_ROOT[name]}"
    if name in _IN_VHOST and name not in known:
        return f"{name} stands in a vhost: vhosts.NAME.{name}"
    meant = (_RENAMED.get(name, snake_case(name)), *_ELSEWHERE.get(name, ()))
    for written in meant:
        if written != name and written in known:
            return f"{name} is written {written} here"
    for written in (name, *meant):
        for section, keys in (sections or {}).items():
            if written in keys:
                called = "" if written == name else f" is written {written} here, and"
                return f"{name}{called} stands under {section}"
    return None
